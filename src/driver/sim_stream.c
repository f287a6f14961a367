/*
 * sim_stream.c: streams of the simulated device: a thread and a queue each.
 *
 * A thread takes tasks in order and runs them with the lock released, but for waits, which sleep
 * until a mark is done. A destroyed stream works off its queue first. When the process exits, tasks
 * that run are waited for and queued ones are dropped, so that no thread is inside a library that
 * is being torn down. Does not know blocks.
 */
#define _GNU_SOURCE /* pthread_setname_np */
#include "driver/sim_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

enum { EXIT_WAIT_MS = 2000 };

sim_engine fl__sim = {.lock = FL__MUTEX_INIT, .progress = PTHREAD_COND_INITIALIZER};

/* True on the threads of streams: what they run may not call the driver. */
static FL_THREAD_LOCAL bool is_stream_thread;

fl_status fl__sim_may_call(const char *what) {
    if (fl__sim.is_forked) {
        return fl_fail(FL_BAD_FORK, "sim: %s in a forked child", what);
    }
    if (is_stream_thread) {
        return fl_fail(FL_WRONG_STATE, "sim: %s within a function that runs in stream order", what);
    }
    if (fl__sim.is_exiting) {
        return fl_fail(FL_UNAVAILABLE, "sim: %s while the process exits", what);
    }
    return FL_OK;
}

/* --- tasks ----------------------------------------------------------------------------------- */

void fl__sim_mark_drop(sim_mark *mark) {
    if (mark && --mark->references == 0) {
        free(mark);
    }
}

