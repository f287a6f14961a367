/*
 * run.c: carries out the plan of a copy in stream order.
 *
 * Knows places, streams and staging memory; the plan knows layouts. Staging blocks are given back
 * to their caches at once, since the caches reuse them only behind the streams that were recorded
 * on them.
 */
#include "base/assert.h"
#include "base/thread.h"
#include "copy/plan.h"
#include "copy/run.h"
#include "driver/call.h"
#include "fl/kernels.h"
#include "fl/pinned.h"
#include "runtime/device.h"

#include <stdlib.h>

/* Pinned memory that one copy may hold; larger ones go in slices where slices need less. */
#define STAGING_MOST ((size_t)64 << 20)
/* Bytes of one piece between two devices that cannot reach each other. */
#define PEER_PIECE ((size_t)16 << 20)

/* One side of the copy. */
typedef struct side {
    fl_place place;
    fl_native_stream native;
    bool is_device;
} side;

typedef struct copy_job {
    const fl_driver *driver; /* NULL between host places. */
    const fl_kernels *kernels;
    fl__copy_means means;
    side dst, src;
    /* The driver was asked to read or write the caller's host memory. */
    bool touched_host_dst, touched_host_src;
} copy_job;

/* --- sides -------------------------------------------------------------------------------------
 */

static const side *side_of(const copy_job *job, fl__copy_buffer buffer) {
    static const side host = {{FL_PLACE_HOST, -1, FL_STREAM_DEFAULT}, NULL, false};
    switch (buffer) {
    case FL__BUFFER_DST:
    case FL__BUFFER_NEAR_DST:
        return &job->dst;
    case FL__BUFFER_SRC:
    case FL__BUFFER_NEAR_SRC:
        return &job->src;
    default:
        return &host;
    }
}

static fl_status enter_side(copy_job *job, side *each, fl_place place) {
    each->place = place;
    each->is_device = place.kind == FL_PLACE_DEVICE;
    if (!each->is_device) {
        return FL_OK;
    }
    FL_TRY(fl__device_enter(&each->place.device, &job->driver));
    return fl_stream_native(each->place.device, place.stream, &each->native);
}

/* --- order between two streams ------------------------------------------------------------------
 */

enum { SPARE_EVENTS = 16 };

/* Events for ordering are kept: making one costs more than the copy of a small tensor. */
static struct {
    fl__mutex mutex;
    fl_event *events[FL_DEVICE_MAX][SPARE_EVENTS];
    int32_t count[FL_DEVICE_MAX];
} spare = {.mutex = FL__MUTEX_INIT};

static fl_status take_event(fl_device device, fl_event **out_event) {
    *out_event = NULL;
    fl__lock(&spare.mutex);
    if (spare.count[device] > 0) {
        *out_event = spare.events[device][--spare.count[device]];
    }
    fl__unlock(&spare.mutex);
    return *out_event ? FL_OK : fl_event_create(device, 0, out_event);
}

static void give_event(fl_device device, fl_event *event) {
    fl__lock(&spare.mutex);
    if (spare.count[device] < SPARE_EVENTS) {
        spare.events[device][spare.count[device]++] = event;
        event = NULL;
    }
    fl__unlock(&spare.mutex);
    fl_event_destroy(event);
}

/* Later work of `second` runs after what `first` has queued. */
static fl_status order(const side *first, const side *second) {
    fl_event *event;
    FL_TRY(take_event(first->place.device, &event));
    fl_status status = fl_event_record(event, first->place.device, first->place.stream);
    if (!status) {
        status = fl_event_block(event, second->place.device, second->place.stream);
    }
    give_event(first->place.device, event);
    return status;
}

static bool has_two_streams(const copy_job *job) {
    return job->dst.is_device && job->src.is_device &&
           (job->dst.place.device != job->src.place.device ||
            job->dst.place.stream != job->src.place.stream);
}

static fl_status join(const copy_job *job) {
    if (!has_two_streams(job)) {
        return FL_OK;
    }
    FL_TRY(order(&job->src, &job->dst));
    return order(&job->dst, &job->src);
}

/* --- steps -------------------------------------------------------------------------------------
 */

static fl_copy_kind kind_of(const side *to, const side *from) {
    if (to->is_device) {
        return from->is_device ? FL_COPY_DEVICE_TO_DEVICE : FL_COPY_HOST_TO_DEVICE;
    }
    return FL_COPY_DEVICE_TO_HOST;
}

/* The driver will touch the caller's host memory behind our back. */
static void note_host(copy_job *job, fl__copy_buffer buffer) {
    job->touched_host_dst |= buffer == FL__BUFFER_DST && !job->dst.is_device;
    job->touched_host_src |= buffer == FL__BUFFER_SRC && !job->src.is_device;
}

