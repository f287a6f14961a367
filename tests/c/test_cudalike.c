/*
 * test_cudalike.c: the table-driven driver against fakes of the vendors that it serves.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "driver/cudalike.h"
#include "driver/vendors.h"
#include "engine.h"
#include "fl/debug.h"
#include "harness.h"
#include "vendor_test.h"

static int call_i(void *fake, const char *name, int argument) {
    int (*function)(int);
    void *symbol = fake_symbol(fake, name);
    memcpy(&function, &symbol, sizeof(function));
    return function(argument);
}

static int call_p(void *fake, const char *name, void *argument) {
    int (*function)(void *);
    void *symbol = fake_symbol(fake, name);
    memcpy(&function, &symbol, sizeof(function));
    return function(argument);
}

/* --- what is known of devices ----------------------------------------------------------------- */

static void check_properties(const char *platform, const char *name, int major, int minor,
                             int processors, int warp, const char *uuid) {
    use_fakes("");
    const fl_driver *d = open_platform(platform);
    fl_device_properties p;
    CHECK_OK(d->device_properties(d->ctx, 1, &p));
    CHECK_STRING(p.name, name);
    CHECK_UINT(p.total_memory, fl_option_int(FL_OPT_SIM_MEMORY));
    CHECK_INT(p.major, major);
    CHECK_INT(p.minor, minor);
    CHECK_INT(p.processor_count, processors);
    CHECK_INT(p.warp_size, warp);
    CHECK_STRING(p.uuid, uuid);
    CHECK_INT(p.integrated, false);
}

#define UUID "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"

TEST(cudalike, properties_cuda) {
    check_properties("cuda-direct", "Fake CUDA 1", 9, 0, 132, 32, UUID);
}

TEST(cudalike, properties_ppu) {
    check_properties("ppu-direct", "Fake PPU 1", 8, 0, 64, 32, UUID);
}

TEST(cudalike, properties_musa) {
    check_properties("musa", "Fake MUSA 1", 3, 1, 56, 32, UUID);
}

TEST(cudalike, properties_metax) {
    check_properties("metax-direct", "Fake MetaX 1", 10, 0, 104, 64, "");
}

TEST(cudalike, properties_dcu) {
    check_properties("dcu-direct", "Fake DCU 1", 0, 0, 0, 0, "");
}

TEST(cudalike, properties_gcu) {
    check_properties("gcu", "Fake GCU 1", 3, 0, 24, 0, "");
}

TEST(cudalike, an_unknown_attribute_is_0_and_leaves_nothing) {
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    fake_fail(fake, "musaDeviceGetAttribute", 1, 1);
    fl_device_properties p;
    CHECK_OK(d->device_properties(d->ctx, 0, &p));
    CHECK_INT(p.major, 0);
    CHECK_INT(p.minor, 1);
    CHECK_INT(call_p(fake, "musaPeekAtLastError", NULL), 0);
}

/* --- errors ----------------------------------------------------------------------------------- */

