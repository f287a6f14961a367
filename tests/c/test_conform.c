/*
 * test_conform.c: the conformance suite on every driver that this machine can have, and on drivers
 * with a defect, which it must notice.
 */
#define _GNU_SOURCE
#include <string.h>

#include "base/options.h"
#include "driver/host.h"
#include "driver/sim.h"
#include "driver/wrap.h"
#include "fl/conformance.h"
#include "harness.h"
#include "vendor_test.h"

typedef struct tally {
    int counts[5];
    char failed[1024], skipped[1024];
} tally;

static void append(char *list, size_t size, const char *name) {
    if (strlen(list) + strlen(name) + 2 < size) {
        strcat(list, *list ? " " : "");
        strcat(list, name);
    }
}

static void count(void *user, const char *name, fl_conformance_result result, const char *text) {
    tally *t = user;
    t->counts[result]++;
    if (result == FL_CONFORMANCE_FAILED || result == FL_CONFORMANCE_UNEXPECTED) {
        test_note("%s: %s: %s", name, fl_conformance_word(result), text);
        append(t->failed, sizeof(t->failed), name);
    }
    if (result == FL_CONFORMANCE_SKIPPED) {
        append(t->skipped, sizeof(t->skipped), name);
    }
}

static size_t case_count(void) {
    size_t n = 0;
    while (fl_conformance_case(n)) {
        n++;
    }
    return n;
}

/* All cases pass but those in `skipped` and `cannot` many that the driver declares. */
static void conforms(const fl_driver *driver, const char *skipped, int cannot) {
    tally t = {.counts = {0}};
    int failures = fl_conformance_run(driver, NULL, count, &t);
    CHECK_STRING(t.failed, "");
    CHECK_INT(failures, 0);
    CHECK_STRING(t.skipped, skipped);
    CHECK_INT(t.counts[FL_CONFORMANCE_CANNOT], cannot);
    int all = 0;
    for (int i = 0; i < 5; i++) {
        all += t.counts[i];
    }
    CHECK_INT(all, case_count());
}

enum { LIMIT_S = 120 };

TEST_WITH_LIMIT(conform, sim, LIMIT_S) {
    conforms(fl__sim_driver(), "", 0);
}

TEST_WITH_LIMIT(conform, sim_with_delays, LIMIT_S) {
    CHECK_OK(fl_option_set(FL_OPT_SIM_DELAY_US, "300"));
    CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, "4"));
    conforms(fl__sim_driver(), "", 0);
}

TEST_WITH_LIMIT(conform, host, LIMIT_S) {
    const fl_driver *driver = NULL;
    CHECK_OK(fl__platform_cpu.open(&fl__platform_cpu, &driver));
    tally t = {.counts = {0}};
    CHECK_INT(fl_conformance_run(driver, NULL, count, &t), 0);
    CHECK_STRING(t.failed, "");
}

static void fake_conforms(const char *name, const char *skipped, int cannot) {
    use_fakes("");
    conforms(open_platform(name), skipped, cannot);
}

TEST_WITH_LIMIT(conform, cuda_direct, LIMIT_S) {
    fake_conforms("cuda-direct", "", 0);
}

TEST_WITH_LIMIT(conform, ppu_direct, LIMIT_S) {
    fake_conforms("ppu-direct", "", 0);
}

TEST_WITH_LIMIT(conform, metax_direct, LIMIT_S) {
    fake_conforms("metax-direct", "stream.not_capturing", 0);
}

TEST_WITH_LIMIT(conform, musa, LIMIT_S) {
    fake_conforms("musa", "", 0);
}

TEST_WITH_LIMIT(conform, dcu_direct, LIMIT_S) {
    fake_conforms("dcu-direct", "", 0);
}

TEST_WITH_LIMIT(conform, gcu, LIMIT_S) {
    fake_conforms("gcu", "stream.not_capturing", 2);
}

TEST_WITH_LIMIT(conform, ascend, LIMIT_S) {
    fake_conforms("ascend", "", 0);
}

TEST_WITH_LIMIT(conform, tsingmicro, LIMIT_S) {
    fake_conforms("tsingmicro", "copy.peer_access stream.not_capturing", 4);
}

TEST_WITH_LIMIT(conform, ascend_old, LIMIT_S) {
    use_fakes("old");
    conforms(open_platform("ascend"),
             "device.synchronize_all_streams stream.query_busy stream.independent "
             "stream.independent_devices stream.in_order stream.synchronize_from_threads "
             "stream.priority stream.host_calls stream.host_call_after_copy event.query "
             "event.in_the_middle event.record_again event.wait event.wait_across_devices "
             "event.wait_for_last_record event.destroy_pending event.elapsed_pending "
             "event.synchronize_from_threads",
             0);
}

