/* test_sim_order.c: order of work on the simulated device, under random delays, and its end. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/call.h"
#include "driver/sim.h"
#include "fl/debug.h"
#include "harness.h"

static const fl_driver *drv;

static void start(const char *delay_us) {
    CHECK_OK(fl_option_set(FL_OPT_SIM_DELAY_US, delay_us));
    drv = fl__sim_driver();
    CHECK_OK(fl__drv_init(drv));
}

static fl_native_stream stream_of(fl_device device) {
    fl_native_stream stream = NULL;
    CHECK_OK(fl__drv_stream_create(drv, device, 0, &stream));
    return stream;
}

/* --- random programs -------------------------------------------------------------------------- */

enum { STREAMS = 6, CELLS = 12, STEPS = 400 };

/* One step of a program: a cell becomes a function of two cells. A cell belongs to a device, and a
 * step runs on a stream of that device; values of the other device come by peer copies. */
typedef struct step {
    uint64_t *target;
    const uint64_t *left, *right;
} step;

static uint64_t mix(uint64_t a, uint64_t b) {
    return (a * 31 + b) * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static void run_step(void *argument) {
    step *one = argument;
    *one->target = mix(*one->left, *one->right);
}

/* Each cell remembers the event behind its last write and those behind its reads since, so that a
 * program says exactly the waits that are needed, and no stream waits for more. */
typedef struct cell {
    uint64_t *ptr;
    fl_device device;
    uint64_t shadow; /* What serial execution gives. */
    fl_native_event written;
    fl_native_event reads[STREAMS]; /* One a stream; the last is enough, a stream is in order. */
} cell;

static fl_native_stream program_streams[STREAMS];

static void wait_before(int s, const cell *used, bool writes) {
    fl_native_stream stream = program_streams[s];
    CHECK_OK(fl__drv_stream_wait_event(drv, s % 2, stream, used->written));
    for (int i = 0; writes && i < STREAMS; i++) {
        CHECK_OK(fl__drv_stream_wait_event(drv, s % 2, stream, used->reads[i]));
    }
}

static void record_after(int s, fl_native_event event) {
    /* Events of this test belong to device 0 and 1 alike: sim does not tell them apart. */
    CHECK_OK(fl__drv_event_record(drv, s % 2, event, program_streams[s]));
}

static void run_program(uint64_t seed) {
    cell cells[CELLS];
    static step steps[STEPS];
    test_note("seed %llu", (unsigned long long)seed);
    for (int i = 0; i < CELLS; i++) {
        void *ptr = NULL;
        cells[i].device = i % 2;
        cells[i].shadow = (uint64_t)i;
        CHECK_OK(fl__drv_mem_alloc(drv, i % 2, sizeof(uint64_t), &ptr));
        cells[i].ptr = ptr;
        CHECK_OK(fl__drv_event_create(drv, i % 2, 0, &cells[i].written));
        for (int s = 0; s < STREAMS; s++) {
            CHECK_OK(fl__drv_event_create(drv, i % 2, 0, &cells[i].reads[s]));
        }
        CHECK_OK(fl__drv_copy(drv, i % 2, ptr, &cells[i].shadow, sizeof(uint64_t),
                              FL_COPY_HOST_TO_DEVICE, program_streams[i % 2]));
        record_after(i % 2, cells[i].written);
    }
    for (int n = 0; n < STEPS; n++) {
        int s = (int)(test_random(&seed) % STREAMS);
        cell *target = &cells[test_random(&seed) % CELLS];
        cell *left = &cells[test_random(&seed) % CELLS];
        cell *right = &cells[test_random(&seed) % CELLS];
        if (left->device == s % 2 && target->device != s % 2) {
            wait_before(s, left, false);
            wait_before(s, target, true);
            CHECK_OK(fl__drv_copy_peer(drv, target->ptr, target->device, left->ptr, left->device,
                                       sizeof(uint64_t), program_streams[s]));
            target->shadow = left->shadow;
            record_after(s, left->reads[s]);
        } else if (target->device == s % 2 && left->device == s % 2 && right->device == s % 2) {
            wait_before(s, left, false);
            wait_before(s, right, false);
            wait_before(s, target, true);
            steps[n] = (step){target->ptr, left->ptr, right->ptr};
            CHECK_OK(fl__drv_stream_host_call(drv, s % 2, program_streams[s], run_step, &steps[n]));
            target->shadow = mix(left->shadow, right->shadow);
            record_after(s, left->reads[s]);
            record_after(s, right->reads[s]);
        } else {
            continue;
        }
        record_after(s, target->written);
    }
    for (int device = 0; device < 2; device++) {
        CHECK_OK(fl__drv_device_synchronize(drv, device));
    }
    for (int i = 0; i < CELLS; i++) {
        uint64_t value = 0;
        CHECK_OK(fl__drv_copy(drv, i % 2, &value, cells[i].ptr, sizeof(value),
                              FL_COPY_DEVICE_TO_HOST, program_streams[i % 2]));
        CHECK_OK(fl__drv_stream_synchronize(drv, i % 2, program_streams[i % 2]));
        CHECK_UINT(value, cells[i].shadow);
        CHECK_OK(fl__drv_mem_free(drv, i % 2, cells[i].ptr));
        CHECK_OK(fl__drv_event_destroy(drv, i % 2, cells[i].written));
        for (int s = 0; s < STREAMS; s++) {
            CHECK_OK(fl__drv_event_destroy(drv, i % 2, cells[i].reads[s]));
        }
    }
}

static void run_programs(const char *delay_us, int count, uint64_t seed) {
    start(delay_us);
    for (int s = 0; s < STREAMS; s++) {
        program_streams[s] = stream_of(s % 2);
    }
    for (int i = 0; i < count; i++) {
        run_program(seed + (uint64_t)i);
    }
}

TEST_WITH_LIMIT(sim_order, random_programs_equal_serial_execution, 120) {
    run_programs("0", 40, 1);
}

TEST_WITH_LIMIT(sim_order, random_programs_under_random_delays, 120) {
    run_programs("300", 10, 1000);
}

/* The test above would pass if streams did not run side by side at all. */
static int meeting;

static void meet(void *argument) {
    (void)argument;
    (void)__atomic_fetch_add(&meeting, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&meeting, __ATOMIC_ACQUIRE) < 2) {
        test_pause_ms(1);
    }
}

