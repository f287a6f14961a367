/* test_event.c: events on the host and on the simulated device. */
#include <string.h>

#include "fl/debug.h"
#include "fl/stream.h"
#include "harness.h"

static void use(const char *platform) {
    CHECK_OK(fl_platform_choose(platform, NULL));
    CHECK_OK(fl_device_init());
}

static int gate; /* 0: closed. Work that waits for it keeps a stream busy. */

static void wait_for_gate(void *argument) {
    (void)argument;
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE)) {
        test_pause_ms(1);
    }
}

static void open_gate(void) {
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
}

static void hold(fl_device device, fl_stream stream) {
    CHECK_OK(fl_stream_host_call(device, stream, wait_for_gate, NULL));
}

TEST(event, an_event_that_was_never_recorded_is_done) {
    use("sim");
    fl_event *event = NULL;
    CHECK_OK(fl_event_create(1, 0, &event));
    CHECK_INT(fl_event_device(event), 1);
    CHECK_OK(fl_event_query(event));
    CHECK_OK(fl_event_synchronize(event));
    CHECK_OK(fl_event_block(event, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_stream_synchronize(0, FL_STREAM_DEFAULT));
    fl_event_destroy(event);
    fl_event_destroy(NULL);
}

TEST(event, query_follows_the_work_before_it) {
    use("sim");
    fl_event *event = NULL;
    CHECK_OK(fl_event_create(0, 0, &event));
    hold(0, FL_STREAM_DEFAULT);
    CHECK_OK(fl_event_record(event, 0, FL_STREAM_DEFAULT));
    (void)fl_fail(FL_INTERNAL, "untouched");
    CHECK_STATUS(fl_event_query(event), FL_NOT_READY);
    CHECK_STATUS(fl_stream_query(0, FL_STREAM_DEFAULT), FL_NOT_READY);
    CHECK_STRING(fl_last_message(), "untouched"); /* Not ready is no failure. */
    open_gate();
    CHECK_OK(fl_event_synchronize(event));
    CHECK_OK(fl_event_query(event));
    fl_event_destroy(event);
}

static int order[8];
static int order_count;

static void note_order(void *argument) {
    int place = __atomic_fetch_add(&order_count, 1, __ATOMIC_ACQ_REL);
    order[place] = (int)(intptr_t)argument;
}

TEST(event, a_stream_of_another_device_waits) {
    use("sim");
    fl_stream other = 0;
    fl_event *event = NULL;
    CHECK_OK(fl_stream_from_pool(1, 0, &other));
    CHECK_OK(fl_event_create(0, 0, &event));
    hold(0, FL_STREAM_DEFAULT);
    CHECK_OK(fl_stream_host_call(0, FL_STREAM_DEFAULT, note_order, (void *)1));
    CHECK_OK(fl_event_record(event, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_block(event, 1, other));
    CHECK_OK(fl_stream_host_call(1, other, note_order, (void *)2));
    test_pause_ms(20);
    CHECK_INT(__atomic_load_n(&order_count, __ATOMIC_ACQUIRE), 0);
    open_gate();
    CHECK_OK(fl_stream_synchronize(1, other));
    CHECK_INT(order[0], 1);
    CHECK_INT(order[1], 2);
    fl_event_destroy(event);
}

TEST(event, a_wait_counts_from_the_record_before_it) {
    use("sim");
    fl_stream slow = 0, waiting = 0;
    fl_event *event = NULL;
    CHECK_OK(fl_stream_from_pool(0, 0, &slow));
    CHECK_OK(fl_stream_from_pool(0, 0, &waiting));
    CHECK_OK(fl_event_create(0, 0, &event));
    CHECK_OK(fl_event_record(event, 0, waiting));
    CHECK_OK(fl_event_block(event, 0, FL_STREAM_DEFAULT)); /* Of the first record. */
    hold(0, slow);
    CHECK_OK(fl_event_record(event, 0, slow)); /* The second one stays open. */
    CHECK_OK(fl_stream_synchronize(0, FL_STREAM_DEFAULT));
    CHECK_STATUS(fl_event_query(event), FL_NOT_READY);
    CHECK_OK(fl_event_block(event, 0, waiting)); /* Of the second record. */
    /* A third record elsewhere is done at once, but does not release who waits for the second. */
    CHECK_OK(fl_event_record(event, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_synchronize(event));
    CHECK_STATUS(fl_stream_query(0, waiting), FL_NOT_READY);
    open_gate();
    CHECK_OK(fl_stream_synchronize(0, waiting));
    fl_event_destroy(event);
}

TEST(event, destroying_one_that_is_waited_for) {
    use("sim");
    fl_stream other = 0;
    fl_event *event = NULL, *next = NULL;
    CHECK_OK(fl_stream_from_pool(0, 0, &other));
    CHECK_OK(fl_event_create(0, 0, &event));
    hold(0, FL_STREAM_DEFAULT);
    CHECK_OK(fl_event_record(event, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_block(event, 0, other));
    CHECK_OK(fl_stream_host_call(0, other, note_order, (void *)1));
    fl_event_destroy(event);
    /* Whatever is made of it counts as never recorded, and does not release who waits. */
    CHECK_OK(fl_event_create(0, 0, &next));
    CHECK_OK(fl_event_query(next));
    CHECK_OK(fl_event_synchronize(next));
    fl_stream third = 0;
    CHECK_OK(fl_stream_from_pool(0, 0, &third));
    CHECK_OK(fl_event_record(next, 0, third));
    CHECK_OK(fl_event_synchronize(next));
    CHECK_INT(__atomic_load_n(&order_count, __ATOMIC_ACQUIRE), 0);
    open_gate();
    CHECK_OK(fl_stream_synchronize(0, other));
    CHECK_INT(order_count, 1);
    fl_event_destroy(next);
}

static void check_elapsed(const char *platform) {
    use(platform);
    fl_event *start = NULL, *end = NULL;
    double ms = -1;
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &start));
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &end));
    CHECK_STATUS(fl_event_elapsed_ms(start, end, &ms), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "recorded");
    CHECK_OK(fl_event_record(start, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_stream_synchronize(0, FL_STREAM_DEFAULT));
    test_pause_ms(30);
    CHECK_OK(fl_event_record(end, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_synchronize(end));
    CHECK_OK(fl_event_elapsed_ms(start, end, &ms));
    CHECK(ms >= 29.0 && ms < 5000.0);
    double back = 0;
    CHECK_OK(fl_event_elapsed_ms(end, start, &back));
    CHECK(back == -ms);
    fl_event_destroy(start);
    fl_event_destroy(end);
    /* Pools keep timing events apart from the others. */
    CHECK_OK(fl_event_create(0, 0, &start));
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &end));
    CHECK_OK(fl_event_record(start, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_record(end, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_synchronize(end));
    CHECK_STATUS(fl_event_elapsed_ms(start, end, &ms), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "timing");
    fl_event_destroy(start);
    fl_event_destroy(end);
}

TEST(event, elapsed_time_on_the_host) {
    check_elapsed("cpu");
}

TEST(event, elapsed_time_on_sim) {
    check_elapsed("sim");
}

TEST(event, elapsed_time_of_work_that_still_runs) {
    use("sim");
    fl_event *start = NULL, *end = NULL;
    double ms = -1;
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &start));
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &end));
    CHECK_OK(fl_event_record(start, 0, FL_STREAM_DEFAULT));
    hold(0, FL_STREAM_DEFAULT);
    CHECK_OK(fl_event_record(end, 0, FL_STREAM_DEFAULT));
    (void)fl_fail(FL_INTERNAL, "something older");
    CHECK_STATUS(fl_event_elapsed_ms(start, end, &ms), FL_NOT_READY);
    CHECK_CONTAINS(fl_last_message(), "still runs");
    CHECK(ms == -1);
    open_gate();
    CHECK_OK(fl_event_synchronize(end));
    fl_event_destroy(start);
    fl_event_destroy(end);
}

