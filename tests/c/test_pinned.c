/* test_pinned.c: the cache of page-locked host memory. */
#include <signal.h>
#include <string.h>

#include "driver/sim.h"
#include "fl/debug.h"
#include "fl/pinned.h"
#include "harness.h"
#include "rig.h"

static void *pin(size_t bytes) {
    void *ptr = NULL;
    CHECK_OK(fl_pinned_alloc(bytes, &ptr));
    CHECK(ptr != NULL);
    CHECK_OK(fl_pinned_check());
    return ptr;
}

static fl_pinned_stats stats_of(void) {
    fl_pinned_stats stats;
    CHECK_OK(fl_pinned_check());
    fl_pinned_get_stats(&stats);
    return stats;
}

TEST(pinned, sizes_are_powers_of_two_and_come_back) {
    rig_sim(NULL, NULL);
    static const size_t cases[][2] = {{1, 512},          {512, 512},   {513, 1024},
                                      {4096, 4096},      {4097, 8192}, {1000000, 1 << 20},
                                      {1 << 21, 1 << 21}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fl_pointer_info info;
        char *ptr = pin(cases[i][0]);
        memset(ptr, 1, cases[i][1]);
        CHECK(fl__sim_is_pinned(ptr));
        fl_pointer_lookup(ptr + cases[i][0] - 1, &info);
        CHECK_INT(info.kind, FL_POINTER_PINNED);
        CHECK_POINTER(info.base, ptr);
        CHECK_UINT(info.size, cases[i][1]);
        fl_pinned_free(ptr);
        fl_pointer_lookup(ptr, &info);
        CHECK_INT(info.kind, FL_POINTER_UNKNOWN);
        CHECK_POINTER(pin(cases[i][0]), ptr);
        fl_pinned_free(ptr);
    }
    void *none = &none;
    CHECK_OK(fl_pinned_alloc(0, &none));
    CHECK_POINTER(none, NULL);
    fl_pinned_free(NULL);
    CHECK_STATUS(fl_pinned_alloc(SIZE_MAX / 2, &none), FL_OUT_OF_MEMORY);
}

TEST(pinned, inside_is_inside_and_the_end_is_not) {
    rig_sim(NULL, NULL);
    char *ptr = pin(4096);
    int local;
    CHECK(fl_pinned_contains(ptr));
    CHECK(fl_pinned_contains(ptr + 4095));
    CHECK(!fl_pinned_contains(ptr + 4096));
    CHECK(!fl_pinned_contains(&local));
    CHECK(!fl_pinned_contains(NULL));
    void *device;
    CHECK_OK(fl_memory_alloc(0, 100, 0, &device));
    CHECK(!fl_pinned_contains(device));
    fl_memory_free(device);
    fl_pinned_free(ptr);
    CHECK(!fl_pinned_contains(ptr));
}

TEST(pinned, a_recorded_stream_delays_the_reuse) {
    rig_sim("2", NULL);
    fl_stream other;
    CHECK_OK(fl_stream_create(1, 0, &other));
    char *a = pin(4096);
    CHECK_OK(fl_pinned_record_stream(a + 4095, 1, other));
    CHECK_OK(fl_pinned_record_stream(a, 1, other));
    CHECK_OK(fl_pinned_record_stream(a, 0, 0));
    CHECK_OK(fl_pinned_record_stream(NULL, 0, 0));
    CHECK_STATUS(fl_pinned_record_stream(&a, 0, 0), FL_NOT_FOUND);
    CHECK_STATUS(fl_pinned_record_stream(a, 5, 0), FL_OUT_OF_RANGE);
    rig_block(1, other);
    fl_pinned_free(a);
    fl_pinned_stats stats = stats_of();
    CHECK_INT(stats.active_requests.current, 1);
    char *b = pin(4096);
    CHECK(a != b);
    rig_release();
    CHECK_OK(fl_device_synchronize(1));
    CHECK_OK(fl_device_synchronize(0));
    CHECK_POINTER(pin(4096), a);
    fl_pinned_free(a);
    fl_pinned_free(b);
    CHECK_INT(stats_of().active_requests.current, 0);
}