TEST_WITH_LIMIT(conform, tsingmicro_old, LIMIT_S) {
    use_fakes("old");
    conforms(open_platform("tsingmicro"), "copy.peer_access stream.not_capturing", 4);
}

/* --- the suite itself ------------------------------------------------------------------------- */

static fl_driver broken; /* Sim with a defect. */

static void notices(const char *prefix, const char *failed) {
    tally t = {.counts = {0}};
    int failures = fl_conformance_run(&broken, prefix, count, &t);
    CHECK_STRING(t.failed, failed);
    CHECK(failures > 0);
}

static fl_status succeed(void *ctx, fl_device device, fl_native_stream stream,
                         fl_native_event event) {
    (void)ctx, (void)device, (void)stream, (void)event;
    return FL_OK;
}

TEST(conform, notices_a_wait_that_does_not_wait) {
    broken = *fl__sim_driver();
    broken.stream_wait_event = succeed;
    notices("event.wait", "event.wait event.wait_across_devices event.wait_for_last_record");
}

static fl_status query_done(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx, (void)device, (void)stream;
    return FL_OK;
}

TEST(conform, notices_a_query_that_is_always_done) {
    broken = *fl__sim_driver();
    broken.stream_query = query_done;
    notices("stream.query", "stream.query_busy");
    broken = *fl__sim_driver();
    broken.event_query = query_done;
    notices("event.query", "event.query");
}

static fl_status fill_short(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                            fl_native_stream stream) {
    const fl_driver *sim = fl__sim_driver();
    return bytes > 1 ? sim->fill(ctx, device, dst, value, bytes - 1, stream) : FL_OK;
}

TEST(conform, notices_a_fill_that_is_one_byte_short) {
    broken = *fl__sim_driver();
    broken.fill = fill_short;
    notices("copy.fill", "copy.fill");
}

static fl_status copy_waits_for_all(void *ctx, fl_device device, void *dst, const void *src,
                                    size_t bytes, fl_copy_kind kind, fl_native_stream stream) {
    const fl_driver *sim = fl__sim_driver();
    FL_TRY(sim->device_synchronize(ctx, device));
    return sim->copy(ctx, device, dst, src, bytes, kind, stream);
}

TEST(conform, notices_streams_that_wait_for_each_other) {
    broken = *fl__sim_driver();
    broken.copy = copy_waits_for_all;
    notices("stream.independent", "stream.independent");
}

static fl_status alloc_unaligned(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    const fl_driver *sim = fl__sim_driver();
    void *ptr = NULL;
    FL_TRY(sim->mem_alloc(ctx, device, bytes + 64, &ptr));
    *out_ptr = (char *)ptr + 64;
    return FL_OK;
}

static fl_status free_unaligned(void *ctx, fl_device device, void *ptr) {
    return fl__sim_driver()->mem_free(ctx, device, (char *)ptr - 64);
}

TEST(conform, notices_alignment) {
    broken = *fl__sim_driver();
    broken.mem_alloc = alloc_unaligned;
    broken.mem_free = free_unaligned;
    notices("memory.alignment", "memory.alignment");
}

static fl_status alloc_says_invalid(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    fl_status status = fl__sim_driver()->mem_alloc(ctx, device, bytes, out_ptr);
    return status ? fl_fail(FL_DEVICE_ERROR, "no") : status;
}

TEST(conform, notices_a_wrong_status) {
    broken = *fl__sim_driver();
    broken.mem_alloc = alloc_says_invalid;
    notices("memory.too_large", "memory.too_large");
}

TEST(conform, notices_an_unexpected_pass_and_a_limit_for_nothing) {
    static const fl_driver_limit limits[] = {
        {"copy.fill", "nobody has tried"}, {"copy.fil", "misspelled"}, {NULL, NULL}};
    broken = *fl__sim_driver();
    broken.limits = limits;
    notices("copy.fill", "copy.fil copy.fill");
}

TEST(conform, notices_what_cannot_be_released) {
    static fl__fault fault;
    fl__fault_wrap(&fault, fl__sim_driver());
    fl__fault_arm(&fault, FL__SLOT_EVENT, 2, FL_DEVICE_ERROR, true);
    broken = fault.table;
    notices("event.interprocess", "event.interprocess");
}

TEST(conform, a_driver_without_a_device_is_one_failure) {
    tally t = {.counts = {0}};
    broken = *fl__sim_driver();
    broken.copy = NULL;
    CHECK_INT(fl_conformance_run(&broken, NULL, count, &t), -1);
    CHECK_STRING(t.failed, "driver");
    CHECK_STRING(fl_conformance_word(FL_CONFORMANCE_CANNOT), "cannot");
    CHECK_STRING(fl_conformance_word((fl_conformance_result)9), "no result");
}
