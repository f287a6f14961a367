/*
 * worker.c: the thread that runs the tasks of one device, and the waiting of both sides.
 *
 * Each side spins for a short while and then sleeps. While it spins it offers its processor to
 * others, for the other side may be waiting for that very one. Sleepers and wakers meet by
 * sequentially consistent stores and loads: one announces that it sleeps and looks again, the other
 * makes its progress known and then looks for sleepers; one of the two sees the other. Does not
 * know what a task does.
 */
#include <errno.h>
#include <sched.h>

#include "base/assert.h"
#include "queue/ring.h"

/* How a processor is told that a loop waits. */
static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

enum { SPINS_A_LOOK = 32 }; /* Between two looks at the clock, and two offers of the processor. */

/* --- the worker ------------------------------------------------------------------------------ */

static inline bool is_next(const fl_task *task, uint64_t ticket) {
    return __atomic_load_n(&task->turn, __ATOMIC_ACQUIRE) == ticket + 1;
}

static void sleep_until_work(fl__queue *queue, const fl_task *task, uint64_t ticket) {
    fl__lock(&queue->lock);
    __atomic_store_n(&queue->is_asleep, true, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&task->turn, __ATOMIC_SEQ_CST) != ticket + 1 &&
           !__atomic_load_n(&queue->stop, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&queue->sleeps, 1, __ATOMIC_RELAXED);
        (void)pthread_cond_wait(&queue->work, &queue->lock);
    }
    __atomic_store_n(&queue->is_asleep, false, __ATOMIC_RELAXED);
    fl__unlock(&queue->lock);
}

/* False: the queue stops, and there is no task. */
static bool wait_for_task(fl__queue *queue, const fl_task *task, uint64_t ticket) {
    uint64_t start = 0;
    while (!is_next(task, ticket)) {
        if (__atomic_load_n(&queue->stop, __ATOMIC_RELAXED)) {
            return is_next(task, ticket);
        }
        for (int i = 0; i < SPINS_A_LOOK && !is_next(task, ticket); i++) {
            relax();
        }
        uint64_t now = fl__now_ns();
        start = start ? start : now;
        if (now - start >= queue->spin_ns) {
            sleep_until_work(queue, task, ticket);
        } else {
            (void)sched_yield();
        }
    }
    return true;
}

static void wake_callers(fl__queue *queue) {
    fl__lock(&queue->lock);
    __atomic_store_n(&queue->wake_at, UINT64_MAX, __ATOMIC_RELAXED);
    (void)pthread_cond_broadcast(&queue->progress);
    fl__unlock(&queue->lock);
}

/* A pause of another length each time, so that whoever does not wait where he should reads what is
 * not there yet. */
static void pause_at_random(uint64_t ticket, uint64_t most_ns) {
    uint64_t mixed = (ticket + 1) * UINT64_C(0x9E3779B97F4A7C15);
    uint64_t pause_ns = (mixed >> 32) % (most_ns + 1);
    struct timespec pause = {.tv_sec = (time_t)(pause_ns / 1000000000),
                             .tv_nsec = (long)(pause_ns % 1000000000)};
    (void)nanosleep(&pause, NULL);
}

static void run_task(fl_task *task) {
    __atomic_store_n(&task->started_ns, fl__now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&task->state, FL_TASK_RUNNING, __ATOMIC_RELEASE);
    fl_status status = fl__queue_injects() ? fl_fail(FL_DEVICE_ERROR,
                                                     "a test let this task fail instead of running")
                                           : task->kind->run(task->payload);
    if (__builtin_expect(status, 0)) {
        fl__queue_park(task, status);
    }
    __atomic_store_n(&task->state, status ? FL_TASK_FAILED : FL_TASK_DONE, __ATOMIC_RELEASE);
}

void *fl__queue_work(void *argument) {
    fl__queue *queue = argument;
    for (uint64_t ticket = 0;; ticket++) {
        fl_task *task = &queue->slots[ticket % FL_QUEUE_SLOTS];
        if (!wait_for_task(queue, task, ticket)) {
            return NULL;
        }
        if (__builtin_expect(queue->delay_ns != 0, 0)) {
            pause_at_random(ticket, queue->delay_ns);
        }
        run_task(task);
        __atomic_store_n(&queue->bytes_run, queue->bytes_run + task->bytes, __ATOMIC_RELEASE);
        __atomic_store_n(&queue->done, ticket + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&queue->wake_at, __ATOMIC_SEQ_CST) <= ticket + 1) {
            wake_callers(queue);
        }
    }
}

/* --- callers --------------------------------------------------------------------------------- */

static inline bool has_run(const fl__queue *queue, uint64_t ticket) {
    return __atomic_load_n(&queue->done, __ATOMIC_SEQ_CST) >= ticket;
}

static bool sleep_until_run(fl__queue *queue, uint64_t ticket, const struct timespec *end) {
    int error = 0;
    fl__lock(&queue->lock);
    for (;;) {
        if (ticket < __atomic_load_n(&queue->wake_at, __ATOMIC_RELAXED)) {
            __atomic_store_n(&queue->wake_at, ticket, __ATOMIC_SEQ_CST);
        }
        if (has_run(queue, ticket) || error == ETIMEDOUT) {
            break;
        }
        error = end ? pthread_cond_timedwait(&queue->progress, &queue->lock, end)
                    : pthread_cond_wait(&queue->progress, &queue->lock);
    }
    fl__unlock(&queue->lock);
    return has_run(queue, ticket);
}

bool fl__queue_wait(fl__queue *queue, uint64_t ticket, int32_t limit_ms) {
    uint64_t start = fl__now_ns();
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (__atomic_load_n(&queue->done, __ATOMIC_ACQUIRE) >= ticket) {
                return true;
            }
            relax();
        }
        (void)sched_yield();
    } while (fl__now_ns() - start < queue->spin_ns);
    if (limit_ms < 0) {
        return sleep_until_run(queue, ticket, NULL);
    }
    struct timespec end = fl__deadline_in_ms(limit_ms);
    return sleep_until_run(queue, ticket, &end);
}