static char *range_start(const fl_view *view, size_t *out_bytes) {
    int64_t low, high;
    fl_view_bounds(view, &low, &high);
    *out_bytes = (size_t)(high - low);
    return (char *)view->data + low;
}

static fl_status step_bytes(copy_job *job, const fl__copy_plan *plan, const fl__copy_step *step) {
    const side *to = side_of(job, step->to), *from = side_of(job, step->from);
    const side *runs = to->is_device ? to : from;
    size_t bytes, same;
    char *dst = range_start(&plan->views[step->to], &same);
    const char *src = range_start(&plan->views[step->from], &bytes);
    FL_ASSERT(bytes == same);
    note_host(job, step->to);
    note_host(job, step->from);
    return fl__drv_copy(job->driver, runs->place.device, dst, src, bytes, kind_of(to, from),
                        runs->native);
}

/* Move the pointers to the next index of the first `dims` dimensions; false after the last. */
static bool next_outer(const fl_view *dst, const fl_view *src, int32_t dims, int64_t *index,
                       char **to, const char **from) {
    int64_t element = (int64_t)fl_dtype_size(dst->dtype);
    for (int32_t dim = dims - 1; dim >= 0; dim--) {
        *to += dst->stride[dim] * element;
        *from += src->stride[dim] * element;
        if (++index[dim] < dst->shape[dim]) {
            return true;
        }
        *to -= dst->stride[dim] * element * dst->shape[dim];
        *from -= src->stride[dim] * element * dst->shape[dim];
        index[dim] = 0;
    }
    return false;
}

static fl_status step_rows(copy_job *job, const fl__copy_plan *plan, const fl__copy_step *step) {
    const side *to_side = side_of(job, step->to), *from_side = side_of(job, step->from);
    const side *runs = to_side->is_device ? to_side : from_side;
    const fl_view *dst = &plan->views[step->to], *src = &plan->views[step->from];
    fl__copy_rows rows = fl__copy_rows_of(dst, src);
    char *to = fl_view_first(dst);
    const char *from = fl_view_first(src);
    int64_t index[FL_VIEW_DIMS_MAX] = {0};
    note_host(job, step->to);
    note_host(job, step->from);
    do {
        FL_TRY(fl__drv_copy_2d(job->driver, runs->place.device, to, rows.dst_pitch, from,
                               rows.src_pitch, rows.width, (size_t)rows.rows,
                               kind_of(to_side, from_side), runs->native));
    } while (next_outer(dst, src, rows.outer, index, &to, &from));
    return FL_OK;
}

/* Through pinned memory, piece by piece: each side works in its own stream. */
static fl_status peer_by_host(copy_job *job, char *dst, const char *src, size_t bytes) {
    while (bytes) {
        size_t piece = bytes < PEER_PIECE ? bytes : PEER_PIECE;
        void *staging;
        FL_TRY(fl_pinned_alloc(piece, &staging));
        fl_status status = fl__drv_copy(job->driver, job->src.place.device, staging, src, piece,
                                        FL_COPY_DEVICE_TO_HOST, job->src.native);
        if (!status) {
            status = order(&job->src, &job->dst);
        }
        if (!status) {
            status = fl__drv_copy(job->driver, job->dst.place.device, dst, staging, piece,
                                  FL_COPY_HOST_TO_DEVICE, job->dst.native);
        }
        (void)fl_pinned_record_stream(staging, job->src.place.device, job->src.place.stream);
        (void)fl_pinned_record_stream(staging, job->dst.place.device, job->dst.place.stream);
        fl_pinned_free(staging);
        if (status) {
            return status;
        }
        dst += piece;
        src += piece;
        bytes -= piece;
    }
    return FL_OK;
}

static fl_status step_peer(copy_job *job, const fl__copy_plan *plan, const fl__copy_step *step) {
    size_t bytes, same;
    char *dst = range_start(&plan->views[step->to], &same);
    const char *src = range_start(&plan->views[step->from], &bytes);
    FL_ASSERT(bytes == same);
    bool can = false;
    if (fl__drv_has_copy_peer(job->driver)) {
        FL_TRY(fl__drv_peer_can_access(job->driver, job->src.place.device, job->dst.place.device,
                                       &can));
    }
    if (!can) {
        return peer_by_host(job, dst, src, bytes);
    }
    FL_TRY(fl__drv_copy_peer(job->driver, dst, job->dst.place.device, src, job->src.place.device,
                             bytes, job->src.native));
    return order(&job->src, &job->dst);
}