TEST(cudalike, memory_that_runs_out) {
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    void *ptr = &ptr;
    CHECK_STATUS(d->mem_alloc(d->ctx, 1, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_POINTER(ptr, &ptr);
    CHECK_INT(fl_last_vendor_code(), 2);
    CHECK_STRING(fl_last_message(),
                 "musa: allocating 35184372088832 bytes on device 1: musaMalloc: out of memory "
                 "(Fake MUSA error, 2)");
    /* The runtime keeps it for whoever looks next; nobody must find it. */
    CHECK_INT(call_p(fake, "musaPeekAtLastError", NULL), 0);
}

TEST(cudalike, a_vendors_own_number) {
    use_fakes("");
    const fl_driver *d = open_platform("metax-direct");
    void *ptr = NULL;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_INT(fl_last_vendor_code(), 10007);
    CHECK_CONTAINS(fl_last_message(), "mcMalloc: out of memory");
}

static void block(void *argument) {
    while (!__atomic_load_n((int *)argument, __ATOMIC_ACQUIRE)) {
        test_pause_ms(1);
    }
}

TEST(cudalike, not_ready_leaves_nothing) {
    use_fakes("");
    const fl_driver *d = open_platform("cuda-direct");
    void *fake = fake_of("cuda-direct/libcudart.so.13");
    fl_native_stream stream;
    fl_native_event event;
    int open = 0;
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->event_create(d->ctx, 0, 0, &event));
    CHECK_OK(d->stream_host_call(d->ctx, 0, stream, block, &open));
    CHECK_OK(d->event_record(d->ctx, 0, event, stream));
    CHECK_STATUS(fl_fail(FL_INTERNAL, "before"), FL_INTERNAL);
    CHECK_STATUS(d->stream_query(d->ctx, 0, stream), FL_NOT_READY);
    CHECK_INT(call_p(fake, "cudaPeekAtLastError", NULL), 0);
    CHECK_STATUS(d->event_query(d->ctx, 0, event), FL_NOT_READY);
    CHECK_INT(call_p(fake, "cudaPeekAtLastError", NULL), 0);
    CHECK_STRING(fl_last_message(), "before");
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    CHECK_OK(d->stream_synchronize(d->ctx, 0, stream));
}

TEST(cudalike, numbers_become_statuses) {
    static const struct {
        int code;
        fl_status status;
    } rows[] = {
        {1, FL_INVALID_ARGUMENT}, {2, FL_OUT_OF_MEMORY},   {3, FL_UNAVAILABLE},
        {4, FL_UNAVAILABLE},      {34, FL_UNAVAILABLE},    {35, FL_UNAVAILABLE},
        {36, FL_UNAVAILABLE},     {46, FL_UNAVAILABLE},    {100, FL_UNAVAILABLE},
        {803, FL_UNAVAILABLE},    {804, FL_UNAVAILABLE},   {101, FL_OUT_OF_RANGE},
        {600, FL_INTERNAL},       {217, FL_NOT_SUPPORTED}, {801, FL_NOT_SUPPORTED},
        {214, FL_DEVICE_LOST},    {700, FL_DEVICE_LOST},   {702, FL_DEVICE_LOST},
        {719, FL_DEVICE_LOST},    {400, FL_DEVICE_ERROR},  {999, FL_DEVICE_ERROR},
        {38, FL_UNAVAILABLE},
    };
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_note("code %d", rows[i].code);
        fake_fail(fake, "musaDeviceSynchronize", 1, rows[i].code);
        CHECK_STATUS(d->device_synchronize(d->ctx, 0), rows[i].status);
        CHECK_INT(fl_last_vendor_code(), rows[i].code);
        CHECK_CONTAINS(fl_last_message(), "musa: waiting for device 0: musaDeviceSynchronize: ");
    }
}

TEST(cudalike, no_device_is_no_failure) {
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    static const int codes[] = {100, 38};
    for (int i = 0; i < 2; i++) {
        int32_t count = -1;
        fake_fail(fake, "musaGetDeviceCount", 1, codes[i]);
        CHECK_OK(d->device_count(d->ctx, &count));
        CHECK_INT(count, 0);
        CHECK_INT(call_p(fake, "musaPeekAtLastError", NULL), 0);
    }
    int32_t count = -1;
    fake_fail(fake, "musaGetDeviceCount", 1, 999);
    CHECK_STATUS(d->device_count(d->ctx, &count), FL_DEVICE_ERROR);
    CHECK_INT(count, -1);
}

static void check_nothing_sticks(void *fake) {
    static const char *const names[] = {"cudaPeekAtLastError", "musaPeekAtLastError",
                                        "mcPeekAtLastError", "hipPeekAtLastError",
                                        "topsPeekAtLastError"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (dlsym(fake, names[i])) {
            CHECK_INT(call_p(fake, names[i], NULL), 0);
        }
    }
}

/* A failure of these is no failure of ours: the answer is left out, or the way is longer. */
static void check_every_failure(const char *platform, const char *file, const char *prefix,
                                const char *module_prefix) {
    static const char *const suffixes[] = {"GetLastError", "GetDevice", "DeviceGetAttribute",
                                           "DeviceEnablePeerAccess"};
    static char names[8][64];
    const char *tolerated[8] = {NULL};
    int n = 0;
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        (void)snprintf(names[n], sizeof(names[n]), "%s%s", prefix, suffixes[i]);
        tolerated[n] = names[n];
        n++;
    }
    (void)snprintf(names[n], sizeof(names[n]), "%sDevicePrimaryCtxGetState", module_prefix);
    tolerated[n] = names[n];
    /* The way back to the thread's device. */
    n++;
    (void)snprintf(names[n], sizeof(names[n]), "%sSetDevice", prefix);
    tolerated[n] = names[n];
    use_fakes("");
    const fl_driver *d = open_platform(platform);
    fail_every_call(d, fake_of(file), 999, tolerated, "", check_nothing_sticks);
}

