/*
 * test_tsingmicro.c: the driver over the TX runtime against its fake.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "driver/vendors.h"
#include "fl/debug.h"
#include "harness.h"
#include "vendor_test.h"

static void *fake(void) {
    return fake_of("tsingmicro/libhpgr.so");
}

TEST(tsingmicro, properties) {
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    fl_device_properties p;
    CHECK_OK(d->device_properties(d->ctx, 1, &p));
    CHECK_STRING(p.name, "TsingMicro TX8");
    CHECK_UINT(p.total_memory, fl_option_int(FL_OPT_SIM_MEMORY));
}

TEST(tsingmicro, the_words_say_what_a_number_means) {
    static const struct {
        int code;
        fl_status status;
    } rows[] = {
        {0x46000001, FL_INVALID_ARGUMENT}, {0x46000002, FL_OUT_OF_MEMORY},
        {0x46000003, FL_INVALID_ARGUMENT}, {0x46000004, FL_INTERNAL},
        {0x46000006, FL_NOT_SUPPORTED},    {0x43000003, FL_UNAVAILABLE},
        {0x46000005, FL_DEVICE_ERROR},
    };
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_note("code 0x%x", (unsigned)rows[i].code);
        fake_fail(fake(), "txDeviceSynchronize", 1, rows[i].code);
        CHECK_STATUS(d->device_synchronize(d->ctx, 0), rows[i].status);
    }
    void *ptr;
    CHECK_STATUS(d->mem_alloc(d->ctx, 1, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_STRING(fl_last_message(),
                 "tsingmicro: allocating 35184372088832 bytes on device 1: txMalloc: "
                 "TX_ERROR_OUT_OF_MEMORY (0x46000002)");
    CHECK_INT(fl_last_vendor_code(), 0x46000002);
}

/* Without words a number may be given; without both, nothing is guessed. */
TEST(tsingmicro, not_ready_as_an_option) {
    CHECK_INT(setenv("FL_FAKE_TX_WORDS", "0", 1), 0);
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    fl_native_event event;
    CHECK_OK(d->event_create(d->ctx, 0, 0, &event));
    fake_fail(fake(), "txEventQuery", 1, 0x46000004);
    CHECK_STATUS(d->event_query(d->ctx, 0, event), FL_DEVICE_ERROR);
    CHECK_CONTAINS(fl_last_message(), "txEventQuery: no text (0x46000004)");
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_NOT_READY, "1174405124"));
    fake_fail(fake(), "txEventQuery", 1, 0x46000004);
    CHECK_STATUS(d->event_query(d->ctx, 0, event), FL_NOT_READY);
    fake_fail(fake(), "txEventQuery", 1, 0x46000005);
    CHECK_STATUS(d->event_query(d->ctx, 0, event), FL_DEVICE_ERROR);
}

static void check_nothing(void *library) {
    (void)library; /* The runtime keeps no last error. */
}

TEST_WITH_LIMIT(tsingmicro, every_failure, 60) {
    static const char *const tolerated[] = {"txGetDevice", "txSetDevice", NULL};
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    fail_every_call(d, fake(), 0x46000005, tolerated, "txFree", check_nothing);
}

TEST_WITH_LIMIT(tsingmicro, every_failure_of_an_older_release, 60) {
    static const char *const tolerated[] = {"txGetDevice", "txSetDevice", NULL};
    use_fakes("old");
    const fl_driver *d = open_platform("tsingmicro");
    fail_every_call(d, fake_of("old/tsingmicro/libhpgr.so"), 0x46000005, tolerated, "txFree",
                    check_nothing);
}

TEST(tsingmicro, the_threads_device_is_put_back) {
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    int (*set)(uint32_t), (*get)(uint32_t *);
    void *symbol = fake_symbol(fake(), "txSetDevice");
    memcpy(&set, &symbol, sizeof(set));
    symbol = fake_symbol(fake(), "txGetDevice");
    memcpy(&get, &symbol, sizeof(get));
    CHECK_INT(set(1), 0);
    CHECK_OK(use_every_slot(d, 0));
    uint32_t device = 9;
    CHECK_INT(get(&device), 0);
    CHECK_INT(device, 1);
    /* Where the runtime cannot say, the device is set and stays. */
    fake_fail(fake(), "txGetDevice", 1, 0x46000005);
    CHECK_OK(d->device_synchronize(d->ctx, 0));
    CHECK_INT(get(&device), 0);
    CHECK_INT(device, 0);
}

TEST(tsingmicro, blocks_are_moved_to_256) {
    use_fakes("");
    const fl_driver *d = open_platform("tsingmicro");
    void *ptr;
    CHECK_OK(d->mem_alloc(d->ctx, 0, 10, &ptr));
    CHECK_INT((uintptr_t)ptr % 256, 0);
    fake_fail(fake(), "txFree", 1, 0x46000005);
    CHECK_STATUS(d->mem_free(d->ctx, 0, ptr), FL_DEVICE_ERROR);
    CHECK_OK(d->mem_free(d->ctx, 0, ptr)); /* As before the failure. */
    fake_fail(fake(), "txMalloc", 2, 0x46000002);
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, 10, &ptr), FL_OUT_OF_MEMORY);
}

TEST(tsingmicro, the_library_is_opened_once) {
    use_fakes("");
    const fl_driver *first = NULL, *second = NULL;
    CHECK_OK(fl__platform_tsingmicro.open(&fl__platform_tsingmicro, &first));
    CHECK_OK(fl__platform_tsingmicro.open(&fl__platform_tsingmicro, &second));
    CHECK_POINTER(first, second);
}