TEST(event, misuse) {
    use("sim");
    fl_event *event = NULL, *other = NULL;
    double ms = -1;
    CHECK_STATUS(fl_event_create(0, 1 << 7, &event), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_event_create(2, 0, &event), FL_OUT_OF_RANGE);
    CHECK_POINTER(event, NULL);
    CHECK_OK(fl_event_create(0, FL_EVENT_TIMING, &event));
    CHECK_OK(fl_event_create(1, FL_EVENT_TIMING, &other));
    CHECK_STATUS(fl_event_record(event, 1, FL_STREAM_DEFAULT), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "device 0");
    CHECK_CONTAINS(fl_last_message(), "device 1");
    CHECK_OK(fl_event_query(event));
    CHECK_STATUS(fl_event_record(event, 0, 0x1000002), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_event_block(event, 0, 0x1000002), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_event_elapsed_ms(event, other, &ms), FL_INVALID_ARGUMENT);
    fl_event_destroy(event);
    fl_event_destroy(other);
}

TEST(event, many_are_made_from_few) {
    use("sim");
    enum { COUNT = 600 };
    static fl_event *events[COUNT];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) {
            CHECK_OK(fl_event_create(i % 2, (uint32_t)(i % 8), &events[i]));
            CHECK_OK(fl_event_query(events[i]));
            CHECK_OK(fl_event_record(events[i], i % 2, FL_STREAM_DEFAULT));
        }
        for (int i = 0; i < COUNT; i++) {
            fl_event_destroy(events[i]);
        }
    }
    CHECK_OK(fl_device_synchronize(0));
    CHECK_OK(fl_device_synchronize(1));
}

static void destroy_in_child(void *argument) {
    fl_event_destroy(argument);
}

TEST(event, a_forked_child_may_only_forget_it) {
    use("sim");
    fl_event *event = NULL;
    CHECK_OK(fl_event_create(0, 0, &event));
    CHECK_INT(test_crash_of(destroy_in_child, event), 0);
    CHECK_OK(fl_event_record(event, 0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_event_synchronize(event));
    fl_event_destroy(event);
}