TEST(sim_order, streams_run_side_by_side) {
    start("0");
    fl_native_stream a = stream_of(0), b = stream_of(0);
    CHECK_OK(fl__drv_stream_host_call(drv, 0, a, meet, NULL));
    CHECK_OK(fl__drv_stream_host_call(drv, 0, b, meet, NULL));
    CHECK_OK(fl__drv_device_synchronize(drv, 0));
}

/* --- threads ---------------------------------------------------------------------------------- */

static fl_native_stream shared;
static uint64_t *shared_cell;

static void add_one(void *argument) {
    ++*(uint64_t *)argument;
}

static void *submit_much(void *argument) {
    (void)argument;
    for (int i = 0; i < 300; i++) {
        CHECK_OK(fl__drv_stream_host_call(drv, 0, shared, add_one, shared_cell));
        if (i % 50 == 0) {
            CHECK_OK(fl__drv_stream_synchronize(drv, 0, shared));
        }
    }
    return NULL;
}

TEST_WITH_LIMIT(sim_order, many_threads_submit_to_one_stream, 120) {
    start("0");
    void *ptr = NULL;
    uint64_t value = 0;
    shared = stream_of(0);
    CHECK_OK(fl__drv_mem_alloc(drv, 0, sizeof(value), &ptr));
    CHECK_OK(fl__drv_fill(drv, 0, ptr, 0, sizeof(value), shared));
    shared_cell = ptr;
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, submit_much, NULL), 0);
    }
    for (int i = 0; i < 6; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_OK(fl__drv_copy(drv, 0, &value, ptr, sizeof(value), FL_COPY_DEVICE_TO_HOST, shared));
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, shared));
    CHECK_UINT(value, 6 * 300);
}

/* --- the end of streams and of the process ---------------------------------------------------- */

TEST(sim_order, a_destroyed_stream_works_off_its_queue) {
    start("200");
    static uint64_t done;
    fl_native_stream stream = stream_of(0), other = stream_of(0);
    fl_native_event event = NULL;
    for (int i = 0; i < 50; i++) {
        CHECK_OK(fl__drv_stream_host_call(drv, 0, stream, add_one, &done));
    }
    CHECK_OK(fl__drv_event_create(drv, 0, 0, &event));
    CHECK_OK(fl__drv_event_record(drv, 0, event, stream));
    CHECK_OK(fl__drv_stream_destroy(drv, 0, stream));
    CHECK_STATUS(fl__drv_stream_destroy(drv, 0, stream), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_stream_host_call(drv, 0, stream, add_one, &done), FL_INVALID_ARGUMENT);
    CHECK_OK(fl__drv_stream_wait_event(drv, 0, other, event));
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, other));
    CHECK_UINT(done, 50);
    CHECK_OK(fl__drv_event_destroy(drv, 0, event));
}

