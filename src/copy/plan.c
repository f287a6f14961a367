/*
 * plan.c: which steps take the elements of one view into another.
 *
 * The rules, in the order in which they are tried, are in the four functions plan_*, one a pair of
 * places. They prefer, in this order: one driver copy; few driver copies of rows; a kernel on the
 * device; packing on the host into pinned memory. Where a driver has no kernels, a strided device
 * view is reached through its byte range: read to the host, changed there, written back. Pure.
 */
#include "copy/plan.h"

#include <string.h>

/* Rows are worth a driver copy of their own from this width on; below, packing is faster. */
#define ROW_BYTES_LEAST ((size_t)256)
/* Driver calls that are still better than staging, and those that are better than moving a range of
 * bytes that are mostly not wanted. */
#define ROW_CALLS_FEW 8
#define ROW_CALLS_MANY 4096
/* A range of at most this many bytes is not worth thinking about. */
#define RANGE_SMALL (1 << 20)

/* --- layouts -----------------------------------------------------------------------------------
 */

static size_t range_of(const fl_view *view) {
    int64_t low, high;
    fl_view_bounds(view, &low, &high);
    return (size_t)(high - low);
}

/* Every byte of the range belongs to exactly one element. */
static bool fills_range(const fl_view *view) {
    return range_of(view) == fl_view_nbytes(view) && fl_view_self_overlap(view) == FL_OVERLAP_NO;
}

/* Whether the bytes of the source's range are those of the destination's, in order. */
static bool is_plain(const fl_view *dst, const fl_view *src) {
    if (dst->dtype != src->dtype || !fills_range(dst)) {
        return false;
    }
    for (int32_t dim = 0; dim < dst->ndim; dim++) {
        if (dst->stride[dim] != src->stride[dim] && dst->shape[dim] != 1) {
            return false;
        }
    }
    return true;
}

fl__copy_rows fl__copy_rows_of(const fl_view *dst, const fl_view *src) {
    size_t element = fl_dtype_size(dst->dtype);
    fl__copy_rows out = {.width = element, .rows = 1, .calls = 1};
    int32_t left = dst->ndim;
    if (left > 0 && dst->stride[left - 1] == 1 && src->stride[left - 1] == 1) {
        left--;
        out.width = element * (size_t)dst->shape[left];
    }
    out.dst_pitch = out.width;
    out.src_pitch = out.width;
    if (left > 0) {
        int64_t to = dst->stride[left - 1] * (int64_t)element;
        int64_t from = src->stride[left - 1] * (int64_t)element;
        /* Vendors want pitches that are not smaller than the width. */
        if (to >= (int64_t)out.width && from >= (int64_t)out.width) {
            left--;
            out.rows = dst->shape[left];
            out.dst_pitch = (size_t)to;
            out.src_pitch = (size_t)from;
        }
    }
    out.outer = left;
    for (int32_t dim = 0; dim < left; dim++) {
        out.calls *= dst->shape[dim];
    }
    return out;
}

/* Driver calls that copying by rows takes. */
static int64_t row_calls(const fl__copy_plan *plan, fl__copy_means means, fl__copy_buffer to,
                         fl__copy_buffer from) {
    fl__copy_rows rows = fl__copy_rows_of(&plan->views[to], &plan->views[from]);
    return means.rows ? rows.calls : rows.calls * rows.rows;
}

static bool few_rows(const fl__copy_plan *plan, fl__copy_means means) {
    const fl_view *dst = &plan->views[FL__BUFFER_DST], *src = &plan->views[FL__BUFFER_SRC];
    return dst->dtype == src->dtype && fl__copy_rows_of(dst, src).width >= ROW_BYTES_LEAST &&
           row_calls(plan, means, FL__BUFFER_DST, FL__BUFFER_SRC) <= ROW_CALLS_FEW;
}

/* --- building ----------------------------------------------------------------------------------
 */

static void add(fl__copy_plan *plan, fl__copy_action action, fl__copy_buffer to,
                fl__copy_buffer from) {
    plan->steps[plan->count++] = (fl__copy_step){action, to, from};
}

/* A buffer for the range of `model`, with its strides and dtype. */
static void use_like(fl__copy_plan *plan, fl__copy_buffer buffer, fl__copy_buffer model) {
    fl_view *view = &plan->views[buffer];
    int64_t low, high;
    *view = plan->views[model];
    fl_view_bounds(view, &low, &high);
    view->data = NULL;
    view->offset -= low / (int64_t)fl_dtype_size(view->dtype);
    plan->bytes[buffer] = (size_t)(high - low);
}

