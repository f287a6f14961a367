/* gcu.h: libtopsrt. A pointer is known on its own device only, as are streams and events; the
 * answer about peers is a mask of links; host functions take the older form; there are no
 * priorities. */
#define FAKE_PREFIX tops
#define FAKE_TITLE "Fake GCU"
#define FAKE_VERSION 3060
#define FAKE_OUT_OF_MEMORY_CODE 2
#define FAKE_HOST_ALLOC HostMalloc
#define FAKE_HOST_FREE HostFree
#define FAKE_HOST_FLAGS 7u
#define FAKE_WITH_INIT
#define FAKE_WITH_NAME
#define FAKE_WITH_TOTAL
#define FAKE_ATTRIBUTES   \
    {                     \
        {1, 3}, {2, 0}, { \
            10, 24        \
        }                 \
    }
#define FAKE_PEER_ANSWER 0x100
#define FAKE_POINTERS_BELONG_TO_CURRENT
#define FAKE_WITHOUT_HOST_FUNC
