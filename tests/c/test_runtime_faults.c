/*
 * test_runtime_faults.c: devices, streams and events over a driver each of whose calls fails once.
 */
#include <stdlib.h>

#include "fl/device.h"
#include "fl/stream.h"
#include "harness.h"
#include "rig.h"

/* What a use of the runtime makes; released also after a failure. */
typedef struct made {
    fl_stream own, pooled;
    fl_event *start, *end;
} made;

enum { NOTHING = -7 };

static void set_bit(void *argument) {
    __atomic_store_n((bool *)argument, true, __ATOMIC_RELEASE);
}

/* A chain of calls in which each needs the ones before it. Stops at the first failure. */
static fl_status use(made *it, bool *ran) {
    const fl_device_properties *properties = NULL;
    fl_native_stream native = NULL;
    int32_t least = NOTHING, greatest = NOTHING, priority = NOTHING;
    uint64_t free_bytes, total;
    double ms = NOTHING;
    bool can = false;
    FL_TRY(fl_device_set_current(0));
    FL_TRY(fl_device_get_properties(0, &properties));
    CHECK(properties->name[0]);
    FL_TRY(fl_device_memory_info(0, &free_bytes, &total));
    FL_TRY(fl_device_can_access_peer(0, 1, &can));
    FL_TRY(fl_stream_priority_range(0, &least, &greatest));
    FL_TRY(fl_stream_create(0, greatest, &it->own));
    FL_TRY(fl_stream_from_pool(0, 0, &it->pooled));
    FL_TRY(fl_stream_priority(0, it->own, &priority));
    CHECK_INT(priority, greatest);
    FL_TRY(fl_stream_native(0, it->pooled, &native));
    FL_TRY(fl_event_create(0, FL_EVENT_TIMING, &it->start));
    FL_TRY(fl_event_create(0, FL_EVENT_TIMING, &it->end));
    FL_TRY(fl_event_record(it->start, 0, it->own));
    FL_TRY(fl_stream_host_call(0, it->own, set_bit, ran));
    FL_TRY(fl_event_record(it->end, 0, it->own));
    FL_TRY(fl_event_block(it->end, 0, it->pooled));
    FL_TRY(fl_event_synchronize(it->end));
    FL_TRY(fl_event_query(it->start));
    FL_TRY(fl_event_elapsed_ms(it->start, it->end, &ms));
    CHECK(ms >= 0);
    FL_TRY(fl_stream_synchronize(0, it->pooled));
    FL_TRY(fl_stream_query(0, it->own));
    return fl_device_synchronize(0);
}

static void drop(made *it) {
    fl_event_destroy(it->start);
    fl_event_destroy(it->end);
    if (it->own != NOTHING) {
        CHECK_OK(fl_stream_release(0, it->own));
    }
}

/* The run ends where a call failed, with the driver's word, results that were not reached are
 * untouched, and the next run is as if nothing had been. */
TEST(runtime_faults, each_call_of_a_run_fails_cleanly) {
    fl__fault *fault = rig_faulty("2", NULL);
    for (int pass = 0; pass < 2; pass++) {
        int64_t n = 0;
        for (bool failed = true; failed;) {
            made it = {NOTHING, NOTHING, NULL, NULL};
            bool ran = false;
            test_note("call %d", (int)++n);
            fl__fault_arm(fault, FL__SLOT_ANY, n, FL_DEVICE_ERROR, false);
            fl_status status = use(&it, &ran);
            failed = atomic_load(&fault->failures) > 0;
            fl__fault_disarm(fault);
            CHECK_STATUS(status, failed ? FL_DEVICE_ERROR : FL_OK);
            if (failed) {
                CHECK_CONTAINS(fl_last_message(), "was told to fail");
            }
            /* Work that was queued runs all the same. */
            CHECK_OK(fl_device_synchronize(0));
            CHECK(ran || failed);
            drop(&it);
        }
        CHECK(n > 12);
    }
}

/* A stream that cannot be destroyed is still there, and can be released later. */
TEST(runtime_faults, a_refused_release_keeps_the_stream) {
    fl__fault *fault = rig_faulty("1", NULL);
    fl_stream own;
    CHECK_OK(fl_stream_create(0, 0, &own));
    fl__fault_arm(fault, FL__SLOT_STREAM, 1, FL_DEVICE_ERROR, false);
    CHECK_STATUS(fl_stream_release(0, own), FL_DEVICE_ERROR);
    fl__fault_disarm(fault);
    CHECK_OK(fl_stream_synchronize(0, own));
    CHECK_OK(fl_stream_release(0, own));
    CHECK_STATUS(fl_stream_synchronize(0, own), FL_INVALID_ARGUMENT);
}

/* The current stream is made at its first use; until that works there is none to hand out. */
TEST(runtime_faults, the_first_use_of_a_device_may_be_repeated) {
    fl__fault *fault = rig_faulty("2", NULL);
    for (int64_t n = 1;; n++) {
        fl_native_stream native = NULL;
        fl__fault_arm(fault, FL__SLOT_ANY, n, FL_OUT_OF_MEMORY, false);
        fl_status status = fl_stream_native(1, fl_stream_current(1), &native);
        bool failed = atomic_load(&fault->failures) > 0;
        fl__fault_disarm(fault);
        CHECK_STATUS(status, failed ? FL_OUT_OF_MEMORY : FL_OK);
        if (!failed) {
            CHECK(n > 1 && native);
            break;
        }
        CHECK_POINTER(native, NULL);
    }
}