static fl_status run_step(copy_job *job, const fl__copy_plan *plan, const fl__copy_step *step) {
    const side *to = side_of(job, step->to), *from = side_of(job, step->from);
    switch (step->action) {
    case FL__COPY_BYTES:
        return step_bytes(job, plan, step);
    case FL__COPY_ROWS:
        return step_rows(job, plan, step);
    case FL__COPY_PEER:
        return step_peer(job, plan, step);
    case FL__COPY_KERNEL:
        return job->kernels->copy(job->kernels->ctx, to->place.device, to->native,
                                  &plan->views[step->to], &plan->views[step->from]);
    case FL__COPY_HOST:
        fl_host_copy(&plan->views[step->to], &plan->views[step->from]);
        return FL_OK;
    case FL__COPY_WAIT:
        return fl_stream_synchronize(from->place.device, from->place.stream);
    }
    return fl_fail(FL_INTERNAL, "a copy's plan has an unknown step %d", (int)step->action);
}

/* --- staging memory ----------------------------------------------------------------------------
 */

static bool is_host_buffer(int buffer) {
    return buffer == FL__BUFFER_HOST_DST || buffer == FL__BUFFER_HOST_SRC;
}

static fl_status take_buffers(const copy_job *job, fl__copy_plan *plan) {
    for (int buffer = 0; buffer < FL__BUFFER_COUNT; buffer++) {
        if (!plan->bytes[buffer]) {
            continue;
        }
        void **data = &plan->views[buffer].data;
        if (!is_host_buffer(buffer)) {
            const side *each = side_of(job, (fl__copy_buffer)buffer);
            FL_TRY(
                fl_memory_alloc(each->place.device, plan->bytes[buffer], each->place.stream, data));
        } else if (job->driver) {
            FL_TRY(fl_pinned_alloc(plan->bytes[buffer], data));
        } else if (!(*data = malloc(plan->bytes[buffer]))) {
            return fl_fail(FL_OUT_OF_MEMORY, "no host memory to copy %zu bytes that overlap",
                           plan->bytes[buffer]);
        }
    }
    return FL_OK;
}

/* Streams may still use the buffers: the caches wait for that. */
static void give_buffers(const copy_job *job, fl__copy_plan *plan) {
    for (int buffer = 0; buffer < FL__BUFFER_COUNT; buffer++) {
        void *data = plan->views[buffer].data;
        if (!plan->bytes[buffer] || !data) {
            continue;
        }
        const side *sides[2] = {&job->dst, &job->src};
        if (!is_host_buffer(buffer)) {
            /* Work on the other stream was ordered before this side's by `order`. */
            fl_memory_free(data);
        } else if (job->driver) {
            for (int i = 0; i < 2; i++) {
                if (sides[i]->is_device) {
                    (void)fl_pinned_record_stream(data, sides[i]->place.device,
                                                  sides[i]->place.stream);
                }
            }
            fl_pinned_free(data);
        } else {
            free(data);
        }
    }
}

/* --- copies ------------------------------------------------------------------------------------
 */

static size_t staged_bytes(const fl__copy_plan *plan) {
    return plan->bytes[FL__BUFFER_HOST_DST] + plan->bytes[FL__BUFFER_HOST_SRC];
}

static fl_status make_plan(const copy_job *job, const fl_view *dst, const fl_view *src,
                           fl__copy_plan *out) {
    return fl__copy_plan_make(dst, job->dst.place, src, job->src.place, job->means, out);
}

static fl_status run_plan(copy_job *job, fl__copy_plan *plan) {
    fl_status status = take_buffers(job, plan);
    if (!status) {
        status = join(job);
    }
    for (int32_t i = 0; !status && i < plan->count; i++) {
        status = run_step(job, plan, &plan->steps[i]);
    }
    if (!status) {
        status = join(job);
    }
    give_buffers(job, plan);
    return status;
}

/* The lower or the upper half of the outermost dimension that can be halved. */
static bool take_half(fl_view *dst, fl_view *src, bool upper) {
    for (int32_t dim = 0; dim < dst->ndim; dim++) {
        int64_t half = dst->shape[dim] / 2;
        if (half == 0) {
            continue;
        }
        if (upper) {
            dst->offset += half * dst->stride[dim];
            src->offset += half * src->stride[dim];
            half = dst->shape[dim] - half;
        }
        dst->shape[dim] = half;
        src->shape[dim] = half;
        return true;
    }
    return false;
}