TEST(pinned, statistics_have_torchs_meaning) {
    rig_sim(NULL, NULL);
    fl_pinned_stats stats = stats_of();
    CHECK_INT(stats.num_host_alloc, 0);
    char *a = pin(3000), *b = pin(4000), *c = pin(100);
    fl_pinned_free(a);
    a = pin(2500); /* from the cache */
    stats = stats_of();
    CHECK_INT(stats.allocations.current, 3);
    CHECK_INT(stats.allocated_bytes.current, 4096 + 4096 + 512);
    CHECK_INT(stats.active_requests.current, 3);
    CHECK_INT(stats.active_requests.allocated, 4);
    CHECK_INT(stats.active_requests.freed, 1);
    CHECK_INT(stats.active_bytes.peak, 4096 + 4096 + 512);
    CHECK_INT(stats.num_host_alloc, 3);
    CHECK_INT(stats.bucket_allocation[12], 2);
    CHECK_INT(stats.bucket_allocation[9], 1);
    CHECK_INT(stats.host_alloc_time.count, 3);
    CHECK(stats.host_alloc_time.max >= stats.host_alloc_time.min);
    fl_pinned_free(a);
    fl_pinned_free(b);
    CHECK_OK(fl_pinned_empty_cache());
    stats = stats_of();
    CHECK_INT(stats.num_host_free, 2);
    CHECK_INT(stats.host_free_time.count, 2);
    CHECK_INT(stats.allocations.current, 1);
    CHECK_INT(stats.active_bytes.current, 512);
    fl_pinned_reset_peak_stats();
    fl_pinned_reset_accumulated_stats();
    stats = stats_of();
    CHECK_INT(stats.active_bytes.peak, 512);
    CHECK_INT(stats.active_bytes.allocated, 0);
    CHECK_INT(stats.num_host_alloc, 0);
    CHECK_INT(stats.host_alloc_time.count, 0);
    CHECK_INT(stats.host_alloc_time.max, 0);
    CHECK_INT(stats.bucket_allocation[12], 0);
    CHECK_INT(stats.allocations.current, 1);
    fl_pinned_free(c);
}

TEST(pinned, nothing_needs_a_device_before_there_is_pinned_memory) {
    fl_pinned_stats stats;
    fl_pinned_get_stats(&stats);
    CHECK_INT(stats.allocations.current, 0);
    fl_pinned_reset_peak_stats();
    fl_pinned_reset_accumulated_stats();
    CHECK_OK(fl_pinned_empty_cache());
    CHECK_OK(fl_pinned_check());
    CHECK(!fl_pinned_contains(&stats));
    fl_pinned_free(&stats);
    CHECK(!fl_device_is_initialized());
}

static void in_child(void *argument) {
    void *ptr;
    fl_pinned_stats stats;
    CHECK_STATUS(fl_pinned_alloc(100, &ptr), FL_BAD_FORK);
    CHECK_STATUS(fl_pinned_record_stream(argument, 0, 0), FL_BAD_FORK);
    CHECK_STATUS(fl_pinned_empty_cache(), FL_BAD_FORK);
    CHECK(!fl_pinned_contains(argument));
    fl_pinned_get_stats(&stats);
    fl_pinned_free(argument);
}

TEST(pinned, a_forked_child_gets_errors) {
    rig_sim(NULL, NULL);
    void *ptr = pin(100);
    CHECK_INT(test_crash_of(in_child, ptr), 0);
    fl_pinned_free(ptr);
}

TEST(pinned, a_pointer_into_the_middle_is_not_freed) {
    rig_sim(NULL, NULL);
    char *ptr = pin(4096);
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "0"));
    fl_pinned_free(ptr + 512);
    fl_pinned_free(&ptr);
    CHECK_INT(stats_of().active_requests.current, 1);
    fl_pinned_free(ptr);
    fl_pinned_free(ptr);
    CHECK_INT(stats_of().active_requests.current, 0);
}

static void free_the_middle(void *argument) {
    (void)argument;
    rig_sim(NULL, NULL);
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "1"));
    fl_pinned_free((char *)pin(4096) + 512);
}

TEST(pinned, freeing_the_middle_is_a_bug_in_debug_builds) {
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "1"));
    if (fl_debug_level() < 1) {
        test_skip("built without assertions");
    }
    CHECK_INT(test_crash_of(free_the_middle, NULL), SIGABRT);
}
