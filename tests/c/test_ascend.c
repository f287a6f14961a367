/*
 * test_ascend.c: the driver over AscendCL against its fake.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "driver/vendors.h"
#include "fl/debug.h"
#include "harness.h"
#include "vendor_test.h"

static void *fake(void) {
    return fake_of("ascend/libascendcl.so");
}

static int last_error(void *library) {
    int (*peek)(int);
    void *symbol = fake_symbol(library, "aclrtPeekAtLastError");
    memcpy(&peek, &symbol, sizeof(peek));
    return peek(0);
}

TEST(ascend, properties) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    fl_device_properties p;
    CHECK_OK(d->device_properties(d->ctx, 1, &p));
    CHECK_STRING(p.name, "Ascend910Fake");
    CHECK_UINT(p.total_memory, fl_option_int(FL_OPT_SIM_MEMORY));
    CHECK_INT(p.processor_count, 24);
    CHECK_INT(p.major, 0);
    /* Without the attribute, from the memory information. */
    fake_fail(fake(), "aclrtGetDeviceInfo", 2, 107000);
    CHECK_OK(d->device_properties(d->ctx, 1, &p));
    CHECK_UINT(p.total_memory, fl_option_int(FL_OPT_SIM_MEMORY));
    CHECK_INT(last_error(fake()), 0);
}

TEST(ascend, someone_else_has_initialised) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    CHECK_OK(d->init(d->ctx)); /* 100002: already. */
    CHECK_INT(last_error(fake()), 0);
    fake_fail(fake(), "aclInit", 1, 500000);
    CHECK_STATUS(d->init(d->ctx), FL_DEVICE_ERROR);
    CHECK_CONTAINS(fl_last_message(), "aclInit");
}

TEST(ascend, no_device_is_no_failure) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    int32_t count = -1;
    fake_fail(fake(), "aclrtGetDeviceCount", 1, 207004);
    CHECK_OK(d->device_count(d->ctx, &count));
    CHECK_INT(count, 0);
    fake_fail(fake(), "aclrtGetDeviceCount", 1, 507899);
    CHECK_STATUS(d->device_count(d->ctx, &count), FL_DEVICE_ERROR);
}

TEST(ascend, the_words_are_the_vendors) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    void *ptr = &ptr;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_POINTER(ptr, &ptr);
    CHECK_INT(fl_last_vendor_code(), 207001);
    CHECK_STRING(fl_last_message(),
                 "ascend: allocating 35184372088832 bytes on device 0: aclrtMalloc: "
                 "EZ9999: [fake] aclrtMalloc failed with 207001 (207001)");
    CHECK_INT(last_error(fake()), 0);
    const char *(*recent)(void);
    void *symbol = fake_symbol(fake(), "aclGetRecentErrMsg");
    memcpy(&recent, &symbol, sizeof(recent));
    CHECK_STRING(recent(), ""); /* Fetched, so that no later report holds it. */
}

TEST(ascend, numbers_become_statuses) {
    static const struct {
        int code;
        fl_status status;
    } rows[] = {
        {207001, FL_OUT_OF_MEMORY}, {207018, FL_OUT_OF_MEMORY},    {200000, FL_OUT_OF_MEMORY},
        {107001, FL_OUT_OF_RANGE},  {200002, FL_OUT_OF_RANGE},     {207004, FL_UNAVAILABLE},
        {100039, FL_UNAVAILABLE},   {207000, FL_NOT_SUPPORTED},    {200001, FL_NOT_SUPPORTED},
        {507004, FL_INTERNAL},      {507006, FL_INTERNAL},         {107000, FL_INVALID_ARGUMENT},
        {507015, FL_DEVICE_LOST},   {107017, FL_INVALID_ARGUMENT}, {507899, FL_DEVICE_ERROR},
    };
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_note("code %d", rows[i].code);
        fake_fail(fake(), "aclrtSynchronizeDevice", 1, rows[i].code);
        CHECK_STATUS(d->device_synchronize(d->ctx, 0), rows[i].status);
        CHECK_INT(last_error(fake()), 0);
    }
}

