/*
 * sim_work.c: copies, fills, host functions and events of the simulated device.
 *
 * Each slot checks its pointers, describes one task and submits it. A pageable source is read
 * before the call returns; pinned memory is read when the task runs, so that changing it too early
 * shows. Does not know threads.
 */
#include "driver/sim_state.h"

#include <stdlib.h>
#include <string.h>

/* --- copies ---------------------------------------------------------------------------------- */

typedef struct copy_sides {
    fl_device dst, src; /* FL_DEVICE_CURRENT stands for the host. */
} copy_sides;

static copy_sides sides_of(fl_copy_kind kind, fl_device device) {
    bool to_device = kind == FL_COPY_HOST_TO_DEVICE || kind == FL_COPY_DEVICE_TO_DEVICE;
    bool from_device = kind == FL_COPY_DEVICE_TO_HOST || kind == FL_COPY_DEVICE_TO_DEVICE;
    return (copy_sides){
        .dst = to_device ? device : FL_DEVICE_CURRENT,
        .src = from_device ? device : FL_DEVICE_CURRENT,
    };
}

/* Under the lock: read a pageable source now, rows packed, and make the task use what was read. */
static fl_status stage_source(sim_task *task) {
    task->staged = malloc(task->width * task->rows);
    if (!task->staged) {
        return fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory to stage %zu bytes",
                       task->width * task->rows);
    }
    for (size_t row = 0; row < task->rows; row++) {
        memcpy((char *)task->staged + row * task->width, task->src + row * task->src_pitch,
               task->width);
    }
    task->src = task->staged;
    task->src_pitch = task->width;
    return FL_OK;
}

/* Under the lock. `device` is the stream's. */
static fl_status submit_copy(copy_sides sides, void *dst, size_t dst_pitch, const void *src,
                             size_t src_pitch, size_t width, size_t rows, fl_device device,
                             fl_native_stream stream) {
    sim_task task = {.kind = SIM_TASK_COPY,
                     .dst_pitch = dst_pitch,
                     .src_pitch = src_pitch,
                     .width = width,
                     .rows = rows};
    size_t dst_extent;
    size_t src_extent;
    if (__builtin_mul_overflow(rows - 1, dst_pitch, &dst_extent) ||
        __builtin_add_overflow(dst_extent, width, &dst_extent) ||
        __builtin_mul_overflow(rows - 1, src_pitch, &src_extent) ||
        __builtin_add_overflow(src_extent, width, &src_extent) ||
        (rows > 1 && (width > dst_pitch || width > src_pitch))) {
        return fl_fail(FL_INVALID_ARGUMENT, "sim: copy of %zu rows of %zu bytes, pitches %zu, %zu",
                       rows, width, dst_pitch, src_pitch);
    }
    char *src_address = NULL;
    FL_TRY(fl__sim_reach(sides.dst, dst, dst_extent, "destination", &task.dst));
    FL_TRY(fl__sim_reach(sides.src, src, src_extent, "source", &src_address));
    task.src = src_address;
    if (rows == 1 && task.dst < task.src + width && task.src < task.dst + width) {
        return fl_fail(FL_INVALID_ARGUMENT, "sim: copy of %zu bytes from %p to %p, which overlap",
                       width, src, dst);
    }
    if (sides.src < 0 && !fl__sim_reach_pinned(src, src_extent)) {
        FL_TRY(stage_source(&task));
    }
    return fl__sim_submit(device, stream, &task);
}

fl_status fl__sim_copy_2d(void *ctx, fl_device device, void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t width, size_t rows, fl_copy_kind kind,
                          fl_native_stream stream) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("copy");
    if (!status) {
        status = submit_copy(sides_of(kind, device), dst, dst_pitch, src, src_pitch, width, rows,
                             device, stream);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                       fl_copy_kind kind, fl_native_stream stream) {
    return fl__sim_copy_2d(ctx, device, dst, bytes, src, bytes, bytes, 1, kind, stream);
}