TEST_WITH_LIMIT(cudalike, every_failure_cuda, 60) {
    check_every_failure("cuda-direct", "cuda-direct/libcudart.so.13", "cuda", "cu");
}

TEST_WITH_LIMIT(cudalike, every_failure_musa, 60) {
    check_every_failure("musa", "musa/libmusart.so.5", "musa", "mu");
}

TEST_WITH_LIMIT(cudalike, every_failure_metax, 60) {
    check_every_failure("metax-direct", "metax-direct/libmcruntime.so", "mc", "mc");
}

TEST_WITH_LIMIT(cudalike, every_failure_dcu, 60) {
    check_every_failure("dcu-direct", "dcu-direct/libgalaxyhip.so.5", "hip", "hip");
}

TEST_WITH_LIMIT(cudalike, every_failure_gcu, 60) {
    check_every_failure("gcu", "gcu/libtopsrt.so", "tops", "tops");
}

/* --- the current device ----------------------------------------------------------------------- */

TEST(cudalike, the_threads_device_is_put_back) {
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    CHECK_INT(call_i(fake, "musaSetDevice", 1), 0); /* Another framework's wish. */
    CHECK_OK(use_every_slot(d, 0));
    int device = -1;
    CHECK_INT(call_p(fake, "musaGetDevice", &device), 0);
    CHECK_INT(device, 1);
    /* Also after a failure. */
    void *ptr;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_INT(call_p(fake, "musaGetDevice", &device), 0);
    CHECK_INT(device, 1);
}

TEST(cudalike, no_context_is_made_where_nobody_wants_one) {
    use_fakes("");
    const fl_driver *d = open_platform("cuda-direct");
    void *fake = fake_of("cuda-direct/libcudart.so.13");
    int (*state)(int, unsigned *, int *);
    void *symbol = fake_symbol(fake, "cuDevicePrimaryCtxGetState");
    memcpy(&state, &symbol, sizeof(state));
    unsigned flags;
    int active = 1;
    CHECK_INT(state(0, &flags, &active), 0);
    CHECK_INT(active, 0); /* Opening and counting have made none. */
    CHECK_OK(use_every_slot(d, 1));
    CHECK_INT(state(1, &flags, &active), 0);
    CHECK_INT(active, 1);
    fl_native_stream stream;
    CHECK_OK(d->stream_create(d->ctx, 1, 0, &stream));
    CHECK_OK(d->stream_destroy(d->ctx, 1, stream));
}

TEST(cudalike, a_bad_device_is_out_of_range) {
    use_fakes("");
    const fl_driver *d = open_platform("gcu");
    CHECK_STATUS(d->device_synchronize(d->ctx, 40), FL_OUT_OF_RANGE);
    CHECK_INT(fl_last_vendor_code(), 101);
    CHECK_CONTAINS(fl_last_message(), "making device 40 current: topsSetDevice: invalid device");
}

/* --- libraries -------------------------------------------------------------------------------- */

static const fl_driver *open_row(const fl_platform *platform) {
    const fl_driver *driver = NULL;
    CHECK_OK(platform->open(platform, &driver));
    return driver;
}

TEST(cudalike, a_library_that_is_loaded_is_shared) {
    /* Another framework has its own copy in a place that nobody told us. */
    void *theirs = dlopen(FAKES "/musa/libmusart.so.5", RTLD_NOW | RTLD_LOCAL);
    CHECK(theirs != NULL);
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, NULL));
    const fl_driver *d = open_row(&fl__platform_musa);
    int before = fake_calls(theirs, "musaDeviceSynchronize");
    CHECK_OK(d->device_synchronize(d->ctx, 0));
    CHECK_INT(fake_calls(theirs, "musaDeviceSynchronize"), before + 1);
}

TEST(cudalike, a_row_is_loaded_once) {
    use_fakes("");
    CHECK_POINTER(open_row(&fl__platform_musa), open_row(&fl__platform_musa));
}