/* Whether a part of the copy may run before another one has read its source. */
static bool is_divisible(const copy_job *job, const fl_view *dst, const fl_view *src) {
    bool same_memory = job->dst.is_device == job->src.is_device &&
                       (!job->dst.is_device || job->dst.place.device == job->src.place.device);
    return !same_memory || fl_views_overlap(dst, src) == FL_OVERLAP_NO;
}

static fl_status copy_whole_or_halves(copy_job *job, const fl_view *dst, const fl_view *src) {
    fl__copy_plan plan;
    FL_TRY(make_plan(job, dst, src, &plan));
    if (plan.count == 0) {
        return FL_OK;
    }
    if (staged_bytes(&plan) <= STAGING_MOST || !is_divisible(job, dst, src)) {
        return run_plan(job, &plan);
    }
    fl_view parts[2] = {plan.views[FL__BUFFER_DST], plan.views[FL__BUFFER_SRC]};
    fl__copy_plan half;
    if (!take_half(&parts[0], &parts[1], false)) {
        return run_plan(job, &plan);
    }
    FL_TRY(make_plan(job, &parts[0], &parts[1], &half));
    if (staged_bytes(&half) > staged_bytes(&plan) / 4 * 3) {
        return run_plan(job, &plan); /* Halves would move the same range twice. */
    }
    FL_TRY(copy_whole_or_halves(job, &parts[0], &parts[1]));
    parts[0] = plan.views[FL__BUFFER_DST];
    parts[1] = plan.views[FL__BUFFER_SRC];
    (void)take_half(&parts[0], &parts[1], true);
    return copy_whole_or_halves(job, &parts[0], &parts[1]);
}

/* One run of bytes on both sides, which do not meet: what most copies are. */
static bool is_simple(const copy_job *job, const fl_view *dst, const fl_view *src) {
    if (dst->dtype != src->dtype || (!job->dst.is_device && !job->src.is_device) ||
        !fl_view_is_contiguous(dst, FL_FORMAT_CONTIGUOUS) ||
        !fl_view_is_contiguous(src, FL_FORMAT_CONTIGUOUS)) {
        return false;
    }
    if (job->dst.is_device && job->src.is_device) {
        const char *to = fl_view_first(dst), *from = fl_view_first(src);
        size_t bytes = fl_view_nbytes(dst);
        return job->dst.place.device == job->src.place.device && !has_two_streams(job) &&
               (to + bytes <= from || from + bytes <= to);
    }
    return true;
}

static fl_status copy_simple(copy_job *job, const fl_view *dst, const fl_view *src) {
    const side *runs = job->dst.is_device ? &job->dst : &job->src;
    note_host(job, FL__BUFFER_DST);
    note_host(job, FL__BUFFER_SRC);
    return fl__drv_copy(job->driver, runs->place.device, fl_view_first(dst), fl_view_first(src),
                        fl_view_nbytes(dst), kind_of(&job->dst, &job->src), runs->native);
}

/* Keep the promise about host memory: wait, or let the pinned cache wait. */
static fl_status settle_host(const copy_job *job, const fl_view *dst, const fl_view *src,
                             bool non_blocking) {
    if (!job->touched_host_dst && !job->touched_host_src) {
        return FL_OK;
    }
    const side *runs = job->dst.is_device ? &job->dst : &job->src;
    if (non_blocking) {
        const fl_view *host = job->touched_host_dst ? dst : src;
        fl_status status =
            fl_pinned_record_stream(fl_view_first(host), runs->place.device, runs->place.stream);
        /* A driver does not return before it has read pageable memory; it may before it has
         * written it. */
        if (status == FL_OK || (status == FL_NOT_FOUND && !job->touched_host_dst)) {
            return FL_OK;
        }
    }
    return fl_stream_synchronize(runs->place.device, runs->place.stream);
}

fl_status fl__copy_run(const fl_view *dst, fl_place dst_place, const fl_view *src,
                       fl_place src_place, bool non_blocking) {
    copy_job job = {.driver = NULL};
    FL_TRY(enter_side(&job, &job.dst, dst_place));
    FL_TRY(enter_side(&job, &job.src, src_place));
    fl_status status;
    if (is_simple(&job, dst, src)) {
        status = copy_simple(&job, dst, src);
    } else {
        if (job.driver) {
            job.means.kernels = fl_kernels_get(&job.kernels) == FL_OK;
            job.means.rows = fl__drv_has_copy_2d(job.driver);
        }
        status = copy_whole_or_halves(&job, dst, src);
    }
    /* Also after a failure: what was queued before it may still run. */
    fl_status settled = settle_host(&job, dst, src, non_blocking && !status);
    return status ? status : settled;
}
