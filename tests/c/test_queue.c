/*
 * test_queue.c: order, waiting, retiring, failures, the flight record, fork and exit of the launch
 * queue, with tasks that only write things down.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "fl/debug.h"
#include "fl/queue.h"
#include "harness.h"

enum { PRODUCERS = 4, TASKS_EACH = 20000 };

/* What a task holds: who queued it and as which one, and a place to count in. */
typedef struct note {
    uint64_t producer, number;
    uint64_t *out_retired; /* Atomic. */
} note;

static uint64_t last_of[PRODUCERS]; /* Written by the worker: the last number seen, plus 1. */
static uint64_t out_of_order, run_count;
static bool gate_is_open; /* Atomic. */

static fl_status run_note(void *payload) {
    const note *n = payload;
    out_of_order += n->number != last_of[n->producer];
    last_of[n->producer] = n->number + 1;
    run_count++;
    return FL_OK;
}

static void retire_note(void *payload) {
    const note *n = payload;
    if (n->out_retired) {
        __atomic_fetch_add(n->out_retired, 1, __ATOMIC_RELAXED);
    }
}

static fl_status run_gate(void *payload) {
    (void)payload;
    while (!__atomic_load_n(&gate_is_open, __ATOMIC_ACQUIRE)) {
        test_pause_ms(1);
    }
    return FL_OK;
}

static fl_status run_failing(void *payload) {
    const note *n = payload;
    return fl_fail(FL_DEVICE_ERROR, "number %d went wrong", (int)n->number);
}

static const fl_task_kind noting = {"note", run_note, retire_note};
static const fl_task_kind gating = {"gate", run_gate, retire_note};
static const fl_task_kind failing = {"failing", run_failing, retire_note};

static void queue_on(fl_device device, const fl_task_kind *kind, uint64_t bytes, note what) {
    fl_task *task = fl_queue_open(device, (fl_stream)what.producer, kind, bytes);
    CHECK(task != NULL);
    memcpy(fl_task_payload(task), &what, sizeof(what));
    fl_queue_submit(task);
}

static void queue_note(const fl_task_kind *kind, note what) {
    queue_on(0, kind, 0, what);
}

static void open_gate(void) {
    __atomic_store_n(&gate_is_open, true, __ATOMIC_RELEASE);
}

TEST(queue, runs_in_order) {
    uint64_t retired = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        queue_note(&noting, (note){0, i, &retired});
    }
    fl_queue_drain(0);
    CHECK_UINT(run_count, 5000);
    CHECK_UINT(out_of_order, 0);
    CHECK_UINT(retired, 5000);
    CHECK(!fl_queue_has_work(0));
}

static uint64_t retired_by_all;

static void *produce(void *argument) {
    uint64_t producer = (uint64_t)(uintptr_t)argument;
    uint64_t state = producer + 1;
    for (uint64_t i = 0; i < TASKS_EACH; i++) {
        queue_note(&noting, (note){producer, i, &retired_by_all});
        if (test_random(&state) % 512 == 0) {
            fl_queue_drain(0);
            CHECK_UINT(last_of[producer], i + 1); /* Ordered by the drain. */
        }
    }
    return NULL;
}

TEST_WITH_LIMIT(queue, keeps_each_producers_order, 120) {
    pthread_t threads[PRODUCERS];
    for (uintptr_t i = 0; i < PRODUCERS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, produce, (void *)i), 0);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    fl_queue_drain(-1);
    CHECK_UINT(run_count, PRODUCERS * TASKS_EACH);
    CHECK_UINT(out_of_order, 0);
    CHECK_UINT(retired_by_all, PRODUCERS * TASKS_EACH);
}

static void *queue_one_more(void *argument) {
    queue_note(&noting, (note){0, 0, argument});
    return NULL;
}

