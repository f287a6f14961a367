/* dcu.h: libgalaxyhip, which follows HIP 5. */
#define FAKE_PREFIX hip
#define FAKE_TITLE "Fake DCU"
#define FAKE_VERSION 50225484
#define FAKE_OUT_OF_MEMORY_CODE 2
#define FAKE_HOST_ALLOC HostMalloc
#define FAKE_HOST_FREE HostFree
#define FAKE_HOST_FLAGS 7u
#define FAKE_WITH_INIT
#define FAKE_WITH_NAME
#define FAKE_WITH_TOTAL
#define FAKE_PEER_ANSWER 1
#define FAKE_LEAST_PRIORITY 0
#define FAKE_GREATEST_PRIORITY -1
#define FAKE_WITH_2D
#define FAKE_WITH_CAPTURE