/* Under the lock. */
static void free_task(sim_task *task) {
    fl__sim_mark_drop(task->mark);
    free(task->staged);
    free(task);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Without the lock. */
static void delay(sim_stream *stream) {
    if (fl__sim.delay_us > 0) {
        uint64_t us = next_random(&stream->random) % (uint64_t)(fl__sim.delay_us + 1);
        struct timespec pause = {.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000};
        (void)nanosleep(&pause, NULL);
    }
}

/* Without the lock. */
static void run(const sim_stream *stream, const sim_task *task) {
    switch (task->kind) {
    case SIM_TASK_COPY:
        for (size_t row = 0; row < task->rows; row++) {
            memcpy(task->dst + row * task->dst_pitch, task->src + row * task->src_pitch,
                   task->width);
        }
        break;
    case SIM_TASK_FILL:
        memset(task->dst, task->value, task->width);
        break;
    case SIM_TASK_HOST_CALL:
        fl__sim_window_open(stream->device);
        task->function(task->argument);
        fl__sim_window_close(stream->device);
        break;
    case SIM_TASK_RECORD:
    case SIM_TASK_WAIT:
        break;
    }
}

/* --- threads --------------------------------------------------------------------------------- */

/* Under the lock. */
static void drop_stream(sim_stream *stream) {
    if (--stream->references == 0) {
        (void)pthread_cond_destroy(&stream->wake);
        free(stream);
    }
}

/* Under the lock, which is released while the task runs. */
static void work_off(sim_stream *stream, sim_task *task) {
    stream->running = task;
    if (task->kind == SIM_TASK_WAIT) {
        while (!task->mark->is_done && !fl__sim.is_exiting) {
            (void)pthread_cond_wait(&fl__sim.progress, &fl__sim.lock);
        }
    } else {
        fl__sim.working++;
        fl__unlock(&fl__sim.lock);
        delay(stream);
        run(stream, task);
        fl__lock(&fl__sim.lock);
        fl__sim.working--;
    }
    if (task->kind == SIM_TASK_RECORD) {
        task->mark->is_done = true;
        task->mark->when_ns = fl__now_ns();
    }
    stream->running = NULL;
    stream->completed++;
    free_task(task);
    (void)pthread_cond_broadcast(&fl__sim.progress);
}

static void *stream_main(void *argument) {
    sim_stream *stream = argument;
    is_stream_thread = true;
    fl__lock(&fl__sim.lock);
    for (;;) {
        while (fl__list_is_empty(&stream->queue) && !stream->is_closing && !fl__sim.is_exiting) {
            (void)pthread_cond_wait(&stream->wake, &fl__sim.lock);
        }
        fl__list *node = fl__sim.is_exiting ? NULL : fl__list_pop_front(&stream->queue);
        if (!node) {
            break;
        }
        work_off(stream, FL__LIST_ENTRY(node, sim_task, link));
    }
    if (!fl__sim.is_exiting) { /* At exit everything stays as it is, for whoever looks at it. */
        fl__list_remove(&stream->link);
        drop_stream(stream);
    }
    (void)pthread_cond_broadcast(&fl__sim.progress);
    fl__unlock(&fl__sim.lock);
    return NULL;
}

/* --- the process ----------------------------------------------------------------------------- */

static void forget_in_child(void) {
    /* The lock may have been held by a thread that the child does not have. */
    (void)pthread_mutex_init(&fl__sim.lock, NULL);
    fl__sim.is_forked = true;
}

static void stop_at_exit(void) {
    if (fl__sim.is_forked) {
        return;
    }
    fl__lock(&fl__sim.lock);
    fl__sim.is_exiting = true;
    for (int32_t i = 0; i < fl__sim.device_count; i++) {
        fl__list *head = &fl__sim.devices[i].streams;
        for (fl__list *node = head->next; node != head; node = node->next) {
            (void)pthread_cond_signal(&FL__LIST_ENTRY(node, sim_stream, link)->wake);
        }
    }
    (void)pthread_cond_broadcast(&fl__sim.progress);
    struct timespec until = fl__deadline_in_ms(EXIT_WAIT_MS);
    /* A task may itself wait for this thread, which exits: the wait is bounded. A task that ends
     * the process would wait for itself. */
    int own = is_stream_thread ? 1 : 0;
    int error = 0;
    while (fl__sim.working > own && error == 0) {
        error = pthread_cond_timedwait(&fl__sim.progress, &fl__sim.lock, &until);
    }
    fl__unlock(&fl__sim.lock);
}

static void register_handlers(void) {
    (void)pthread_atfork(NULL, NULL, forget_in_child);
    (void)atexit(stop_at_exit);
}

static int start_thread(sim_stream *stream) {
    pthread_t thread;
    int error = fl__thread_start(&thread, stream_main, stream);
    if (!error) {
        char name[16];
        (void)snprintf(name, sizeof(name), "fl-sim-%d", stream->device);
        (void)pthread_setname_np(thread, name);
        (void)pthread_detach(thread);
    }
    return error;
}

/* --- slots ----------------------------------------------------------------------------------- */

fl_status fl__sim_stream_create(void *ctx, fl_device device, int32_t priority,
                                fl_native_stream *out_stream) {
    (void)ctx;
    (void)priority; /* The host's scheduler decides. */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_handlers);
    sim_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory for a stream");
    }
    stream->device = device;
    stream->references = 2;
    stream->random = fl__now_ns() | 1;
    fl__list_init(&stream->queue);
    (void)pthread_cond_init(&stream->wake, NULL);

    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("stream_create");
    if (!status) {
        fl__list_push_back(&fl__sim.devices[device].streams, &stream->link);
        int error = start_thread(stream);
        if (error) {
            fl__list_remove(&stream->link);
            status =
                fl_fail_vendor(FL_OUT_OF_MEMORY, error, "sim: pthread_create: %s", strerror(error));
        }
    }
    fl__unlock(&fl__sim.lock);
    if (status) {
        (void)pthread_cond_destroy(&stream->wake);
        free(stream);
        return status;
    }
    *out_stream = stream;
    return FL_OK;
}

/* Under the lock. A wrong handle is looked for rather than followed. */
static fl_status find_stream(fl_device device, fl_native_stream native, const char *what,
                             sim_stream **out_stream) {
    FL_TRY(fl__sim_may_call(what));
    fl__list *head = &fl__sim.devices[device].streams;
    for (fl__list *node = head->next; node != head; node = node->next) {
        sim_stream *stream = FL__LIST_ENTRY(node, sim_stream, link);
        if (stream == native && !stream->is_closing) {
            *out_stream = stream;
            return FL_OK;
        }
    }
    return fl_fail(FL_INVALID_ARGUMENT, "sim: %s: %p is no stream of device %d", what, native,
                   device);
}