TEST(queue, waits_while_it_is_full) {
    uint64_t retired = 0;
    queue_note(&gating, (note){0});
    for (uint64_t i = 1; i < FL_QUEUE_SLOTS; i++) {
        queue_note(&noting, (note){1, i - 1, &retired});
    }
    pthread_t other;
    CHECK_INT(pthread_create(&other, NULL, queue_one_more, &retired), 0);
    fl_queue_stats stats;
    do {
        test_pause_ms(1);
        fl_queue_get_stats(0, &stats);
    } while (stats.full == 0);
    test_pause_ms(20);
    CHECK_UINT(run_count, 0);
    CHECK_UINT(retired, 0);
    open_gate();
    CHECK_INT(pthread_join(other, NULL), 0);
    fl_queue_drain(0);
    CHECK_UINT(run_count, FL_QUEUE_SLOTS);
    CHECK_UINT(retired, FL_QUEUE_SLOTS);
    CHECK_UINT(out_of_order, 0);
}

static void *queue_bytes(void *argument) {
    (void)argument;
    queue_on(0, &noting, 600, (note){0, 0, NULL});
    return NULL;
}

TEST(queue, waits_while_it_holds_too_many_bytes) {
    CHECK_OK(fl_option_set(FL_OPT_QUEUE_BYTES, "1000"));
    queue_on(0, &gating, 600, (note){0});
    pthread_t other;
    CHECK_INT(pthread_create(&other, NULL, queue_bytes, NULL), 0);
    fl_queue_stats stats;
    do {
        test_pause_ms(1);
        fl_queue_get_stats(0, &stats);
    } while (stats.full == 0);
    CHECK_UINT(stats.queued, 1);
    CHECK_UINT(stats.held_bytes, 600);
    open_gate();
    CHECK_INT(pthread_join(other, NULL), 0);
    queue_on(0, &noting, 5000, (note){0, 1, NULL}); /* Alone it may exceed the bound. */
    fl_queue_drain(0);
    fl_queue_get_stats(0, &stats);
    CHECK_UINT(stats.run, 3);
    CHECK_UINT(stats.held_bytes, 0);
}

static void *open_gate_soon(void *unused) {
    (void)unused;
    test_pause_ms(20);
    open_gate();
    return NULL;
}

TEST(queue, waits_until_so_many_tasks_have_run) {
    fl_queue_wait_run(0, 5); /* There is no queue yet. */
    queue_note(&noting, (note){0});
    queue_note(&gating, (note){0});
    queue_note(&noting, (note){0, 1, NULL});
    fl_queue_wait_run(0, 1); /* Does not wait for the gate. */
    CHECK(fl_queue_count_run(0) >= 1);
    CHECK(fl_queue_has_work(0));
    pthread_t other;
    CHECK_INT(pthread_create(&other, NULL, open_gate_soon, NULL), 0);
    fl_queue_wait_run(0, 99); /* As many as there are. */
    CHECK_UINT(fl_queue_count_run(0), 3);
    CHECK_INT(pthread_join(other, NULL), 0);
    fl_queue_drain(0);
}

static void say_where(char *out, size_t size) {
    CHECK(size > 8);
    memcpy(out, "here:1", 7);
}

TEST(queue, a_failure_says_where_it_was_queued_if_asked_for) {
    fl_queue_failure failure;
    fl_queue_set_where(say_where); /* Not asked for. */
    queue_note(&failing, (note){0});
    fl_queue_drain(0);
    CHECK(fl_queue_take_failure(&failure));
    CHECK_STRING(failure.where, "");
    CHECK_OK(fl_option_set(FL_OPT_QUEUE_LINES, "1"));
    fl_queue_set_where(say_where);
    queue_note(&failing, (note){0});
    fl_queue_drain(0);
    CHECK(fl_queue_take_failure(&failure));
    CHECK_STRING(failure.where, "here:1");
}

TEST(queue, devices_do_not_wait_for_each_other) {
    queue_on(0, &gating, 0, (note){0});
    queue_on(1, &noting, 0, (note){0, 0, NULL});
    fl_queue_drain(1);
    CHECK_UINT(run_count, 1);
    CHECK(fl_queue_has_work(0));
    open_gate();
    fl_queue_drain(-1);
    CHECK(!fl_queue_has_work(0));
}

/* --- failures -------------------------------------------------------------------------------- */