/* A buffer without gaps, in the order of the plan's dimensions. */
static void use_packed(fl__copy_plan *plan, fl__copy_buffer buffer, fl_dtype dtype) {
    fl_view *view = &plan->views[buffer];
    *view = plan->views[FL__BUFFER_DST];
    view->data = NULL;
    view->offset = 0;
    view->dtype = dtype;
    int64_t step = 1;
    for (int32_t dim = view->ndim - 1; dim >= 0; dim--) {
        view->stride[dim] = step;
        step *= view->shape[dim];
    }
    plan->bytes[buffer] = (size_t)step * fl_dtype_size(dtype);
}

/* Of the two dtypes, the one that is cheaper to move; casting early to a smaller one loses nothing
 * that the destination would keep. */
static fl_dtype smaller(const fl__copy_plan *plan) {
    fl_dtype dst = plan->views[FL__BUFFER_DST].dtype, src = plan->views[FL__BUFFER_SRC].dtype;
    return fl_dtype_size(dst) <= fl_dtype_size(src) ? dst : src;
}

/* What is in HOST_DST goes to the destination on a device without kernels. */
static void write_back(fl__copy_plan *plan) {
    add(plan, FL__COPY_BYTES, FL__BUFFER_DST, FL__BUFFER_HOST_DST);
}

/* Give HOST_DST the destination's layout; where there are gaps, read what is in them first, since
 * they are written back too. */
static void read_around(fl__copy_plan *plan) {
    use_like(plan, FL__BUFFER_HOST_DST, FL__BUFFER_DST);
    if (!fills_range(&plan->views[FL__BUFFER_DST])) {
        add(plan, FL__COPY_BYTES, FL__BUFFER_HOST_DST, FL__BUFFER_DST);
        add(plan, FL__COPY_WAIT, FL__BUFFER_HOST_DST, FL__BUFFER_DST);
    }
}

/* --- host to device ----------------------------------------------------------------------------
 */