fl_status fl__sim_stream_destroy(void *ctx, fl_device device, fl_native_stream native) {
    (void)ctx;
    sim_stream *stream = NULL;
    fl__lock(&fl__sim.lock);
    fl_status status = find_stream(device, native, "stream_destroy", &stream);
    if (!status) {
        stream->is_closing = true;
        (void)pthread_cond_signal(&stream->wake);
        drop_stream(stream);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_stream_query(void *ctx, fl_device device, fl_native_stream native) {
    (void)ctx;
    sim_stream *stream = NULL;
    fl__lock(&fl__sim.lock);
    fl_status status = find_stream(device, native, "stream_query", &stream);
    if (!status && stream->completed < stream->submitted) {
        status = FL_NOT_READY;
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

/* Under the lock: wait until that many tasks of the stream have completed. The caller holds a
 * reference. */
static fl_status wait_for(sim_stream *stream, uint64_t goal) {
    while (stream->completed < goal && !fl__sim.is_exiting) {
        (void)pthread_cond_wait(&fl__sim.progress, &fl__sim.lock);
    }
    return stream->completed < goal ? fl__sim_may_call("wait for a stream") : FL_OK;
}

fl_status fl__sim_stream_synchronize(void *ctx, fl_device device, fl_native_stream native) {
    (void)ctx;
    sim_stream *stream = NULL;
    fl__lock(&fl__sim.lock);
    fl_status status = find_stream(device, native, "stream_synchronize", &stream);
    if (!status) {
        stream->references++;
        status = wait_for(stream, stream->submitted);
        drop_stream(stream);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_device_synchronize(void *ctx, fl_device device) {
    (void)ctx;
    fl_status status = FL_OK;
    sim_stream **streams = NULL;
    size_t count = 0;
    fl__lock(&fl__sim.lock);
    status = fl__sim_may_call("device_synchronize");
    if (status) {
        goto done;
    }
    /* Waiting releases the lock and the list may change, hence a copy that holds references. Only
     * what was submitted so far is waited for, or other threads could keep this one for ever. */
    fl__list *head = &fl__sim.devices[device].streams;
    for (fl__list *node = head->next; node != head; node = node->next) {
        count++;
    }
    streams = malloc((count + 1) * (sizeof(sim_stream *) + sizeof(uint64_t)));
    if (!streams) {
        status = fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory to wait for %zu streams", count);
        goto done;
    }
    uint64_t *goals = (uint64_t *)(void *)(streams + count + 1);
    size_t i = 0;
    for (fl__list *node = head->next; node != head; node = node->next) {
        streams[i] = FL__LIST_ENTRY(node, sim_stream, link);
        streams[i]->references++;
        goals[i] = streams[i]->submitted;
        i++;
    }
    for (i = 0; i < count; i++) {
        fl_status waited = wait_for(streams[i], goals[i]);
        status = status ? status : waited;
        drop_stream(streams[i]);
    }
done:
    fl__unlock(&fl__sim.lock);
    free(streams);
    return status;
}

/* --- work ------------------------------------------------------------------------------------- */

fl_status fl__sim_submit(fl_device device, fl_native_stream native, const sim_task *wanted) {
    sim_stream *stream = NULL;
    sim_task *task = NULL;
    fl_status status = find_stream(device, native, "submit", &stream);
    if (!status) {
        task = malloc(sizeof(*task));
        if (!task) {
            status = fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory for a task");
        }
    }
    if (status) {
        fl__sim_mark_drop(wanted->mark);
        free(wanted->staged);
        return status;
    }
    *task = *wanted;
    fl__list_push_back(&stream->queue, &task->link);
    stream->submitted++;
    (void)pthread_cond_signal(&stream->wake);
    return FL_OK;
}

/* Whether rows of a task's side meet the bytes; the gaps between rows count as touched. */
static bool side_meets(const char *side, size_t pitch, const sim_task *task, const char *begin,
                       size_t bytes) {
    if (!side) {
        return false;
    }
    size_t extent = (task->rows - 1) * pitch + task->width;
    return side < begin + bytes && begin < side + extent;
}

static bool task_meets(const sim_task *task, const char *begin, size_t bytes) {
    return (task->kind == SIM_TASK_COPY || task->kind == SIM_TASK_FILL) &&
           (side_meets(task->dst, task->dst_pitch, task, begin, bytes) ||
            side_meets(task->src, task->src_pitch, task, begin, bytes));
}

bool fl__sim_is_in_use(const char *address, size_t bytes) {
    for (int32_t i = 0; i < fl__sim.device_count; i++) {
        fl__list *head = &fl__sim.devices[i].streams;
        for (fl__list *node = head->next; node != head; node = node->next) {
            sim_stream *stream = FL__LIST_ENTRY(node, sim_stream, link);
            if (stream->running && task_meets(stream->running, address, bytes)) {
                return true;
            }
            for (fl__list *at = stream->queue.next; at != &stream->queue; at = at->next) {
                if (task_meets(FL__LIST_ENTRY(at, sim_task, link), address, bytes)) {
                    return true;
                }
            }
        }
    }
    return false;
}