TEST(queue, keeps_the_first_failure_and_goes_on) {
    uint64_t retired = 0;
    queue_note(&noting, (note){0, 0, &retired});
    queue_note(&failing, (note){0, 7, &retired});
    queue_note(&failing, (note){0, 8, &retired});
    queue_note(&noting, (note){0, 1, &retired});
    fl_queue_drain(0);
    CHECK_UINT(run_count, 2);
    CHECK_UINT(retired, 4);
    CHECK(fl_queue_has_failed());
    fl_queue_failure failure;
    CHECK(fl_queue_take_failure(&failure));
    CHECK_STRING(failure.name, "failing");
    CHECK_UINT(failure.number, 1);
    CHECK_UINT(failure.count, 2);
    CHECK_STATUS(failure.status, FL_DEVICE_ERROR);
    CHECK_CONTAINS(failure.message, "number 7 went wrong");
    CHECK(!fl_queue_has_failed());
    CHECK(!fl_queue_take_failure(&failure));
}

TEST(queue, any_task_may_fail) {
    enum { TASKS = 20 };
    for (uint64_t n = 1; n <= TASKS; n++) {
        uint64_t retired = 0, before = run_count;
        memset(last_of, 0, sizeof(last_of));
        fl_queue_fail_nth(n);
        for (uint64_t i = 0; i < TASKS; i++) {
            queue_note(&noting, (note){0, i, &retired});
        }
        fl_queue_drain(0);
        CHECK_UINT(retired, TASKS);
        CHECK_UINT(run_count - before, TASKS - 1);
        fl_queue_failure failure;
        CHECK(fl_queue_take_failure(&failure));
        CHECK_UINT(failure.number, (n - 1) * TASKS + n - 1);
        CHECK_UINT(failure.count, 1);
    }
}

/* --- what it tells --------------------------------------------------------------------------- */

TEST(queue, the_record_shows_what_hangs) {
    static fl_queue_entry entries[FL_QUEUE_SLOTS];
    CHECK_UINT(fl_queue_record(0, entries, FL_QUEUE_SLOTS), 0);
    queue_note(&noting, (note){0, 0, NULL});
    queue_note(&failing, (note){0, 1, NULL});
    queue_note(&gating, (note){2, 0, NULL});
    queue_note(&noting, (note){3, 0, NULL});
    do {
        test_pause_ms(1);
        CHECK_UINT(fl_queue_record(0, entries, FL_QUEUE_SLOTS), 4);
    } while (entries[2].state != FL_TASK_RUNNING);
    CHECK_INT(entries[0].state, FL_TASK_DONE);
    CHECK_INT(entries[1].state, FL_TASK_FAILED);
    CHECK_INT(entries[3].state, FL_TASK_QUEUED);
    CHECK_STRING(entries[2].name, "gate");
    CHECK_INT(entries[2].stream, 2);
    CHECK_UINT(entries[3].number, 3);
    CHECK_UINT(fl_queue_record(0, entries, 2), 2);
    CHECK_STRING(entries[0].name, "gate");
    open_gate();
    fl_queue_drain(0);
    CHECK_UINT(fl_queue_record(0, entries, FL_QUEUE_SLOTS), 4);
    CHECK_STRING(fl_task_state_word(entries[2].state), "done");
    CHECK_STRING(fl_task_state_word((fl_task_state)77), "unknown");
}

TEST(queue, the_record_holds_the_last_tasks) {
    static fl_queue_entry entries[FL_QUEUE_SLOTS];
    for (uint64_t i = 0; i < FL_QUEUE_SLOTS + 10; i++) {
        queue_note(&noting, (note){0, i, NULL});
    }
    fl_queue_drain(0);
    CHECK_UINT(fl_queue_record(0, entries, FL_QUEUE_SLOTS), FL_QUEUE_SLOTS);
    CHECK_UINT(entries[0].number, 10);
    CHECK_UINT(entries[FL_QUEUE_SLOTS - 1].number, FL_QUEUE_SLOTS + 9);
}

