/* rig.c: platforms for tests. */
#include "rig.h"

#include <pthread.h>

#include "driver/call.h"
#include "driver/sim.h"
#include "fl/debug.h"
#include "harness.h"

static const fl_driver *table; /* What the platform `rig` opens. */

static fl_status probe(const fl_platform *platform) {
    (void)platform;
    return FL_OK;
}

static fl_status open_table(const fl_platform *platform, const fl_driver **out_driver) {
    (void)platform;
    *out_driver = table;
    return FL_OK;
}

static const fl_platform platform = {
    .name = "rig",
    .twin = FL_TWIN_NONE,
    .probe_order = -1,
    .probe = probe,
    .open = open_table,
};

static void options(const char *devices, const char *memory) {
    if (devices) {
        CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, devices));
    }
    if (memory) {
        CHECK_OK(fl_option_set(FL_OPT_SIM_MEMORY, memory));
    }
}

static void choose(const fl_driver *driver) {
    table = driver;
    const fl_platform *chosen;
    CHECK_OK(fl_platform_register(&platform));
    CHECK_OK(fl_platform_choose("rig", &chosen));
    CHECK_OK(fl_device_init());
}

void rig_sim(const char *devices, const char *memory) {
    options(devices, memory);
    choose(fl__sim_driver());
}

fl__fault *rig_faulty(const char *devices, const char *memory) {
    static fl__fault fault;
    options(devices, memory);
    fl__fault_wrap(&fault, fl__sim_driver());
    choose(&fault.table);
    return &fault;
}

fl__call_trace *rig_traced(const char *devices, const char *memory) {
    fl__call_trace *trace;
    options(devices, memory);
    CHECK_OK(fl__call_trace_create(fl__sim_driver(), &trace));
    choose(fl__call_trace_driver(trace));
    return trace;
}

void rig_bare(const char *devices, const char *memory) {
    static fl_driver bare;
    options(devices, memory);
    bare = *fl__sim_driver();
    bare.capabilities &= ~(uint32_t)FL_CAP_HOST_FUNCTIONS;
    bare.copy_2d = NULL;
    bare.copy_peer = NULL;
    bare.peer_can_access = NULL;
    choose(&bare);
}

/* --- a task that waits --------------------------------------------------------------------------
 */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_blocked;

static void wait_for_release(void *argument) {
    (void)argument;
    (void)pthread_mutex_lock(&mutex);
    while (is_blocked) {
        (void)pthread_cond_wait(&changed, &mutex);
    }
    (void)pthread_mutex_unlock(&mutex);
}

void rig_block(fl_device device, fl_stream stream) {
    fl_native_stream native;
    CHECK_OK(fl_stream_native(device, stream, &native));
    (void)pthread_mutex_lock(&mutex);
    CHECK(!is_blocked);
    is_blocked = true;
    (void)pthread_mutex_unlock(&mutex);
    CHECK_OK(
        fl__drv_stream_host_call(fl_platform_driver(), device, native, wait_for_release, NULL));
}

void rig_release(void) {
    (void)pthread_mutex_lock(&mutex);
    is_blocked = false;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&mutex);
}
