/* rig.c: platforms for tests. */
#include "rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device_code.h"
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

/* --- device code -------------------------------------------------------------------------------
 */

typedef struct launch_task {
    const void *function;
    uint32_t blocks;
    _Alignas(16) char argument[1024];
} launch_task;

static fl_status load_code(void *ctx, fl_device device, const void *image, size_t bytes,
                           void **out_module) {
    (void)ctx;
    (void)device;
    CHECK(bytes > 0);
    *out_module = (void *)(uintptr_t)image;
    return FL_OK;
}

static fl_status find_code(void *ctx, fl_device device, void *module, const char *name,
                           void **out_function) {
    (void)ctx;
    (void)device;
    (void)module;
    *out_function = (void *)(uintptr_t)device_code_find(name);
    return *out_function ? FL_OK : fl_fail(FL_NOT_FOUND, "no device function %s", name);
}

static void run_code(void *argument) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    launch_task *task = argument;
    (void)pthread_mutex_lock(&one_at_a_time);
    device_code_launch(task->function, task->blocks, task->argument);
    (void)pthread_mutex_unlock(&one_at_a_time);
    free(task);
}

static fl_status launch_code(void *ctx, fl_device device, void *function, const uint32_t grid[3],
                             const uint32_t block[3], uint32_t shared_bytes,
                             fl_native_stream stream, void **arguments) {
    (void)block;
    CHECK_INT(shared_bytes, 0);
    launch_task *task = malloc(sizeof(*task));
    size_t bytes = device_code_argument_bytes(function);
    CHECK(task && bytes <= sizeof(task->argument));
    task->function = function;
    task->blocks = grid[0];
    memcpy(task->argument, arguments[0], bytes);
    return fl__sim_driver()->stream_host_call(ctx, device, stream, run_code, task);
}

void rig_with_code(const char *devices, const char *memory) {
    static fl_driver coded;
    options(devices, memory);
    coded = *fl__sim_driver();
    coded.capabilities &= ~(uint32_t)FL_CAP_HOST_FUNCTIONS;
    coded.module_load = load_code;
    coded.module_function = find_code;
    coded.launch = launch_code;
    choose(&coded);
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