fl_status fl__sim_copy_peer(void *ctx, void *dst, fl_device dst_device, const void *src,
                            fl_device src_device, size_t bytes, fl_native_stream stream) {
    (void)ctx;
    copy_sides sides = {.dst = dst_device, .src = src_device};
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("copy_peer");
    if (!status) {
        status = submit_copy(sides, dst, bytes, src, bytes, bytes, 1, src_device, stream);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                       fl_native_stream stream) {
    (void)ctx;
    sim_task task = {.kind = SIM_TASK_FILL, .value = value, .width = bytes, .rows = 1};
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("fill");
    if (!status) {
        status = fl__sim_reach(device, dst, bytes, "destination", &task.dst);
    }
    if (!status) {
        status = fl__sim_submit(device, stream, &task);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                   void (*function)(void *argument), void *argument) {
    (void)ctx;
    sim_task task = {.kind = SIM_TASK_HOST_CALL, .function = function, .argument = argument};
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_submit(device, stream, &task);
    fl__unlock(&fl__sim.lock);
    return status;
}

/* --- events ---------------------------------------------------------------------------------- */

fl_status fl__sim_event_create(void *ctx, fl_device device, uint32_t flags,
                               fl_native_event *out_event) {
    (void)ctx;
    (void)device;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("event_create");
    fl__unlock(&fl__sim.lock);
    if (status) {
        return status;
    }
    sim_event *event = malloc(sizeof(*event));
    if (!event) {
        return fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory for an event");
    }
    *event = (sim_event){.flags = flags, .mark = NULL};
    *out_event = event;
    return FL_OK;
}

fl_status fl__sim_event_destroy(void *ctx, fl_device device, fl_native_event native) {
    (void)ctx;
    (void)device;
    sim_event *event = native;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("event_destroy");
    if (!status) {
        fl__sim_mark_drop(event->mark);
        free(event);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_event_record(void *ctx, fl_device device, fl_native_event native,
                               fl_native_stream stream) {
    (void)ctx;
    sim_event *event = native;
    sim_mark *mark = malloc(sizeof(*mark));
    if (!mark) {
        return fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory for a record of an event");
    }
    *mark = (sim_mark){.references = 2, .is_done = false, .when_ns = 0};
    sim_task task = {.kind = SIM_TASK_RECORD, .mark = mark};
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_submit(device, stream, &task);
    if (status) {
        fl__sim_mark_drop(mark);
    } else {
        fl__sim_mark_drop(event->mark);
        event->mark = mark;
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_event_query(void *ctx, fl_device device, fl_native_event native) {
    (void)ctx;
    (void)device;
    const sim_event *event = native;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("event_query");
    if (!status && event->mark && !event->mark->is_done) {
        status = FL_NOT_READY;
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_event_synchronize(void *ctx, fl_device device, fl_native_event native) {
    (void)ctx;
    (void)device;
    const sim_event *event = native;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("event_synchronize");
    sim_mark *mark = event->mark;
    if (!status && mark) {
        mark->references++; /* Another thread may record anew meanwhile. */
        while (!mark->is_done && !fl__sim.is_exiting) {
            (void)pthread_cond_wait(&fl__sim.progress, &fl__sim.lock);
        }
        status = mark->is_done ? FL_OK : fl__sim_may_call("event_synchronize");
        fl__sim_mark_drop(mark);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                   fl_native_event end, double *out_ms) {
    (void)ctx;
    (void)device;
    const sim_event *first = start;
    const sim_event *last = end;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("event_elapsed_ms");
    if (status) {
        /* Said already. */
    } else if (!(first->flags & last->flags & FL_EVENT_TIMING)) {
        status = fl_fail(FL_INVALID_ARGUMENT, "sim: elapsed time of events made without timing");
    } else if (!first->mark || !last->mark) {
        status = fl_fail(FL_INVALID_ARGUMENT, "sim: elapsed time of an event never recorded");
    } else if (!first->mark->is_done || !last->mark->is_done) {
        status = FL_NOT_READY;
    } else {
        *out_ms = ((double)last->mark->when_ns - (double)first->mark->when_ns) * 1e-6;
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                    fl_native_event native) {
    (void)ctx;
    const sim_event *event = native;
    fl_status status = FL_OK;
    fl__lock(&fl__sim.lock);
    if (event->mark) {
        event->mark->references++;
        sim_task task = {.kind = SIM_TASK_WAIT, .mark = event->mark};
        status = fl__sim_submit(device, stream, &task);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}
