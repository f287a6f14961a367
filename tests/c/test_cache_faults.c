/* test_cache_faults.c: the device cache and the pinned cache on a driver whose Nth call fails. */
#include <string.h>

#include "driver/wrap.h"
#include "fl/debug.h"
#include "fl/memory.h"
#include "fl/pinned.h"
#include "harness.h"
#include "rig.h"

#define MIB ((size_t)1 << 20)

/* What must not differ after a failed call: what users hold. Cached memory may have gone back. */
static void check_same_use(const fl_memory_stats *before) {
    fl_memory_stats now;
    CHECK_OK(fl_memory_check(0));
    CHECK_OK(fl_memory_get_stats(0, &now));
    for (int pool = 0; pool < FL_POOL_COUNT; pool++) {
        CHECK_INT(now.allocation[pool].current, before->allocation[pool].current);
        CHECK_INT(now.allocated_bytes[pool].current, before->allocated_bytes[pool].current);
        CHECK_INT(now.allocated_bytes[pool].allocated, before->allocated_bytes[pool].allocated);
    }
}

/* The same allocation with the 1st, 2nd, ... call failing until it succeeds; returns the block. */
static void *alloc_under_faults(fl__fault *fault, uint32_t classes, size_t bytes, bool stays) {
    fl_memory_stats before;
    CHECK_OK(fl_memory_get_stats(0, &before));
    for (int64_t nth = 1; nth < 100; nth++) {
        test_note("call %d", (int)nth);
        void *ptr = &before;
        fl__fault_arm(fault, classes, nth, FL_DEVICE_ERROR, stays);
        fl_status status = fl_memory_alloc(0, bytes, 0, &ptr);
        bool failed = atomic_load(&fault->failures) > 0;
        fl__fault_disarm(fault);
        if (status == FL_OK) {
            /* An allocation may get by without a call that failed: recording can be done later. */
            if (!failed || !(classes & FL__SLOT_MEMORY)) {
                return ptr;
            }
            fl_memory_free(ptr);
            CHECK_OK(fl_memory_get_stats(0, &before));
            continue;
        }
        CHECK(failed);
        CHECK_POINTER(ptr, &before);
        check_same_use(&before);
    }
    test_fail(__FILE__, __LINE__, "100 calls were not enough");
}

TEST(cache_faults, a_first_allocation_fails_cleanly_at_every_call) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    void *ptr = alloc_under_faults(fault, FL__SLOT_ANY, 1000, false);
    fl_memory_free(ptr);
    CHECK_OK(fl_memory_empty_cache(0));
    ptr = alloc_under_faults(fault, FL__SLOT_ANY, 30 * MIB, true);
    fl_memory_free(ptr);
}

TEST(cache_faults, running_out_fails_cleanly_at_every_call) {
    fl__fault *fault = rig_faulty("1", "64M");
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    /* The only way to serve 50 MiB: wait for the event, synchronise, free three segments, ask. */
    for (int64_t nth = 1;; nth++) {
        test_note("call %d", (int)nth);
        CHECK(nth < 100);
        void *held[3];
        for (int i = 0; i < 3; i++) {
            CHECK_OK(fl_memory_alloc(0, 12 * MIB, 0, &held[i]));
        }
        CHECK_OK(fl_memory_record_stream(held[0], other));
        for (int i = 0; i < 3; i++) {
            fl_memory_free(held[i]);
        }
        fl_memory_stats before;
        CHECK_OK(fl_memory_get_stats(0, &before));
        void *ptr = NULL;
        fl__fault_arm(fault, FL__SLOT_ANY, nth, FL_DEVICE_ERROR, false);
        fl_status status = fl_memory_alloc(0, 50 * MIB, 0, &ptr);
        bool failed = atomic_load(&fault->failures) > 0;
        fl__fault_disarm(fault);
        if (status == FL_OK) {
            fl_memory_free(ptr);
            CHECK_OK(fl_memory_empty_cache(0));
            if (!failed) {
                break;
            }
            continue;
        }
        check_same_use(&before);
        CHECK_OK(fl_memory_empty_cache(0));
        CHECK_OK(fl_memory_get_stats(0, &before));
        CHECK_INT(before.reserved_bytes[FL_POOL_ALL].current, 0);
    }
}

