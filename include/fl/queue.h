/*
 * queue.h: the launch queue. A caller prepares a call and queues it; one worker thread a device
 * runs the calls in the order in which they were queued.
 *
 * A task is a function and a payload, whose meaning is the caller's. Tasks of one device run one
 * after the other, whatever stream they are for, so that the order on every stream is the order of
 * the calls. Everything may be called from any thread, at once. Knows no tensors.
 *
 * The worker takes no lock but its own, and never gives anything back: what a payload holds is
 * given back by `retire`, in a thread that queues or waits. A payload may therefore hold what only
 * such a thread may let go of (objects of an interpreter whose lock the waiting thread holds).
 */
#ifndef FL_QUEUE_H
#define FL_QUEUE_H

#include "fl/status.h"
#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* What the tasks of one kind have in common. Static. */
typedef struct fl_task_kind {
    const char *name; /* For the flight record and for failures. */
    /* The work, in the worker's thread. A failure is told by fl_fail, like everywhere. */
    fl_status (*run)(void *payload);
    /* After `run`, failed or not: hand over what the payload holds. In the thread of some caller
     * of this header, under a lock that others spin on: must neither wait nor run foreign code. */
    void (*retire)(void *payload);
} fl_task_kind;

enum {
    /* Tasks that wait, run, or have run and are still recorded. Two threads go round all slots, so
     * that more of them would not stay in a processor's cache. */
    FL_QUEUE_SLOTS = 256,
    FL_TASK_PAYLOAD_BYTES = 896, /* Zeroed once; a slot's payload outlives its tasks. */
};

/* Who queues: writes a text that says where the calling thread is, or leaves `out` empty. Called at
 * each fl_queue_open with nothing locked and no slot taken. */
enum { FL_QUEUE_WHERE_BYTES = 192 };
typedef void (*fl_queue_where)(char *out, size_t size);

/* Asked from now on, if TORCH_FL_QUEUE_LINES is on; else nothing is. */
FL_API void fl_queue_set_where(fl_queue_where function);

/* A slot that was opened and not yet submitted belongs to the thread that opened it. */
typedef struct fl_task fl_task;

/* A slot of the device's queue for one task, which the caller fills and submits without waiting for
 * anything in between: later tasks wait for it. `bytes` is memory that the task keeps from being
 * used by others until it has run. Waits while the queue is full or holds too many bytes
 * (TORCH_FL_QUEUE_BYTES). NULL where the caller has to run the work himself, after a drain: the
 * queue has been shut down, the process is a forked child, the calling thread is the worker, or
 * there is no thread or memory to be had. */
FL_API fl_task *fl_queue_open(fl_device device, fl_stream stream, const fl_task_kind *kind,
                              uint64_t bytes);
FL_API void *fl_task_payload(fl_task *task);
FL_API void fl_queue_submit(fl_task *task);

/* Wait until everything that was queued before the call has run, on one device or on all (-1), and
 * retire it. Returns at once in a worker and in a forked child. */
FL_API void fl_queue_drain(fl_device device);

/* Whether something that was queued has not run yet. */
FL_API bool fl_queue_has_work(fl_device device);

/* The device's tasks that were queued so far, and those of them that have run. What was queued
 * before a number was taken has run once the other one has reached it. */
FL_API uint64_t fl_queue_count_queued(fl_device device);
FL_API uint64_t fl_queue_count_run(fl_device device);

/* Wait until the second of them has reached `count`, or the queue has nothing to run. Returns at
 * once in a worker. For a caller that wants memory back: counts among those that waited for room.
 */
FL_API void fl_queue_wait_run(fl_device device, uint64_t count);

/* Devices from this index on have no queue. */
FL_API fl_device fl_queue_devices(void);

/* Whether the calling thread is a worker. */
FL_API bool fl_queue_on_worker(void);

/* Drain, stop the workers and refuse tasks from then on. A queue that hangs is left alone after
 * `limit_ms`. Also runs when the process exits. */
FL_API void fl_queue_shutdown(int32_t limit_ms);

/* --- failures -------------------------------------------------------------------------------- */

/* The first failure since the last one was taken. Later tasks run all the same: they may belong to
 * threads and streams that have nothing to do with it. */
typedef struct fl_queue_failure {
    const char *name; /* Of the task's kind. */
    uint64_t number;  /* The task's, as in the flight record. */
    fl_device device;
    fl_status status;
    uint64_t count;                   /* Failures since then, this one included. */
    char message[512];                /* The sentence of the failure. */
    char where[FL_QUEUE_WHERE_BYTES]; /* What fl_queue_set_where's function said; may be empty. */
} fl_queue_failure;

FL_API bool fl_queue_has_failed(void); /* One load. */
/* False where there is none, or another thread was faster. */
FL_API bool fl_queue_take_failure(fl_queue_failure *out);

/* For tests: let the nth task from now fail instead of running (1: the next one); 0: none. */
FL_API void fl_queue_fail_nth(uint64_t n);

/* --- flight record --------------------------------------------------------------------------- */

#define FL_TASK_STATE_LIST(X) \
    X(QUEUED, "queued")       \
    X(RUNNING, "running")     \
    X(DONE, "done")           \
    X(FAILED, "failed")

typedef enum fl_task_state {
#define FL_TASK_STATE_ENUM(id, word) FL_TASK_##id,
    FL_TASK_STATE_LIST(FL_TASK_STATE_ENUM)
#undef FL_TASK_STATE_ENUM
        FL_TASK_STATE_COUNT
} fl_task_state;

FL_API const char *fl_task_state_word(fl_task_state state);

/* One task: what is waiting, what runs, and what ran before. */
typedef struct fl_queue_entry {
    uint64_t number; /* Counts the tasks of the device, from 0. */
    const char *name;
    fl_stream stream;
    fl_task_state state;
    uint64_t running_ns; /* RUNNING: for how long. */
} fl_queue_entry;

/* The last tasks of a device, oldest first, at most `max` and FL_QUEUE_SLOTS; how many there are.
 * Takes no lock and waits for nothing, so it answers while the queue hangs. */
FL_API size_t fl_queue_record(fl_device device, fl_queue_entry *out, size_t max);

typedef struct fl_queue_stats {
    uint64_t queued;     /* Tasks that were opened. */
    uint64_t run;        /* Of those, that have run. */
    uint64_t drains;     /* Calls that had something to wait for. */
    uint64_t full;       /* Calls that waited for a slot, for bytes, or in fl_queue_wait_run. */
    uint64_t sleeps;     /* Times that the worker went to sleep. */
    uint64_t held_bytes; /* Of tasks that have not run. */
} fl_queue_stats;

/* Zeros for a device whose queue was never used. */
FL_API void fl_queue_get_stats(fl_device device, fl_queue_stats *out);

FL_EXTERN_C_END
#endif
