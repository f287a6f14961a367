/* cuda.h: libcudart and, in the same object, libcuda, as in CUDA 13. */
#define FAKE_PREFIX cuda
#define FAKE_TITLE "Fake CUDA"
#define FAKE_VERSION 13000
#define FAKE_OUT_OF_MEMORY_CODE 2
#define FAKE_HOST_ALLOC HostAlloc
#define FAKE_HOST_FREE FreeHost
#define FAKE_HOST_FLAGS 7u
#define FAKE_STRUCT_BYTES 1008
#define FAKE_STRUCT_TOTAL 288
#define FAKE_ATTRIBUTES                          \
    {                                            \
        {75, 9}, {76, 0}, {16, 132}, {10, 32}, { \
            18, 0                                \
        }                                        \
    }
#define FAKE_PEER_ANSWER 1
#define FAKE_LEAST_PRIORITY 0
#define FAKE_GREATEST_PRIORITY -5
#define FAKE_WITH_2D
#define FAKE_WITH_CAPTURE
#define FAKE_MODULE_PREFIX cu