TEST(sim_order, a_device_waits_for_destroyed_streams_too) {
    start("200");
    static uint64_t done;
    fl_native_stream stream = stream_of(1);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(fl__drv_stream_host_call(drv, 1, stream, add_one, &done));
    }
    CHECK_OK(fl__drv_stream_destroy(drv, 1, stream));
    CHECK_OK(fl__drv_device_synchronize(drv, 1));
    CHECK_UINT(done, 50);
}

static void exit_with_work(void *argument) {
    start(argument);
    static char host[1 << 16];
    void *ptr = NULL;
    fl_native_event never = NULL;
    fl_native_stream a = stream_of(0), b = stream_of(0);
    (void)fl__drv_mem_alloc(drv, 0, sizeof(host), &ptr);
    (void)fl__drv_event_create(drv, 0, 0, &never);
    for (int i = 0; i < 2000; i++) {
        (void)fl__drv_copy(drv, 0, ptr, host, sizeof(host), FL_COPY_HOST_TO_DEVICE, a);
    }
    (void)fl__drv_event_record(drv, 0, never, a);
    (void)fl__drv_stream_wait_event(drv, 0, b, never);
    exit(0);
}

TEST_WITH_LIMIT(sim_order, a_process_may_exit_while_work_is_queued, 120) {
    for (int i = 0; i < 20; i++) {
        CHECK_INT(test_crash_of(exit_with_work, i % 2 ? "100" : "0"), 0);
    }
}

static void sleep_long(void *argument) {
    (void)argument;
    test_pause_ms(60000);
}

static void exit_during_long_work(void *argument) {
    (void)argument;
    start("0");
    (void)fl__drv_stream_host_call(drv, 0, stream_of(0), sleep_long, NULL);
    test_pause_ms(10);
    exit(0);
}

TEST(sim_order, work_that_does_not_end_cannot_keep_a_process) {
    CHECK_INT(test_crash_of(exit_during_long_work, NULL), 0);
}

static void exit_in_task(void *argument) {
    (void)argument;
    exit(0);
}

static void exit_from_stream(void *argument) {
    (void)argument;
    start("0");
    (void)fl__drv_stream_host_call(drv, 0, stream_of(0), exit_in_task, NULL);
    test_pause_ms(20000);
    _exit(1);
}

TEST(sim_order, a_task_may_end_the_process) {
    CHECK_INT(test_crash_of(exit_from_stream, NULL), 0);
}

static void use_after_exit_began(void) {
    void *ptr = NULL;
    fl_status status = drv->mem_alloc(drv->ctx, 0, 64, &ptr);
    _exit(status == FL_UNAVAILABLE ? 0 : 1);
}

static void exit_and_use(void *argument) {
    (void)argument;
    (void)atexit(use_after_exit_began); /* Before sim's handler is registered: it runs after it. */
    start("0");
    (void)stream_of(0);
    exit(2);
}

TEST(sim_order, calls_while_the_process_exits_fail) {
    CHECK_INT(test_crash_of(exit_and_use, NULL), 0);
}

static void call_in_child(void *argument) {
    void *ptr = NULL;
    bool is_right = drv->mem_alloc(drv->ctx, 0, 64, &ptr) == FL_BAD_FORK &&
                    drv->stream_synchronize(drv->ctx, 0, argument) == FL_BAD_FORK &&
                    drv->device_synchronize(drv->ctx, 0) == FL_BAD_FORK;
    exit(is_right ? 0 : 1);
}

TEST(sim_order, a_forked_child_is_refused_and_exits) {
    start("100");
    static uint64_t done;
    fl_native_stream stream = stream_of(0);
    for (int i = 0; i < 20; i++) {
        for (int n = 0; n < 20; n++) {
            CHECK_OK(fl__drv_stream_host_call(drv, 0, stream, add_one, &done));
        }
        CHECK_INT(test_crash_of(call_in_child, stream), 0);
    }
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, stream));
    CHECK_UINT(done, 400);
}