static uint64_t processor_us(void) {
    struct rusage used;
    CHECK_INT(getrusage(RUSAGE_SELF, &used), 0);
    return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

TEST(queue, sleeps_when_it_is_idle) {
    queue_note(&noting, (note){0, 0, NULL});
    fl_queue_drain(0);
    test_pause_ms(50);
    fl_queue_stats stats;
    fl_queue_get_stats(0, &stats);
    uint64_t sleeps = stats.sleeps, before = processor_us();
    CHECK(sleeps > 0);
    test_pause_ms(300);
    fl_queue_get_stats(0, &stats);
    CHECK_UINT(stats.sleeps, sleeps);
    CHECK(processor_us() - before < 5000);
    queue_note(&noting, (note){0, 1, NULL});
    fl_queue_drain(0);
    CHECK_UINT(run_count, 2);
}

/* --- processes ------------------------------------------------------------------------------- */

TEST(queue, a_fork_waits_and_the_child_has_none) {
    for (uint64_t i = 0; i < 500; i++) {
        queue_note(&noting, (note){0, i, NULL});
    }
    pid_t child = fork();
    if (child == 0) {
        bool right = run_count == 500 && !fl_queue_open(0, 0, &noting, 0) && !fl_queue_has_work(0);
        fl_queue_drain(-1);
        fl_queue_shutdown(1000);
        _exit(right ? 0 : 1);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    queue_note(&noting, (note){0, 500, NULL});
    fl_queue_drain(0);
    CHECK_UINT(run_count, 501);
}

TEST(queue, shutdown_runs_what_is_queued_and_refuses_more) {
    uint64_t retired = 0;
    for (uint64_t i = 0; i < 100; i++) {
        queue_note(&noting, (note){0, i, &retired});
    }
    fl_queue_shutdown(10000);
    CHECK_UINT(run_count, 100);
    CHECK_UINT(retired, 100);
    CHECK(!fl_queue_open(0, 0, &noting, 0));
    fl_queue_drain(-1);
    fl_queue_shutdown(10000);
}

TEST(queue, shutdown_leaves_a_queue_that_hangs) {
    queue_note(&gating, (note){0});
    uint64_t start = fl__now_ns();
    fl_queue_shutdown(50);
    CHECK(fl__now_ns() - start < UINT64_C(5000000000));
    CHECK(fl_queue_has_work(0));
    open_gate(); /* So that the shutdown at exit ends. */
}

static fl_status run_inside(void *payload) {
    note *n = payload;
    n->number = fl_queue_on_worker() && !fl_queue_open(0, 0, &noting, 0);
    fl_queue_drain(-1); /* Would wait for itself. */
    return n->number ? FL_OK : fl_fail(FL_INTERNAL, "a task could queue");
}

TEST(queue, a_task_cannot_queue_or_wait) {
    static const fl_task_kind inside = {"inside", run_inside, retire_note};
    CHECK(!fl_queue_on_worker());
    queue_note(&inside, (note){0});
    fl_queue_drain(0);
    CHECK(!fl_queue_has_failed());
}

TEST(queue, refuses_devices_that_cannot_be) {
    CHECK(!fl_queue_open(-1, 0, &noting, 0));
    CHECK(!fl_queue_open(FL_DEVICE_MAX, 0, &noting, 0));
    CHECK(!fl_queue_has_work(-1));
    CHECK(!fl_queue_has_work(FL_DEVICE_MAX));
}

TEST(queue, counts_what_was_queued_and_what_has_run) {
    CHECK_INT(fl_queue_devices(), 0);
    queue_on(3, &gating, 0, (note){0});
    queue_on(3, &noting, 0, (note){1, 0, NULL});
    CHECK_INT(fl_queue_devices(), 4);
    CHECK_UINT(fl_queue_count_queued(3), 2);
    CHECK_UINT(fl_queue_count_run(3), 0);
    open_gate();
    fl_queue_drain(3);
    CHECK_UINT(fl_queue_count_run(3), 2);
    CHECK_UINT(fl_queue_count_queued(2), 0);
    CHECK(fl_queue_count_run(2) >= fl_queue_count_queued(2)); /* Nothing to wait for. */
}

TEST(queue, may_be_late_for_tests) {
    CHECK_OK(fl_option_set(FL_OPT_QUEUE_DELAY_US, "2000"));
    for (uint64_t i = 0; i < 50; i++) {
        queue_note(&noting, (note){0, i, NULL});
    }
    CHECK(fl_queue_has_work(0));
    fl_queue_drain(0);
    CHECK_UINT(run_count, 50);
    CHECK_UINT(out_of_order, 0);
}