static void check_nothing_sticks(void *library) {
    CHECK_INT(last_error(library), 0);
}

TEST_WITH_LIMIT(ascend, every_failure, 60) {
    static const char *const tolerated[] = {"aclrtGetLastError", "aclrtGetDevice",
                                            "aclrtGetDeviceInfo", "aclrtSetDevice", NULL};
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    fail_every_call(d, fake(), 500000, tolerated, "aclrtFree", check_nothing_sticks);
}

/* --- the current device ----------------------------------------------------------------------- */

static void *use_on_thread(void *argument) {
    const fl_driver *d = argument;
    void *ptr, *host;
    CHECK_OK(d->host_alloc(d->ctx, 100, &host)); /* No device, and none named. */
    CHECK_OK(d->mem_alloc(d->ctx, 1, 100, &ptr));
    CHECK_OK(d->mem_free(d->ctx, 1, ptr));
    CHECK_OK(d->host_free(d->ctx, host));
    return NULL;
}

TEST(ascend, a_thread_has_no_device_of_its_own) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, use_on_thread, (void *)(uintptr_t)d), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
}

TEST(ascend, the_threads_device_is_put_back) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    int (*set)(int32_t), (*get)(int32_t *);
    void *symbol = fake_symbol(fake(), "aclrtSetDevice");
    memcpy(&set, &symbol, sizeof(set));
    symbol = fake_symbol(fake(), "aclrtGetDevice");
    memcpy(&get, &symbol, sizeof(get));
    CHECK_INT(set(1), 0);
    CHECK_OK(use_every_slot(d, 0));
    int32_t device = -1;
    CHECK_INT(get(&device), 0);
    CHECK_INT(device, 1);
}

TEST(ascend, a_bad_device_is_out_of_range) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    CHECK_STATUS(d->device_synchronize(d->ctx, 33), FL_OUT_OF_RANGE);
    CHECK_CONTAINS(fl_last_message(), "making device 33 current: aclrtSetDevice");
}

/* --- memory ----------------------------------------------------------------------------------- */

TEST(ascend, blocks_are_moved_to_256) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    uint64_t before, after, total;
    CHECK_OK(d->mem_info(d->ctx, 0, &before, &total));
    void *blocks[8];
    for (int i = 0; i < 8; i++) { /* The fake's blocks begin 64 bytes behind a page. */
        CHECK_OK(d->mem_alloc(d->ctx, 0, 1000, &blocks[i]));
        CHECK_INT((uintptr_t)blocks[i] % 256, 0);
    }
    for (int i = 0; i < 8; i++) {
        CHECK_OK(d->mem_free(d->ctx, 0, blocks[(i * 3) % 8]));
    }
    CHECK_OK(d->mem_info(d->ctx, 0, &after, &total));
    CHECK_UINT(after, before);
    /* The second attempt fails: nothing is kept, and the message says what was asked for. */
    fake_fail(fake(), "aclrtMalloc", 2, 207018);
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, 1000, &blocks[0]), FL_OUT_OF_MEMORY);
    CHECK_OK(d->mem_info(d->ctx, 0, &after, &total));
    CHECK_UINT(after, before);
}

static void block(void *argument) {
    while (!__atomic_load_n((int *)argument, __ATOMIC_ACQUIRE)) {
        test_pause_ms(1);
    }
}

/* A free that fails changes nothing: the block can be freed once it is idle. */
TEST(ascend, a_free_waits_for_nothing) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    void *ptr;
    int open = 0;
    fl_native_stream stream;
    CHECK_OK(d->mem_alloc(d->ctx, 0, 1000, &ptr));
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->stream_host_call(d->ctx, 0, stream, block, &open));
    CHECK_OK(d->fill(d->ctx, 0, ptr, 1, 1000, stream));
    CHECK_STATUS(d->mem_free(d->ctx, 0, ptr), FL_DEVICE_ERROR);
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    CHECK_OK(d->stream_synchronize(d->ctx, 0, stream));
    CHECK_OK(d->mem_free(d->ctx, 0, ptr));
    CHECK_OK(d->stream_destroy(d->ctx, 0, stream));
}

