/* musa.h: libmusart and, in the same object, libmusa. */
#define FAKE_PREFIX musa
#define FAKE_TITLE "Fake MUSA"
#define FAKE_VERSION 50200
#define FAKE_OUT_OF_MEMORY_CODE 2
#define FAKE_HOST_ALLOC HostAlloc
#define FAKE_HOST_FREE FreeHost
#define FAKE_HOST_FLAGS 7u
#define FAKE_STRUCT_BYTES 712
#define FAKE_STRUCT_TOTAL 288
#define FAKE_ATTRIBUTES               \
    {                                 \
        {75, 3}, {76, 1}, {16, 56}, { \
            10, 32                    \
        }                             \
    }
#define FAKE_PEER_ANSWER 1
#define FAKE_LEAST_PRIORITY 0
#define FAKE_GREATEST_PRIORITY -1
#define FAKE_WITH_2D
#define FAKE_WITH_CAPTURE
#define FAKE_MODULE_PREFIX mu
