/*
 * queue.c: queueing, draining, retiring, and the life of the queues.
 *
 * A queue is made at the first task of its device and lives as long as the process: threads that
 * Python kills, and destructors that run late, may still look at it. Relies on worker.c for running
 * and waiting. Does not know what a task does, nor who decides whether to queue.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "fl/debug.h"
#include "queue/ring.h"

static fl__queue *queues[FL_DEVICE_MAX]; /* Atomic pointers; written under the lock. */
static int32_t queue_count;              /* Atomic: devices below this index may have a queue. */
static bool is_shut;                     /* Atomic: no task is taken any more. */
static bool is_forked;                   /* In a child: the workers are the parent's. */
static fl__mutex making = FL__MUTEX_INIT;

static fl_queue_where where_function; /* Atomic. */

static FL_THREAD_LOCAL bool on_worker;

bool fl_queue_on_worker(void) {
    return on_worker;
}

fl__queue *fl__queue_find(fl_device device) {
    if (device < 0 || device >= FL_DEVICE_MAX || __atomic_load_n(&is_forked, __ATOMIC_RELAXED)) {
        return NULL;
    }
    return __atomic_load_n(&queues[device], __ATOMIC_ACQUIRE);
}

/* --- fork and exit --------------------------------------------------------------------------- */

/* What was queued has run when the child begins, so that memory that both see is complete. */
static void before_fork(void) {
    fl_queue_drain(-1);
}

static void after_fork_in_child(void) {
    __atomic_store_n(&is_forked, true, __ATOMIC_RELAXED);
    __atomic_store_n(&is_shut, true, __ATOMIC_RELAXED);
}

static void at_exit(void) {
    fl_queue_shutdown(10000);
}

/* Under `making`. */
static void register_handlers(void) {
    static bool are_registered = false;
    if (!are_registered) {
        are_registered = true;
        (void)pthread_atfork(before_fork, NULL, after_fork_in_child);
        (void)atexit(at_exit);
    }
}

/* --- making ---------------------------------------------------------------------------------- */

static void *worker_main(void *queue) {
    on_worker = true;
    return fl__queue_work(queue);
}

/* Under `making`. */
static fl__queue *make(fl_device device) {
    fl__queue *queue = aligned_alloc(FL__LINE_BYTES, sizeof(*queue));
    if (!queue) {
        return NULL;
    }
    memset(queue, 0, sizeof(*queue));
    queue->device = device;
    queue->spin_ns = (uint64_t)fl_option_int(FL_OPT_QUEUE_SPIN_US) * 1000;
    queue->bytes_max = (uint64_t)fl_option_int(FL_OPT_QUEUE_BYTES);
    queue->delay_ns = (uint64_t)fl_option_int(FL_OPT_QUEUE_DELAY_US) * 1000;
    queue->wake_at = UINT64_MAX;
    for (uint64_t i = 0; i < FL_QUEUE_SLOTS; i++) {
        queue->slots[i].turn = i;
        queue->slots[i].device = device;
    }
    (void)pthread_mutex_init(&queue->lock, NULL);
    (void)pthread_cond_init(&queue->work, NULL);
    (void)pthread_cond_init(&queue->progress, NULL);
    int error = fl__thread_start(&queue->worker, worker_main, queue);
    if (error) {
        fl_trace(FL_TRACE_QUEUE, "no thread for the queue of device %d: error %d", device, error);
        free(queue);
        return NULL;
    }
    fl_trace(FL_TRACE_QUEUE, "the queue of device %d has a worker from now on", device);
    return queue;
}

static fl__queue *find_or_make(fl_device device) {
    fl__queue *queue = fl__queue_find(device);
    if (__builtin_expect(queue != NULL, 1)) {
        return queue;
    }
    if (device < 0 || device >= FL_DEVICE_MAX || __atomic_load_n(&is_forked, __ATOMIC_RELAXED)) {
        return NULL;
    }
    fl__lock(&making);
    queue = queues[device];
    if (!queue && !__atomic_load_n(&is_shut, __ATOMIC_RELAXED)) {
        register_handlers();
        queue = make(device);
        __atomic_store_n(&queues[device], queue, __ATOMIC_RELEASE);
        if (device >= queue_count) {
            __atomic_store_n(&queue_count, device + 1, __ATOMIC_RELEASE);
        }
    }
    fl__unlock(&making);
    return queue;
}