TEST(ascend, unaligned_copies_on_the_device) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    char *one, *two;
    unsigned char in[512], out[512];
    fl_native_stream stream;
    for (int i = 0; i < 512; i++) {
        in[i] = (unsigned char)(i * 7);
    }
    CHECK_OK(d->mem_alloc(d->ctx, 0, 1024, (void **)&one));
    CHECK_OK(d->mem_alloc(d->ctx, 0, 1024, (void **)&two));
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->copy(d->ctx, 0, one + 3, in, 512, FL_COPY_HOST_TO_DEVICE, stream));
    int before = fake_calls(fake(), "aclrtMemcpy");
    CHECK_OK(d->copy(d->ctx, 0, two + 64, one + 3, 512, FL_COPY_DEVICE_TO_DEVICE, stream));
    CHECK_INT(fake_calls(fake(), "aclrtMemcpy"), before + 1); /* Refused, and done by the other. */
    CHECK_OK(d->copy(d->ctx, 0, one, two + 64, 512, FL_COPY_DEVICE_TO_DEVICE, stream));
    CHECK_INT(fake_calls(fake(), "aclrtMemcpy"), before + 1); /* Aligned: not needed. */
    CHECK_OK(d->copy(d->ctx, 0, out, one, 512, FL_COPY_DEVICE_TO_HOST, stream));
    CHECK_OK(d->stream_synchronize(d->ctx, 0, stream));
    CHECK_BYTES(out, in, 512);
    /* A wrong parameter of another kind is not tried again. */
    CHECK_STATUS(d->copy(d->ctx, 0, two, in, 512, FL_COPY_DEVICE_TO_DEVICE, stream),
                 FL_INVALID_ARGUMENT);
}

TEST(ascend, pitched_copies_within_the_host) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    fl_native_stream stream;
    char in[4 * 8] = "aaaabbbbccccddddeeeeffffgggghhhh", out[8 * 6];
    memset(out, '.', sizeof(out));
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    CHECK_OK(d->copy_2d(d->ctx, 0, out, 6, in, 4, 4, 8, FL_COPY_HOST_TO_HOST, stream));
    CHECK_BYTES(out, "aaaa..bbbb..cccc..dddd..eeee..ffff..gggg..hhhh..", sizeof(out));
}

TEST(ascend, access_to_a_peer_is_needed_in_the_direction_of_use) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    CHECK_OK(use_every_slot(d, 0));
    CHECK_OK(use_every_slot(d, 0));
    CHECK_INT(fake_calls(fake(), "aclrtDeviceEnablePeerAccess"), 1);
    CHECK_OK(use_every_slot(d, 1));
    CHECK_INT(fake_calls(fake(), "aclrtDeviceEnablePeerAccess"), 2);
}

TEST(ascend, capturing) {
    use_fakes("");
    const fl_driver *d = open_platform("ascend");
    int (*begin)(void *, int);
    void *symbol = fake_symbol(fake(), "aclmdlRICaptureBegin");
    memcpy(&begin, &symbol, sizeof(begin));
    fl_native_stream stream;
    bool capturing = false;
    CHECK_OK(d->stream_create(d->ctx, 0, 3, &stream));
    CHECK_INT(begin(stream, 0), 0);
    CHECK_OK(d->stream_is_capturing(d->ctx, 0, stream, &capturing));
    CHECK(capturing);
}

TEST(ascend, an_older_release_has_fewer_slots) {
    use_fakes("old");
    const fl_driver *d = open_platform("ascend");
    CHECK(d->stream_host_call == NULL);
    CHECK(d->stream_priority_range == NULL);
    CHECK(d->event_elapsed_ms != NULL);
    CHECK_OK(use_every_slot(d, 0));
}

TEST(ascend, the_library_is_opened_once) {
    use_fakes("");
    const fl_driver *first = NULL, *second = NULL;
    CHECK_OK(fl__platform_ascend.open(&fl__platform_ascend, &first));
    CHECK_OK(fl__platform_ascend.open(&fl__platform_ascend, &second));
    CHECK_POINTER(first, second);
}