TEST(cudalike, two_vendors_in_one_process) {
    use_fakes("");
    const fl_driver *musa = open_row(&fl__platform_musa), *gcu = open_row(&fl__platform_gcu);
    const fl_driver *cuda = open_row(&fl__platform_cuda_direct);
    const fl_driver *ppu = open_row(&fl__platform_ppu_direct); /* The same names as CUDA. */
    const fl_driver *all[] = {musa, gcu, cuda, ppu};
    static const char *const names[] = {"Fake MUSA 0", "Fake GCU 0", "Fake CUDA 0", "Fake PPU 0"};
    for (int i = 0; i < 4; i++) {
        fl_device_properties p;
        CHECK_OK(all[i]->init(all[i]->ctx));
        CHECK_OK(use_every_slot(all[i], 0));
        CHECK_OK(all[i]->device_properties(all[i]->ctx, 0, &p));
        CHECK_STRING(p.name, names[i]);
    }
}

/* --- slots that need more than a call --------------------------------------------------------- */

static void *run_launch(const char *platform) {
    use_fakes("");
    const fl_driver *d = open_platform(platform);
    static const char image[] = FAKE_IMAGE;
    void *module, *function, *data;
    fl_native_stream stream;
    uint32_t count = 1000, addend = 7;
    static uint32_t in[1024], out[1024];
    for (uint32_t i = 0; i < 1024; i++) {
        in[i] = i * i;
    }
    CHECK_OK(d->stream_create(d->ctx, 1, 0, &stream));
    CHECK_OK(d->mem_alloc(d->ctx, 1, sizeof(in), &data));
    CHECK_OK(d->copy(d->ctx, 1, data, in, sizeof(in), FL_COPY_HOST_TO_DEVICE, stream));
    CHECK_OK(d->module_load(d->ctx, 1, image, sizeof(image), &module));
    CHECK_OK(d->module_function(d->ctx, 1, module, "add_u32", &function));
    void *arguments[] = {&data, &count, &addend};
    const uint32_t grid[3] = {8, 1, 1}, block_size[3] = {128, 1, 1};
    CHECK_OK(d->launch(d->ctx, 1, function, grid, block_size, 0, stream, arguments));
    addend = 0; /* Arguments are read when the launch is queued. */
    CHECK_OK(d->copy(d->ctx, 1, out, data, sizeof(out), FL_COPY_DEVICE_TO_HOST, stream));
    CHECK_OK(d->stream_synchronize(d->ctx, 1, stream));
    for (uint32_t i = 0; i < 1024; i++) {
        CHECK_UINT(out[i], i * i + (i < count ? 7 : 0));
    }
    const uint32_t too_wide[3] = {2048, 1, 1};
    CHECK_STATUS(d->launch(d->ctx, 1, function, grid, too_wide, 0, stream, arguments),
                 FL_INVALID_ARGUMENT);
    CHECK_STATUS(d->launch(d->ctx, 1, function, grid, block_size, 1 << 20, stream, arguments),
                 FL_INVALID_ARGUMENT);
    CHECK_STATUS(d->module_function(d->ctx, 1, module, "sub_u32", &function), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "sub_u32");
    CHECK_STATUS(d->module_load(d->ctx, 1, "no image at all, but long enough", 8, &module),
                 FL_INVALID_ARGUMENT);
    return NULL;
}

TEST(cudalike, launch_through_the_driver_library) {
    (void)run_launch("cuda-direct");
}

TEST(cudalike, launch_through_the_runtime) {
    (void)run_launch("dcu-direct");
}

TEST(cudalike, launch_musa) {
    (void)run_launch("musa");
}

TEST(cudalike, capturing) {
    use_fakes("");
    const fl_driver *d = open_platform("cuda-direct");
    void *fake = fake_of("cuda-direct/libcudart.so.13");
    int (*begin)(void *, int);
    int (*end)(void *, void **);
    void *symbol = fake_symbol(fake, "cudaStreamBeginCapture");
    memcpy(&begin, &symbol, sizeof(begin));
    symbol = fake_symbol(fake, "cudaStreamEndCapture");
    memcpy(&end, &symbol, sizeof(end));
    fl_native_stream stream;
    bool capturing = true;
    void *graph;
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->stream_is_capturing(d->ctx, 0, stream, &capturing));
    CHECK(!capturing);
    CHECK_INT(begin(stream, 0), 0);
    CHECK_OK(d->stream_is_capturing(d->ctx, 0, stream, &capturing));
    CHECK(capturing);
    CHECK_INT(end(stream, &graph), 0);
    CHECK_OK(d->stream_is_capturing(d->ctx, 0, stream, &capturing));
    CHECK(!capturing);
}

