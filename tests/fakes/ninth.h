/* ninth.h: a chip that nobody makes. Its prefix is odd, its page-locked memory has another name, it
 * has no ordered fill, and memory that runs out has number 77. */
#define FAKE_PREFIX zx_rt
#define FAKE_TITLE "Zephyr Nine"
#define FAKE_VERSION 900
#define FAKE_OUT_OF_MEMORY_CODE 77
#define FAKE_HOST_ALLOC GrabHost
#define FAKE_HOST_FREE DropHost
#define FAKE_HOST_FLAGS 0u
#define FAKE_WITH_NAME
#define FAKE_PEER_ANSWER 1
#define FAKE_WITHOUT_MEMSET_ASYNC
#define FAKE_WITHOUT_MODULES