/* --- retiring -------------------------------------------------------------------------------- */

/* Retire what has run. Leaves it to another thread that is at it already. */
static void retire(fl__queue *queue) {
    uint64_t done = __atomic_load_n(&queue->done, __ATOMIC_ACQUIRE);
    if (done == __atomic_load_n(&queue->retired, __ATOMIC_RELAXED) ||
        __atomic_exchange_n(&queue->retiring, true, __ATOMIC_ACQUIRE)) {
        return;
    }
    for (uint64_t ticket = queue->retired; ticket < done; ticket++) {
        fl_task *task = &queue->slots[ticket % FL_QUEUE_SLOTS];
        task->kind->retire(task->payload);
        __atomic_store_n(&task->turn, ticket + FL_QUEUE_SLOTS, __ATOMIC_RELEASE);
        __atomic_store_n(&queue->retired, ticket + 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&queue->retiring, false, __ATOMIC_RELEASE);
}

/* --- queueing -------------------------------------------------------------------------------- */

/* Lets half of what waits run before it looks again, so that the two threads do not wake each other
 * for every task. A task that alone exceeds the bound waits for an empty queue. */
static void wait_for_bytes(fl__queue *queue, uint64_t bytes) {
    __atomic_fetch_add(&queue->full, 1, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t done = __atomic_load_n(&queue->done, __ATOMIC_ACQUIRE);
        uint64_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
        uint64_t held = fl__queue_held_bytes(queue);
        if (tail <= done || held == 0 || held + bytes <= queue->bytes_max) {
            return;
        }
        (void)fl__queue_wait(queue, done + (tail - done + 1) / 2, -1);
        retire(queue);
    }
}

static void wait_for_slot(fl__queue *queue, const fl_task *task, uint64_t ticket) {
    __atomic_fetch_add(&queue->full, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&task->turn, __ATOMIC_ACQUIRE) != ticket) {
        (void)fl__queue_wait(queue, ticket - FL_QUEUE_SLOTS + FL_QUEUE_SLOTS / 4, -1);
        retire(queue);
    }
}

void fl_queue_set_where(fl_queue_where function) {
    if (fl_option_bool(FL_OPT_QUEUE_LINES)) {
        __atomic_store_n(&where_function, function, __ATOMIC_RELEASE);
    }
}

fl_task *fl_queue_open(fl_device device, fl_stream stream, const fl_task_kind *kind,
                       uint64_t bytes) {
    if (__atomic_load_n(&is_shut, __ATOMIC_RELAXED) || on_worker) {
        return NULL;
    }
    fl__queue *queue = find_or_make(device);
    if (!queue) {
        return NULL;
    }
    char where[FL_QUEUE_WHERE_BYTES];
    fl_queue_where ask_where = __atomic_load_n(&where_function, __ATOMIC_ACQUIRE);
    if (__builtin_expect(ask_where != NULL, 0)) {
        where[0] = 0;
        ask_where(where, sizeof(where));
    }
    retire(queue);
    if (bytes && __builtin_expect(fl__queue_held_bytes(queue) + bytes > queue->bytes_max, 0)) {
        wait_for_bytes(queue, bytes);
    }
    __atomic_fetch_add(&queue->bytes_queued, bytes, __ATOMIC_RELAXED);
    uint64_t ticket = __atomic_fetch_add(&queue->tail, 1, __ATOMIC_SEQ_CST);
    fl_task *task = &queue->slots[ticket % FL_QUEUE_SLOTS];
    if (__builtin_expect(__atomic_load_n(&task->turn, __ATOMIC_ACQUIRE) != ticket, 0)) {
        wait_for_slot(queue, task, ticket);
    }
    __atomic_store_n(&task->state, FL_TASK_QUEUED, __ATOMIC_RELAXED);
    __atomic_store_n(&task->kind, kind, __ATOMIC_RELAXED);
    __atomic_store_n(&task->stream, stream, __ATOMIC_RELAXED);
    __atomic_store_n(&task->ticket, ticket, __ATOMIC_RELEASE);
    task->bytes = bytes;
    if (__builtin_expect(ask_where != NULL, 0)) {
        memcpy(task->where, where, sizeof(where));
    }
    return task;
}