TEST(cudalike, the_older_host_call) {
    use_fakes("");
    const fl_driver *d = open_platform("gcu");
    void *fake = fake_of("gcu/libtopsrt.so");
    fl_native_stream stream;
    int open = 1;
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->stream_host_call(d->ctx, 0, stream, block, &open));
    CHECK_OK(d->stream_synchronize(d->ctx, 0, stream));
    CHECK_INT(fake_calls(fake, "topsStreamAddCallback"), 1);
    fake_fail(fake, "topsStreamAddCallback", 1, 1);
    CHECK_STATUS(d->stream_host_call(d->ctx, 0, stream, block, &open), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "topsStreamAddCallback");
}

TEST(cudalike, peer_copies_that_cannot_be_ordered) {
    use_fakes("");
    const fl_driver *d = open_platform("gcu");
    void *fake = fake_of("gcu/libtopsrt.so");
    CHECK_OK(use_every_slot(d, 1));
    CHECK_INT(fake_calls(fake, "topsMemcpyPeer"), 1);
    CHECK_INT(fake_calls(fake, "topsMemcpyPeerAsync"), 0);
    bool can = false; /* The answer is a mask of links. */
    CHECK_OK(d->peer_can_access(d->ctx, 0, 1, &can));
    CHECK(can);
}

TEST(cudalike, access_to_a_peer_is_asked_for_once) {
    use_fakes("");
    const fl_driver *d = open_platform("musa");
    void *fake = fake_of("musa/libmusart.so.5");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(use_every_slot(d, 0));
    }
    CHECK_INT(fake_calls(fake, "musaDeviceEnablePeerAccess"), 1);
    CHECK_INT(call_i(fake, "musaSetDevice", 1), 0);
    int (*enable)(int, unsigned);
    void *symbol = fake_symbol(fake, "musaDeviceEnablePeerAccess");
    memcpy(&enable, &symbol, sizeof(enable));
    CHECK_INT(enable(0, 0), 0);
    CHECK_OK(use_every_slot(d, 1)); /* 704, enabled already, is no failure. */
    CHECK_INT(call_p(fake, "musaPeekAtLastError", NULL), 0);
}

TEST(cudalike, events_between_processes_keep_no_time) {
    use_fakes("");
    const fl_driver *d = open_platform("cuda-direct");
    fl_native_event event;
    CHECK_OK(d->event_create(d->ctx, 0, FL_EVENT_INTERPROCESS | FL_EVENT_TIMING, &event));
    CHECK_OK(d->event_destroy(d->ctx, 0, event));
}

/* Zero bytes and NULL are answered before a vendor, who may call them errors, hears of them. */
TEST(cudalike, nothing_of_size_zero_reaches_the_runtime) {
    use_fakes("");
    const fl_driver *d = open_platform("cuda-direct");
    void *fake = fake_of("cuda-direct/libcudart.so.13");
    fl_native_stream stream;
    CHECK_OK(fl__drv_stream_create(d, 0, 0, &stream));
    int before = fake_calls(fake, NULL);
    void *ptr = &ptr;
    char byte = 0;
    CHECK_OK(fl__drv_mem_alloc(d, 0, 0, &ptr));
    CHECK_POINTER(ptr, NULL);
    CHECK_OK(fl__drv_mem_free(d, 0, NULL));
    CHECK_OK(fl__drv_host_free(d, NULL));
    CHECK_OK(fl__drv_copy(d, 0, &byte, &byte, 0, FL_COPY_HOST_TO_HOST, stream));
    CHECK_OK(fl__drv_fill(d, 0, &byte, 0, 0, stream));
    CHECK_OK(fl__drv_copy_2d(d, 0, &byte, 8, &byte, 8, 0, 4, FL_COPY_HOST_TO_DEVICE, stream));
    CHECK_OK(fl__drv_copy_2d(d, 0, &byte, 8, &byte, 8, 4, 0, FL_COPY_HOST_TO_DEVICE, stream));
    CHECK_INT(fake_calls(fake, NULL), before);
}