TEST(cache_faults, an_injected_out_of_memory_is_retried) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    void *cached, *ptr;
    CHECK_OK(fl_memory_alloc(0, 30 * MIB, 0, &cached));
    fl_memory_free(cached);
    fl__fault_arm(fault, FL__SLOT_MEMORY, 1, FL_OUT_OF_MEMORY, false);
    CHECK_OK(fl_memory_alloc(0, 40 * MIB, 0, &ptr));
    fl__fault_disarm(fault);
    fl_memory_stats stats;
    CHECK_OK(fl_memory_get_stats(0, &stats));
    CHECK_INT(stats.num_alloc_retries, 1);
    CHECK_INT(stats.num_ooms, 0);
    CHECK_INT(stats.num_device_free, 1);
    fl_memory_free(ptr);
}

TEST(cache_faults, a_block_whose_event_is_refused_is_not_reused_too_early) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    for (int64_t nth = 1; nth <= 2; nth++) { /* making the event, recording it */
        void *a, *b;
        CHECK_OK(fl_memory_alloc(0, 4096 * (size_t)nth, 0, &a));
        CHECK_OK(fl_memory_record_stream(a, other));
        rig_block(0, other);
        fl__fault_arm(fault, FL__SLOT_EVENT, nth, FL_DEVICE_ERROR, true);
        fl_memory_free(a);
        CHECK_OK(fl_memory_alloc(0, 4096 * (size_t)nth, 0, &b));
        CHECK(b != a);
        CHECK_OK(fl_memory_check(0));
        fl__fault_disarm(fault);
        fl_memory_free(b);
        /* The event can be recorded now, behind the work that still runs. */
        CHECK_OK(fl_memory_alloc(0, 4096 * (size_t)nth, 0, &b));
        CHECK(b != a);
        fl_memory_free(b);
        rig_release();
        CHECK_OK(fl_device_synchronize(0));
        void *keep;
        CHECK_OK(fl_memory_alloc(0, 4096 * (size_t)nth, 0, &b));
        CHECK_OK(fl_memory_alloc(0, 4096 * (size_t)nth, 0, &keep));
        CHECK(a == b || a == keep);
        fl_memory_free(b);
        fl_memory_free(keep);
        CHECK_OK(fl_memory_check(0));
    }
    fl_memory_stats stats;
    CHECK_OK(fl_memory_get_stats(0, &stats));
    CHECK_INT(stats.active[FL_POOL_ALL].current, 0);
}

TEST(cache_faults, a_wait_for_the_device_settles_what_no_event_could) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    void *a;
    CHECK_OK(fl_memory_alloc(0, 4096, 0, &a));
    CHECK_OK(fl_memory_record_stream(a, other));
    fl__fault_arm(fault, FL__SLOT_EVENT, 1, FL_DEVICE_ERROR, true);
    fl_memory_free(a);
    fl_memory_stats stats;
    CHECK_OK(fl_memory_get_stats(0, &stats));
    CHECK_INT(stats.active[FL_POOL_ALL].current, 1);
    CHECK_OK(fl_memory_empty_cache(0));
    CHECK_OK(fl_memory_get_stats(0, &stats));
    CHECK_INT(stats.active[FL_POOL_ALL].current, 0);
    CHECK_INT(stats.reserved_bytes[FL_POOL_ALL].current, 0);
    CHECK_OK(fl_memory_check(0));
    fl__fault_disarm(fault);
}

TEST(cache_faults, emptying_the_cache_keeps_what_the_driver_refuses) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    for (int64_t nth = 1;; nth++) {
        CHECK(nth < 20);
        void *held[3];
        for (int i = 0; i < 3; i++) {
            CHECK_OK(fl_memory_alloc(0, 12 * MIB, 0, &held[i]));
        }
        for (int i = 0; i < 3; i++) {
            fl_memory_free(held[i]);
        }
        fl__fault_arm(fault, FL__SLOT_ANY, nth, FL_DEVICE_ERROR, false);
        fl_status status = fl_memory_empty_cache(-1);
        bool failed = atomic_load(&fault->failures) > 0;
        fl__fault_disarm(fault);
        CHECK_OK(fl_memory_check(0));
        fl_memory_stats stats;
        CHECK_OK(fl_memory_get_stats(0, &stats));
        if (!failed) {
            CHECK_OK(status);
            CHECK_INT(stats.segment[FL_POOL_ALL].current, 0);
            break;
        }
        CHECK_STATUS(status, FL_DEVICE_ERROR);
        CHECK(stats.segment[FL_POOL_ALL].current > 0);
        /* What was kept can still be used. */
        fl_pointer_info info;
        void *ptr;
        CHECK_OK(fl_memory_alloc(0, 12 * MIB, 0, &ptr));
        fl_pointer_lookup(ptr, &info);
        CHECK_INT(info.kind, FL_POINTER_DEVICE);
        fl_memory_free(ptr);
    }
}

