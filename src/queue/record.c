/*
 * record.c: what the queues can tell: the flight record, statistics, the kept failure.
 *
 * The record is read from the slots themselves, beside the threads that use them: a slot whose
 * ticket changed while it was read is left out. Does not run or wait.
 */
#include <string.h>

#include "base/log.h"
#include "queue/ring.h"

/* --- the flight record ----------------------------------------------------------------------- */

const char *fl_task_state_word(fl_task_state state) {
    static const char *const words[FL_TASK_STATE_COUNT] = {
#define STATE_WORD(id, word) [FL_TASK_##id] = word,
        FL_TASK_STATE_LIST(STATE_WORD)
#undef STATE_WORD
    };
    return (unsigned)state < FL_TASK_STATE_COUNT ? words[state] : "unknown";
}

/* False where the slot holds another task by now, or the ticket's task is being filled. */
static bool read_entry(const fl_task *task, uint64_t ticket, fl_queue_entry *out) {
    if (__atomic_load_n(&task->ticket, __ATOMIC_ACQUIRE) != ticket) {
        return false;
    }
    const fl_task_kind *kind = __atomic_load_n(&task->kind, __ATOMIC_RELAXED);
    uint64_t started_ns = __atomic_load_n(&task->started_ns, __ATOMIC_RELAXED);
    uint64_t now_ns = fl__now_ns();
    *out = (fl_queue_entry){
        .number = ticket,
        .name = kind ? kind->name : "",
        .stream = __atomic_load_n(&task->stream, __ATOMIC_RELAXED),
        .state = (fl_task_state)__atomic_load_n(&task->state, __ATOMIC_ACQUIRE),
    };
    if (out->state == FL_TASK_RUNNING && now_ns > started_ns) {
        out->running_ns = now_ns - started_ns;
    }
    return kind && __atomic_load_n(&task->ticket, __ATOMIC_ACQUIRE) == ticket;
}

size_t fl_queue_record(fl_device device, fl_queue_entry *out, size_t max) {
    const fl__queue *queue = fl__queue_find(device);
    if (!queue) {
        return 0;
    }
    uint64_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    uint64_t first = tail > FL_QUEUE_SLOTS ? tail - FL_QUEUE_SLOTS : 0;
    first = tail - first > max ? tail - max : first;
    size_t count = 0;
    for (uint64_t ticket = first; ticket < tail; ticket++) {
        count += read_entry(&queue->slots[ticket % FL_QUEUE_SLOTS], ticket, &out[count]);
    }
    return count;
}

void fl_queue_get_stats(fl_device device, fl_queue_stats *out) {
    *out = (fl_queue_stats){0};
    const fl__queue *queue = fl__queue_find(device);
    if (queue) {
        out->run = __atomic_load_n(&queue->done, __ATOMIC_ACQUIRE);
        out->queued = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
        out->drains = __atomic_load_n(&queue->drains, __ATOMIC_RELAXED);
        out->full = __atomic_load_n(&queue->full, __ATOMIC_RELAXED);
        out->sleeps = __atomic_load_n(&queue->sleeps, __ATOMIC_RELAXED);
        out->held_bytes = fl__queue_held_bytes(queue);
    }
}

/* --- failures -------------------------------------------------------------------------------- */

static fl__mutex lock = FL__MUTEX_INIT; /* Guards `kept`. */
static fl_queue_failure kept;
static bool is_kept;        /* Atomic; written under the lock. */
static uint64_t fail_after; /* Atomic: tasks until one fails for a test; 0: none. */

bool fl_queue_has_failed(void) {
    return __atomic_load_n(&is_kept, __ATOMIC_ACQUIRE);
}

void fl__queue_park(const fl_task *task, fl_status status) {
    const char *message = fl_last_message();
    fl_trace(FL_TRACE_QUEUE, "task %llu of device %d, %s, failed: %s",
             (unsigned long long)task->ticket, task->device, task->kind->name, message);
    fl__lock(&lock);
    if (is_kept) {
        kept.count++;
    } else {
        kept = (fl_queue_failure){.name = task->kind->name,
                                  .number = task->ticket,
                                  .device = task->device,
                                  .status = status,
                                  .count = 1};
        size_t length = strlen(message);
        length = length < sizeof(kept.message) ? length : sizeof(kept.message) - 1;
        memcpy(kept.message, message, length);
        memcpy(kept.where, task->where, sizeof(kept.where));
        __atomic_store_n(&is_kept, true, __ATOMIC_RELEASE);
    }
    fl__unlock(&lock);
}

bool fl_queue_take_failure(fl_queue_failure *out) {
    if (!fl_queue_has_failed()) {
        return false;
    }
    fl__lock(&lock);
    bool is_there = is_kept;
    if (is_there) {
        *out = kept;
        __atomic_store_n(&is_kept, false, __ATOMIC_RELEASE);
    }
    fl__unlock(&lock);
    return is_there;
}

void fl_queue_fail_nth(uint64_t n) {
    __atomic_store_n(&fail_after, n, __ATOMIC_SEQ_CST);
}

bool fl__queue_injects(void) {
    uint64_t left = __atomic_load_n(&fail_after, __ATOMIC_RELAXED);
    while (__builtin_expect(left != 0, 0)) {
        if (__atomic_compare_exchange_n(&fail_after, &left, left - 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            return left == 1;
        }
    }
    return false;
}
