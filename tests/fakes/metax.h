/* metax.h: libmcruntime. Out of memory has a number of its own, page-locked memory is asked for
 * with three arguments of which the last has no public values, attribute numbers are those of old
 * HIP. */
#define FAKE_PREFIX mc
#define FAKE_TITLE "Fake MetaX"
#define FAKE_VERSION 3300
#define FAKE_OUT_OF_MEMORY_CODE 10007
#define FAKE_HOST_ALLOC MallocHost
#define FAKE_HOST_FREE FreeHost
#define FAKE_HOST_FLAGS 0u
#define FAKE_WITH_INIT
#define FAKE_WITH_NAME
#define FAKE_ATTRIBUTES                 \
    {                                   \
        {21, 10}, {22, 0}, {16, 104}, { \
            10, 64                      \
        }                               \
    }
#define FAKE_PEER_ANSWER 1
#define FAKE_LEAST_PRIORITY 0
#define FAKE_GREATEST_PRIORITY -1
#define FAKE_WITH_2D