/* --- pinned memory ---------------------------------------------------------------------------- */

TEST(cache_faults, pinned_memory_fails_cleanly_at_every_call) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    bool done = false;
    for (int64_t nth = 1; !done; nth++) {
        CHECK(nth < 50);
        test_note("call %d", (int)nth);
        fl_pinned_stats before, after;
        fl_pinned_get_stats(&before);
        void *ptr = &before;
        fl__fault_arm(fault, FL__SLOT_ANY, nth, FL_DEVICE_ERROR, false);
        fl_status status = fl_pinned_alloc(100000, &ptr);
        if (status == FL_OK) {
            (void)fl_pinned_record_stream(ptr, 0, other);
            fl_pinned_free(ptr);
            (void)fl_pinned_empty_cache();
        } else {
            CHECK_POINTER(ptr, &before);
        }
        done = atomic_load(&fault->failures) == 0;
        fl__fault_disarm(fault);
        CHECK_OK(fl_pinned_check());
        CHECK_OK(fl_device_synchronize(0));
        CHECK_OK(fl_pinned_empty_cache());
        CHECK_OK(fl_pinned_check());
        fl_pinned_get_stats(&after);
        CHECK_INT(after.allocations.current, 0);
        CHECK_INT(after.active_requests.current, 0);
        CHECK_INT(after.allocated_bytes.allocated - after.allocated_bytes.freed, 0);
    }
}

TEST(cache_faults, pinned_memory_that_runs_out_waits_and_tries_again) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    void *a, *b;
    CHECK_OK(fl_pinned_alloc(5000, &a));
    CHECK_OK(fl_pinned_record_stream(a, 0, other));
    fl_pinned_free(a);
    CHECK_OK(fl_pinned_alloc(100000, &b)); /* another size stays cached */
    fl_pinned_free(b);
    fl__fault_arm(fault, FL__SLOT_MEMORY, 1, FL_OUT_OF_MEMORY, false);
    CHECK_OK(fl_pinned_alloc(300000, &b));
    fl__fault_disarm(fault);
    fl_pinned_stats stats;
    fl_pinned_get_stats(&stats);
    CHECK_INT(stats.num_host_free, 2);
    CHECK_INT(stats.allocations.current, 1);
    fl__fault_arm(fault, FL__SLOT_MEMORY, 1, FL_OUT_OF_MEMORY, true);
    CHECK_STATUS(fl_pinned_alloc(900000, &a), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "pinning 900000 bytes of host memory: ");
    fl__fault_disarm(fault);
    CHECK_OK(fl_pinned_check());
    fl_pinned_free(b);
}

TEST(cache_faults, pinned_memory_whose_event_is_refused_waits) {
    fl__fault *fault = rig_faulty(NULL, NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(0, 0, &other));
    void *a, *b;
    CHECK_OK(fl_pinned_alloc(5000, &a));
    CHECK_OK(fl_pinned_record_stream(a, 0, other));
    fl__fault_arm(fault, FL__SLOT_EVENT, 1, FL_DEVICE_ERROR, true);
    fl_pinned_free(a);
    CHECK_OK(fl_pinned_alloc(5000, &b));
    CHECK(a != b);
    CHECK_OK(fl_pinned_check());
    fl__fault_disarm(fault);
    CHECK_OK(fl_pinned_alloc(4000, &a)); /* records it, another size */
    CHECK_OK(fl_device_synchronize(0));
    void *c;
    CHECK_OK(fl_pinned_alloc(5000, &c));
    fl_pinned_free(a);
    fl_pinned_free(b);
    fl_pinned_free(c);
    fl_pinned_stats stats;
    fl_pinned_get_stats(&stats);
    CHECK_INT(stats.active_requests.current, 0);
    CHECK_INT(stats.allocations.current, 3);
}