void *fl_task_payload(fl_task *task) {
    return task->payload;
}

void fl_queue_submit(fl_task *task) {
    fl__queue *queue = queues[task->device];
    __atomic_store_n(&task->turn, task->ticket + 1, __ATOMIC_SEQ_CST);
    if (__builtin_expect(__atomic_load_n(&queue->is_asleep, __ATOMIC_SEQ_CST), 0)) {
        fl__lock(&queue->lock);
        (void)pthread_cond_signal(&queue->work);
        fl__unlock(&queue->lock);
    }
}

/* --- draining -------------------------------------------------------------------------------- */

static bool drain(fl__queue *queue, int32_t limit_ms) {
    uint64_t tail = __atomic_load_n(&queue->tail, __ATOMIC_SEQ_CST);
    bool has_run = true;
    if (__atomic_load_n(&queue->done, __ATOMIC_ACQUIRE) < tail) {
        __atomic_fetch_add(&queue->drains, 1, __ATOMIC_RELAXED);
        has_run = fl__queue_wait(queue, tail, limit_ms);
    }
    /* Another thread may be retiring; it ends soon, and what it retires counts as ours. */
    while (has_run && __atomic_load_n(&queue->retired, __ATOMIC_ACQUIRE) < tail) {
        retire(queue);
        (void)sched_yield();
    }
    return has_run;
}

void fl_queue_drain(fl_device device) {
    if (on_worker) {
        return;
    }
    int32_t count = __atomic_load_n(&queue_count, __ATOMIC_ACQUIRE);
    for (fl_device i = device < 0 ? 0 : device; i < count && (device < 0 || i == device); i++) {
        fl__queue *queue = fl__queue_find(i);
        if (queue) {
            (void)drain(queue, -1);
        }
    }
}

bool fl_queue_has_work(fl_device device) {
    const fl__queue *queue = fl__queue_find(device);
    return queue && __atomic_load_n(&queue->done, __ATOMIC_ACQUIRE) <
                        __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
}

fl_device fl_queue_devices(void) {
    return __atomic_load_n(&queue_count, __ATOMIC_ACQUIRE);
}

uint64_t fl_queue_count_queued(fl_device device) {
    const fl__queue *queue = fl__queue_find(device);
    return queue ? __atomic_load_n(&queue->tail, __ATOMIC_SEQ_CST) : 0;
}

uint64_t fl_queue_count_run(fl_device device) {
    const fl__queue *queue = fl__queue_find(device);
    return queue ? __atomic_load_n(&queue->done, __ATOMIC_ACQUIRE) : UINT64_MAX;
}

void fl_queue_wait_run(fl_device device, uint64_t count) {
    fl__queue *queue = fl__queue_find(device);
    if (queue == NULL || on_worker) {
        return;
    }
    uint64_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    __atomic_fetch_add(&queue->full, 1, __ATOMIC_RELAXED);
    (void)fl__queue_wait(queue, count < tail ? count : tail, -1);
}

void fl_queue_shutdown(int32_t limit_ms) {
    if (on_worker || __atomic_load_n(&is_forked, __ATOMIC_RELAXED)) {
        return;
    }
    __atomic_store_n(&is_shut, true, __ATOMIC_SEQ_CST);
    fl__lock(&making); /* Nobody makes a queue meanwhile, and one thread joins. */
    for (fl_device i = 0; i < queue_count; i++) {
        fl__queue *queue = queues[i];
        if (!queue || __atomic_load_n(&queue->stop, __ATOMIC_RELAXED) || !drain(queue, limit_ms)) {
            continue;
        }
        fl__lock(&queue->lock);
        __atomic_store_n(&queue->stop, true, __ATOMIC_RELAXED);
        (void)pthread_cond_signal(&queue->work);
        fl__unlock(&queue->lock);
        (void)pthread_join(queue->worker, NULL);
    }
    fl__unlock(&making);
}
