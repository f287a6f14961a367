/*
 * ring.h: the queue of one device, as its files share it.
 *
 * Tickets number the tasks of a device. Ticket t lives in slot t modulo FL_QUEUE_SLOTS, and the
 * slot's `turn` says whose move it is:
 *
 *              fl_queue_open                fl_queue_submit
 *   turn = t  ---------------> turn = t  ------------------> turn = t + 1
 *   (free)     takes ticket t  (being     the task is         (queued, then running)
 *      ^                        filled)    the worker's             |
 *      |                                                            | worker: done = t + 1
 *      |      retire: turn = t + FL_QUEUE_SLOTS                     v
 *      +------------------------------------------------- turn = t + 1, done > t
 *             any caller, once done > t                    (run, not retired)
 *
 * Invariants: retired <= done <= tail <= retired + FL_QUEUE_SLOTS + tickets whose takers still wait
 * for their slot. Only the worker writes `done`; only the holder of `retiring` writes `retired`.
 */
#ifndef FL_SRC_QUEUE_RING_H
#define FL_SRC_QUEUE_RING_H

#include "base/thread.h"
#include "fl/queue.h"

#define FL__LINE_BYTES 64 /* Of a cache: what one side writes lies apart from the other side's. */

struct fl_task {
    _Alignas(FL__LINE_BYTES) uint64_t turn; /* Atomic. */
    uint64_t ticket;                        /* Atomic, as is what follows: the record reads it. */
    const fl_task_kind *kind;
    fl_stream stream;
    uint64_t bytes;
    uint64_t started_ns;
    int32_t state; /* An fl_task_state. */
    fl_device device;
    char where[FL_QUEUE_WHERE_BYTES]; /* Plain: for the worker alone. */
    _Alignas(FL__LINE_BYTES) unsigned char payload[FL_TASK_PAYLOAD_BYTES];
};

typedef struct fl__queue {
    fl_device device;
    pthread_t worker;
    uint64_t spin_ns;
    uint64_t bytes_max;
    uint64_t delay_ns; /* For tests: upper bound of a pause before each task. */

    /* Producers. */
    _Alignas(FL__LINE_BYTES) uint64_t tail; /* Atomic: the next ticket. */
    uint64_t bytes_queued;                  /* Atomic: of all tickets ever taken. */
    uint64_t drains, full;                  /* Atomic: statistics. */

    /* The worker. */
    _Alignas(FL__LINE_BYTES) uint64_t done; /* Atomic: tickets below have run. */
    uint64_t bytes_run;                     /* Atomic: of the tasks that have run. */
    uint64_t sleeps;                        /* Atomic: statistics. */

    /* Whoever retires. */
    _Alignas(FL__LINE_BYTES) uint64_t retired; /* Atomic: tickets below are retired. */
    bool retiring;                             /* Atomic: held like a lock, by one thread. */

    /* Sleep, of the worker and of callers. */
    _Alignas(FL__LINE_BYTES) fl__mutex lock;
    pthread_cond_t work;     /* The worker waits here, for a task or for `stop`. */
    pthread_cond_t progress; /* Callers wait here, for `done`. */
    bool is_asleep;          /* Atomic: the worker wants to be woken. */
    bool stop;               /* Atomic. */
    uint64_t wake_at;        /* Atomic, written under the lock: the least `done` that is awaited. */

    fl_task slots[FL_QUEUE_SLOTS];
} fl__queue;

/* The queue of a device; NULL where it was never used, or cannot be used in this process. */
fl__queue *fl__queue_find(fl_device device);

/* Of tasks that have not run. */
static inline uint64_t fl__queue_held_bytes(const fl__queue *queue) {
    /* Loaded in this order the difference never wraps: what has run was queued before. */
    uint64_t run = __atomic_load_n(&queue->bytes_run, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&queue->bytes_queued, __ATOMIC_RELAXED) - run;
}

/* The worker's thread: runs tasks until `stop` and nothing is left. */
void *fl__queue_work(void *queue);

/* Wait until `done` has reached the ticket, at most `limit_ms` (-1: for ever). */
bool fl__queue_wait(fl__queue *queue, uint64_t ticket, int32_t limit_ms);

/* Keep a failure of the calling worker unless one is kept already. */
void fl__queue_park(const fl_task *task, fl_status status);

/* Whether a test wants this task to fail. */
bool fl__queue_injects(void);

#endif