static void plan_upload(fl__copy_plan *plan, fl__copy_means means) {
    const fl_view *dst = &plan->views[FL__BUFFER_DST], *src = &plan->views[FL__BUFFER_SRC];
    if (is_plain(dst, src)) {
        add(plan, FL__COPY_BYTES, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    if (few_rows(plan, means)) {
        add(plan, FL__COPY_ROWS, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    bool dense = fills_range(dst);
    /* With kernels the source is sent as it is, gaps and all, unless they are most of it: devices
     * turn, cast and spread much faster than one thread of the host. */
    if (means.kernels && range_of(src) <= fl_view_nbytes(src) * 2) {
        use_like(plan, FL__BUFFER_NEAR_DST, FL__BUFFER_SRC);
        add(plan, FL__COPY_BYTES, FL__BUFFER_NEAR_DST, FL__BUFFER_SRC);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_NEAR_DST);
        return;
    }
    if (dense) {
        use_like(plan, FL__BUFFER_HOST_DST, FL__BUFFER_DST);
        add(plan, FL__COPY_HOST, FL__BUFFER_HOST_DST, FL__BUFFER_SRC);
        write_back(plan);
        return;
    }
    if (means.kernels) {
        use_packed(plan, FL__BUFFER_HOST_SRC, smaller(plan));
        use_like(plan, FL__BUFFER_NEAR_DST, FL__BUFFER_HOST_SRC);
        add(plan, FL__COPY_HOST, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
        add(plan, FL__COPY_BYTES, FL__BUFFER_NEAR_DST, FL__BUFFER_HOST_SRC);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_NEAR_DST);
        return;
    }
    use_packed(plan, FL__BUFFER_HOST_SRC, dst->dtype);
    if (row_calls(plan, means, FL__BUFFER_DST, FL__BUFFER_HOST_SRC) <= ROW_CALLS_MANY) {
        add(plan, FL__COPY_HOST, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
        add(plan, FL__COPY_ROWS, FL__BUFFER_DST, FL__BUFFER_HOST_SRC);
        return;
    }
    plan->bytes[FL__BUFFER_HOST_SRC] = 0;
    read_around(plan);
    add(plan, FL__COPY_HOST, FL__BUFFER_HOST_DST, FL__BUFFER_SRC);
    write_back(plan);
}

/* --- device to host ----------------------------------------------------------------------------
 */

/* Bring the source's elements into HOST_SRC without a kernel, and wait for them. */
static void fetch_source(fl__copy_plan *plan, fl__copy_means means) {
    const fl_view *src = &plan->views[FL__BUFFER_SRC];
    size_t wanted = fl_view_nbytes(src);
    size_t range = range_of(src);
    fl__copy_action action = FL__COPY_BYTES;
    if (range > RANGE_SMALL && range / 4 > wanted) {
        use_packed(plan, FL__BUFFER_HOST_SRC, src->dtype);
        if (row_calls(plan, means, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC) <= ROW_CALLS_MANY) {
            action = FL__COPY_ROWS;
        }
    }
    if (action == FL__COPY_BYTES) {
        use_like(plan, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
    }
    add(plan, action, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
    add(plan, FL__COPY_WAIT, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
}

static void plan_download(fl__copy_plan *plan, fl__copy_means means) {
    const fl_view *dst = &plan->views[FL__BUFFER_DST], *src = &plan->views[FL__BUFFER_SRC];
    if (is_plain(dst, src)) {
        add(plan, FL__COPY_BYTES, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    if (few_rows(plan, means)) {
        add(plan, FL__COPY_ROWS, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    /* What is expanded travels once and is spread on the host. */
    if (!means.kernels || range_of(src) * 2 <= fl_view_nbytes(dst)) {
        fetch_source(plan, means);
        add(plan, FL__COPY_HOST, FL__BUFFER_DST, FL__BUFFER_HOST_SRC);
        return;
    }
    if (fills_range(dst)) {
        use_like(plan, FL__BUFFER_NEAR_SRC, FL__BUFFER_DST);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_NEAR_SRC, FL__BUFFER_SRC);
        add(plan, FL__COPY_BYTES, FL__BUFFER_DST, FL__BUFFER_NEAR_SRC);
        return;
    }
    if (fills_range(src) && fl_dtype_size(src->dtype) <= fl_dtype_size(dst->dtype)) {
        fetch_source(plan, means);
        add(plan, FL__COPY_HOST, FL__BUFFER_DST, FL__BUFFER_HOST_SRC);
        return;
    }
    use_packed(plan, FL__BUFFER_NEAR_SRC, smaller(plan));
    use_like(plan, FL__BUFFER_HOST_SRC, FL__BUFFER_NEAR_SRC);
    add(plan, FL__COPY_KERNEL, FL__BUFFER_NEAR_SRC, FL__BUFFER_SRC);
    add(plan, FL__COPY_BYTES, FL__BUFFER_HOST_SRC, FL__BUFFER_NEAR_SRC);
    add(plan, FL__COPY_WAIT, FL__BUFFER_HOST_SRC, FL__BUFFER_NEAR_SRC);
    add(plan, FL__COPY_HOST, FL__BUFFER_DST, FL__BUFFER_HOST_SRC);
}

/* --- on one device ------------------------------------------------------------------------------
 */

/* Both ways through the host. */
static void plan_detour(fl__copy_plan *plan, fl__copy_means means) {
    fetch_source(plan, means);
    read_around(plan);
    add(plan, FL__COPY_HOST, FL__BUFFER_HOST_DST, FL__BUFFER_HOST_SRC);
    write_back(plan);
}

static void plan_within(fl__copy_plan *plan, fl__copy_means means, bool overlap) {
    const fl_view *dst = &plan->views[FL__BUFFER_DST], *src = &plan->views[FL__BUFFER_SRC];
    if (!overlap && is_plain(dst, src)) {
        add(plan, FL__COPY_BYTES, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    if (means.kernels && overlap) {
        use_packed(plan, FL__BUFFER_NEAR_DST, dst->dtype);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_NEAR_DST, FL__BUFFER_SRC);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_NEAR_DST);
        return;
    }
    if (means.kernels) {
        add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    if (!overlap && dst->dtype == src->dtype &&
        row_calls(plan, means, FL__BUFFER_DST, FL__BUFFER_SRC) <= ROW_CALLS_MANY) {
        add(plan, FL__COPY_ROWS, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    plan_detour(plan, means);
}

/* --- between two devices ------------------------------------------------------------------------
 */

static void plan_between(fl__copy_plan *plan, fl__copy_means means) {
    const fl_view *dst = &plan->views[FL__BUFFER_DST], *src = &plan->views[FL__BUFFER_SRC];
    if (is_plain(dst, src)) {
        add(plan, FL__COPY_PEER, FL__BUFFER_DST, FL__BUFFER_SRC);
        return;
    }
    if (!means.kernels) {
        plan_detour(plan, means);
        return;
    }
    bool widens = fl_dtype_size(dst->dtype) > fl_dtype_size(src->dtype);
    bool expands = range_of(src) * 2 <= fl_view_nbytes(dst);
    if (expands || (fills_range(src) && (widens || !fills_range(dst)))) {
        use_like(plan, FL__BUFFER_NEAR_DST, FL__BUFFER_SRC);
        add(plan, FL__COPY_PEER, FL__BUFFER_NEAR_DST, FL__BUFFER_SRC);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_NEAR_DST);
        return;
    }
    if (fills_range(dst) && !widens) {
        use_like(plan, FL__BUFFER_NEAR_SRC, FL__BUFFER_DST);
        add(plan, FL__COPY_KERNEL, FL__BUFFER_NEAR_SRC, FL__BUFFER_SRC);
        add(plan, FL__COPY_PEER, FL__BUFFER_DST, FL__BUFFER_NEAR_SRC);
        return;
    }
    use_packed(plan, FL__BUFFER_NEAR_SRC, smaller(plan));
    use_like(plan, FL__BUFFER_NEAR_DST, FL__BUFFER_NEAR_SRC);
    add(plan, FL__COPY_KERNEL, FL__BUFFER_NEAR_SRC, FL__BUFFER_SRC);
    add(plan, FL__COPY_PEER, FL__BUFFER_NEAR_DST, FL__BUFFER_NEAR_SRC);
    add(plan, FL__COPY_KERNEL, FL__BUFFER_DST, FL__BUFFER_NEAR_DST);
}

/* --- overlap ------------------------------------------------------------------------------------
 */

fl_status fl__copy_check_target(const fl_view *dst) {
    for (int32_t dim = 0; dim < dst->ndim; dim++) {
        if (dst->stride[dim] == 0 && dst->shape[dim] > 1) {
            return fl_fail(FL_INVALID_ARGUMENT,
                           "unsupported operation: more than one element of the written-to tensor "
                           "refers to a single memory location. Please clone() the tensor before "
                           "performing the operation.");
        }
    }
    return FL_OK;
}

/* What PyTorch refuses, in its words; `out_overlap` where it does not and bytes are shared. */
static fl_status check_overlap(const fl_view *dst, const fl_view *src, bool same_memory,
                               bool *out_overlap) {
    *out_overlap = false;
    FL_TRY(fl__copy_check_target(dst));
    if (!same_memory || fl_view_is_same(dst, src)) {
        return FL_OK;
    }
    *out_overlap = fl_views_overlap(dst, src) != FL_OVERLAP_NO;
    if (*out_overlap && fl_view_is_dense(dst) && fl_view_is_dense(src)) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "unsupported operation: some elements of the input tensor and the "
                       "written-to tensor refer to a single memory location. Please clone() the "
                       "tensor before performing the operation.");
    }
    return FL_OK;
}

/* --- all of it ---------------------------------------------------------------------------------
 */

static bool is_device(fl_place place) {
    return place.kind == FL_PLACE_DEVICE;
}

fl_status fl__copy_plan_make(const fl_view *dst, fl_place dst_place, const fl_view *src,
                             fl_place src_place, fl__copy_means means, fl__copy_plan *out) {
    out->count = 0;
    memset(out->bytes, 0, sizeof(out->bytes));
    bool same_device =
        is_device(dst_place) && is_device(src_place) && dst_place.device == src_place.device;
    bool same_memory = same_device || (!is_device(dst_place) && !is_device(src_place));
    if (fl_view_numel(dst) == 0) {
        return FL_OK;
    }
    bool overlap;
    FL_TRY(check_overlap(dst, src, same_memory, &overlap));
    if (same_memory && dst->dtype == src->dtype && fl_view_is_same(dst, src)) {
        return FL_OK;
    }
    out->views[FL__BUFFER_DST] = *dst;
    out->views[FL__BUFFER_SRC] = *src;
    if (fl_view_self_overlap(dst) == FL_OVERLAP_NO) {
        fl_views_sort(out->views, 2);
    }
    fl_views_collapse(out->views, 2);

    if (same_device) {
        plan_within(out, means, overlap);
    } else if (is_device(dst_place) && is_device(src_place)) {
        plan_between(out, means);
    } else if (is_device(dst_place)) {
        plan_upload(out, means);
    } else if (is_device(src_place)) {
        plan_download(out, means);
    } else if (overlap) {
        use_packed(out, FL__BUFFER_HOST_SRC, src->dtype);
        add(out, FL__COPY_HOST, FL__BUFFER_HOST_SRC, FL__BUFFER_SRC);
        add(out, FL__COPY_HOST, FL__BUFFER_DST, FL__BUFFER_HOST_SRC);
    } else {
        add(out, FL__COPY_HOST, FL__BUFFER_DST, FL__BUFFER_SRC);
    }
    return FL_OK;
}
