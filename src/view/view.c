/*
 * view.c: questions about strided views, and views made of views.
 *
 * Pure arithmetic, safe against overflow. Does not know where the bytes live.
 */
#include "fl/view.h"

#include <inttypes.h>

static const size_t dtype_sizes[FL_DTYPE_COUNT] = {
#define DTYPE_SIZE(name, bytes, code, bits) [FL_DTYPE_##name] = bytes,
    FL_DTYPE_LIST(DTYPE_SIZE)
#undef DTYPE_SIZE
};

static const char *const dtype_names[FL_DTYPE_COUNT] = {
#define DTYPE_NAME(name, bytes, code, bits) [FL_DTYPE_##name] = #name,
    FL_DTYPE_LIST(DTYPE_NAME)
#undef DTYPE_NAME
};

size_t fl_dtype_size(fl_dtype dtype) {
    return (unsigned)dtype < FL_DTYPE_COUNT ? dtype_sizes[dtype] : 0;
}

const char *fl_dtype_name(fl_dtype dtype) {
    return (unsigned)dtype < FL_DTYPE_COUNT ? dtype_names[dtype] : "unknown";
}

/* --- questions ------------------------------------------------------------------------------- */

fl_status fl_shape_numel(int32_t ndim, const int64_t *shape, int64_t *out_numel) {
    int64_t numel = 1;
    bool overflows = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return fl_fail(FL_INVALID_ARGUMENT, "size %" PRId64 " of dimension %d is negative",
                           shape[i], i);
        }
    }
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            *out_numel = 0;
            return FL_OK;
        }
        overflows = overflows || __builtin_mul_overflow(numel, shape[i], &numel);
    }
    if (overflows) {
        return fl_fail(FL_INVALID_ARGUMENT, "the number of elements does not fit 63 bits");
    }
    *out_numel = numel;
    return FL_OK;
}

/* Lowest and highest element reached, relative to `data`; false on overflow. There are elements. */
static bool element_bounds(const fl_view *view, int64_t *out_low, int64_t *out_high) {
    int64_t low = view->offset;
    int64_t high = view->offset;
    for (int32_t i = 0; i < view->ndim; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(view->shape[i] - 1, view->stride[i], &reach)) {
            return false;
        }
        int64_t *side = reach < 0 ? &low : &high;
        if (__builtin_add_overflow(*side, reach, side)) {
            return false;
        }
    }
    *out_low = low;
    *out_high = high;
    return true;
}

fl_status fl_view_check(const fl_view *view) {
    int64_t size = (int64_t)fl_dtype_size(view->dtype);
    if (size == 0) {
        return fl_fail(FL_INVALID_ARGUMENT, "%d is no dtype", (int)view->dtype);
    }
    if (view->ndim < 0 || view->ndim > FL_VIEW_DIMS_MAX) {
        return fl_fail(FL_INVALID_ARGUMENT, "a view has 0 to %d dimensions, not %d",
                       FL_VIEW_DIMS_MAX, view->ndim);
    }
    int64_t numel = 0;
    FL_TRY(fl_shape_numel(view->ndim, view->shape, &numel));
    int64_t low = 0;
    int64_t high = 0;
    int64_t bytes;
    /* The smallest number is refused, so that every stride that is taken may be negated. */
    if (__builtin_mul_overflow(numel, size, &bytes) ||
        (numel > 0 &&
         (!element_bounds(view, &low, &high) || __builtin_mul_overflow(low, size, &bytes) ||
          bytes == INT64_MIN || __builtin_add_overflow(high, INT64_C(1), &high) ||
          __builtin_mul_overflow(high, size, &bytes)))) {
        return fl_fail(FL_INVALID_ARGUMENT, "the view's extent in bytes does not fit 63 bits");
    }
    return FL_OK;
}

int64_t fl_view_numel(const fl_view *view) {
    int64_t numel = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        if (view->shape[i] == 0) {
            return 0;
        }
    }
    for (int32_t i = 0; i < view->ndim; i++) {
        numel *= view->shape[i];
    }
    return numel;
}

size_t fl_view_nbytes(const fl_view *view) {
    return (size_t)fl_view_numel(view) * fl_dtype_size(view->dtype);
}

void *fl_view_first(const fl_view *view) {
    int64_t bytes;
    if (!view->data ||
        __builtin_mul_overflow(view->offset, (int64_t)fl_dtype_size(view->dtype), &bytes)) {
        return view->data; /* Without elements an offset may be any number. */
    }
    return (void *)((uintptr_t)view->data + (uintptr_t)bytes);
}

void fl_view_bounds(const fl_view *view, int64_t *out_low, int64_t *out_high) {
    int64_t size = (int64_t)fl_dtype_size(view->dtype);
    int64_t low = 0;
    int64_t high = 0;
    if (fl_view_numel(view) == 0 || !element_bounds(view, &low, &high)) {
        *out_low = 0;
        *out_high = 0;
        return;
    }
    *out_low = low * size;
    *out_high = (high + 1) * size;
}

fl_status fl_view_fits(const fl_view *view, uint64_t storage_bytes) {
    int64_t low = 0;
    int64_t high = 0;
    fl_view_bounds(view, &low, &high);
    if (low < 0) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "the view reaches %" PRIu64 " bytes in front of its storage",
                       0 - (uint64_t)low);
    }
    if ((uint64_t)high > storage_bytes) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "the view needs a storage of %" PRId64 " bytes, there are %" PRIu64, high,
                       storage_bytes);
    }
    return FL_OK;
}

/* Dimensions in memory from the innermost out; false if the format has another number of them. */
static bool format_order(fl_format format, int32_t ndim, int32_t out_order[FL_VIEW_DIMS_MAX]) {
    static const int32_t last_4d[] = {1, 3, 2, 0};
    static const int32_t last_5d[] = {1, 4, 3, 2, 0};
    const int32_t *order = format == FL_FORMAT_CHANNELS_LAST ? last_4d : last_5d;
    if (format == FL_FORMAT_CONTIGUOUS) {
        for (int32_t i = 0; i < ndim; i++) {
            out_order[i] = ndim - 1 - i;
        }
        return true;
    }
    if (ndim != (format == FL_FORMAT_CHANNELS_LAST ? 4 : 5)) {
        return false;
    }
    for (int32_t i = 0; i < ndim; i++) {
        out_order[i] = order[i];
    }
    return true;
}

bool fl_view_is_contiguous(const fl_view *view, fl_format format) {
    int32_t order[FL_VIEW_DIMS_MAX];
    if (!format_order(format, view->ndim, order)) {
        return false;
    }
    if (format == FL_FORMAT_CONTIGUOUS && fl_view_numel(view) == 0) {
        return true;
    }
    int64_t expected = 1;
    bool overflows = false; /* Without elements. */
    for (int32_t i = 0; i < view->ndim; i++) {
        int64_t size = view->shape[order[i]];
        if (size != 1) {
            if (overflows || view->stride[order[i]] != expected) {
                return false;
            }
            overflows = __builtin_mul_overflow(expected, size, &expected);
        }
    }
    return true;
}

bool fl_view_is_dense(const fl_view *view) {
    if (fl_view_numel(view) < 2) {
        return true;
    }
    bool used[FL_VIEW_DIMS_MAX] = {false};
    int64_t expected = 1;
    for (int32_t found = 0; found < view->ndim; found++) {
        int32_t next = -1;
        for (int32_t i = 0; i < view->ndim && next < 0; i++) {
            if (!used[i] && (view->shape[i] == 1 || view->stride[i] == expected)) {
                next = i;
            }
        }
        if (next < 0) {
            return false;
        }
        used[next] = true;
        expected *= view->shape[next];
    }
    return true;
}

bool fl_view_is_same(const fl_view *a, const fl_view *b) {
    if (a->ndim != b->ndim || fl_dtype_size(a->dtype) != fl_dtype_size(b->dtype)) {
        return false;
    }
    bool is_empty = fl_view_numel(a) == 0;
    for (int32_t i = 0; i < a->ndim; i++) {
        if (a->shape[i] != b->shape[i] ||
            (!is_empty && a->shape[i] > 1 && a->stride[i] != b->stride[i])) {
            return false;
        }
    }
    return is_empty || fl_view_first(a) == fl_view_first(b);
}

/* --- views made of views --------------------------------------------------------------------- */

static fl_status finish(const fl_view *result, fl_view *out) {
    FL_TRY(fl_view_check(result));
    *out = *result;
    return FL_OK;
}

static fl_status check_dims(int32_t ndim) {
    if (ndim < 0 || ndim > FL_VIEW_DIMS_MAX) {
        return fl_fail(FL_INVALID_ARGUMENT, "a view has 0 to %d dimensions, not %d",
                       FL_VIEW_DIMS_MAX, ndim);
    }
    return FL_OK;
}

static fl_status check_dim(const fl_view *view, int32_t dim) {
    if (dim < 0 || dim >= view->ndim) {
        return fl_fail(FL_INVALID_ARGUMENT, "dimension %d is asked of a view with %d", dim,
                       view->ndim);
    }
    return FL_OK;
}

fl_status fl_view_init(fl_view *out, void *data, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                       fl_format format) {
    int32_t order[FL_VIEW_DIMS_MAX];
    FL_TRY(check_dims(ndim));
    if (!format_order(format, ndim, order)) {
        return fl_fail(FL_INVALID_ARGUMENT, "no channels-last format has %d dimensions", ndim);
    }
    int64_t numel = 0;
    FL_TRY(fl_shape_numel(ndim, shape, &numel));
    fl_view result = {.data = data, .offset = 0, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;
    for (int32_t i = 0; i < ndim; i++) {
        int64_t size = shape[order[i]];
        result.shape[order[i]] = size;
        result.stride[order[i]] = stride;
        /* As PyTorch does it: sizes of 0 count as 1 for the strides. The last product is no stride.
         */
        if (i + 1 < ndim && __builtin_mul_overflow(stride, size > 1 ? size : 1, &stride)) {
            return fl_fail(FL_INVALID_ARGUMENT, "the strides do not fit 63 bits");
        }
    }
    return finish(&result, out);
}

fl_status fl_view_expand(const fl_view *view, int32_t ndim, const int64_t *shape, fl_view *out) {
    FL_TRY(check_dims(ndim));
    int32_t added = ndim - view->ndim;
    if (added < 0) {
        return fl_fail(FL_INVALID_ARGUMENT, "a view of %d dimensions cannot be expanded to %d",
                       view->ndim, ndim);
    }
    fl_view result = *view;
    result.ndim = ndim;
    for (int32_t i = 0; i < ndim; i++) {
        int64_t size = i < added ? 1 : view->shape[i - added];
        int64_t stride = i < added ? 0 : view->stride[i - added];
        int64_t wanted = shape[i] == -1 && i >= added ? size : shape[i];
        if (wanted != size && (size != 1 || wanted < 0)) {
            return fl_fail(FL_INVALID_ARGUMENT,
                           "size %" PRId64 " of dimension %d cannot be expanded to %" PRId64, size,
                           i, shape[i]);
        }
        result.shape[i] = wanted;
        result.stride[i] = wanted == size ? stride : 0;
    }
    return finish(&result, out);
}

fl_status fl_view_permute(const fl_view *view, const int32_t *order, fl_view *out) {
    bool used[FL_VIEW_DIMS_MAX] = {false};
    fl_view result = *view;
    for (int32_t i = 0; i < view->ndim; i++) {
        FL_TRY(check_dim(view, order[i]));
        if (used[order[i]]) {
            return fl_fail(FL_INVALID_ARGUMENT, "dimension %d appears twice in a permutation",
                           order[i]);
        }
        used[order[i]] = true;
        result.shape[i] = view->shape[order[i]];
        result.stride[i] = view->stride[order[i]];
    }
    return finish(&result, out);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

/* Move the first element along a dimension; the distance may not be representable only if there
 * are no elements, and then it does not matter. */
static int64_t moved_offset(const fl_view *view, int32_t dim, int64_t steps) {
    int64_t distance;
    int64_t offset;
    if (__builtin_mul_overflow(steps, view->stride[dim], &distance) ||
        __builtin_add_overflow(view->offset, distance, &offset)) {
        return view->offset;
    }
    return offset;
}

/* The stride of every so many elements. One that no number holds is never taken, since no two
 * elements lie that far apart, and stays as it was. */
static int64_t stride_of_steps(int64_t stride, int64_t step) {
    int64_t result;
    return __builtin_mul_overflow(stride, step, &result) ? stride : result;
}

fl_status fl_view_slice(const fl_view *view, int32_t dim, int64_t start, int64_t end, int64_t step,
                        fl_view *out) {
    FL_TRY(check_dim(view, dim));
    if (step < 1) {
        return fl_fail(FL_INVALID_ARGUMENT, "a slice's step is at least 1, not %" PRId64, step);
    }
    int64_t size = view->shape[dim];
    start = clamp(start < 0 ? start + size : start, 0, size);
    end = clamp(end < 0 ? end + size : end, start, size);
    fl_view result = *view;
    /* Not (end - start + step - 1), which may overflow for a large step. */
    result.shape[dim] = (end - start) / step + ((end - start) % step != 0);
    result.stride[dim] = stride_of_steps(view->stride[dim], step);
    result.offset = moved_offset(view, dim, start);
    return finish(&result, out);
}

fl_status fl_view_select(const fl_view *view, int32_t dim, int64_t index, fl_view *out) {
    FL_TRY(check_dim(view, dim));
    int64_t size = view->shape[dim];
    if (index < -size || index >= size) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "index %" PRId64 " is outside of dimension %d of size %" PRId64, index, dim,
                       size);
    }
    fl_view result = *view;
    result.offset = moved_offset(view, dim, index < 0 ? index + size : index);
    result.ndim--;
    for (int32_t i = dim; i < result.ndim; i++) {
        result.shape[i] = view->shape[i + 1];
        result.stride[i] = view->stride[i + 1];
    }
    return finish(&result, out);
}

fl_status fl_view_unfold(const fl_view *view, int32_t dim, int64_t size, int64_t step,
                         fl_view *out) {
    FL_TRY(check_dim(view, dim));
    FL_TRY(check_dims(view->ndim + 1));
    int64_t have = view->shape[dim];
    if (size < 0 || size > have || step < 1) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "windows of %" PRId64 " every %" PRId64 " of a dimension of size %" PRId64,
                       size, step, have);
    }
    fl_view result = *view;
    result.shape[view->ndim] = size;
    result.stride[view->ndim] = view->stride[dim];
    result.shape[dim] = (have - size) / step + 1;
    result.stride[dim] = stride_of_steps(view->stride[dim], step);
    result.ndim++;
    return finish(&result, out);
}

fl_status fl_view_as_strided(const fl_view *view, int32_t ndim, const int64_t *shape,
                             const int64_t *stride, int64_t offset, fl_view *out) {
    FL_TRY(check_dims(ndim));
    fl_view result = {.data = view->data, .offset = offset, .dtype = view->dtype, .ndim = ndim};
    for (int32_t i = 0; i < ndim; i++) {
        result.shape[i] = shape[i];
        result.stride[i] = stride[i];
    }
    return finish(&result, out);
}

/* The stride behind `count` elements, or the largest number, which no dimension of more than one
 * element can have: a view of few elements may step through nearly all that an int64_t can tell. */
static int64_t stride_behind(int64_t count, int64_t stride) {
    int64_t behind;
    return __builtin_mul_overflow(count, stride, &behind) ? INT64_MAX : behind;
}

fl_status fl_view_reshape(const fl_view *view, int32_t ndim, const int64_t *shape, fl_view *out) {
    FL_TRY(check_dims(ndim));
    int64_t numel = 0;
    FL_TRY(fl_shape_numel(ndim, shape, &numel));
    if (numel != fl_view_numel(view)) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "a view of %" PRId64 " elements cannot take a shape of %" PRId64,
                       fl_view_numel(view), numel);
    }
    if (numel == 0) {
        bool is_same = ndim == view->ndim;
        for (int32_t i = 0; i < ndim && is_same; i++) {
            is_same = shape[i] == view->shape[i];
        }
        if (is_same) {
            *out = *view; /* As PyTorch: the strides are kept. */
            return FL_OK;
        }
        fl_view result;
        FL_TRY(fl_view_init(&result, view->data, view->dtype, ndim, shape, FL_FORMAT_CONTIGUOUS));
        result.offset = view->offset;
        return finish(&result, out);
    }
    fl_view result = {
        .data = view->data, .offset = view->offset, .dtype = view->dtype, .ndim = ndim};
    /* From the innermost dimension out: each run of old dimensions that steps through memory as
     * one is spread over as many new dimensions as have its number of elements. */
    int32_t next = ndim - 1;
    int64_t run_stride = view->ndim ? view->stride[view->ndim - 1] : 1;
    int64_t run_numel = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        run_numel *= view->shape[i];
        bool ends = i == 0 || (view->shape[i - 1] != 1 &&
                               view->stride[i - 1] != stride_behind(run_numel, run_stride));
        if (!ends) {
            continue;
        }
        int64_t placed = 1;
        while (next >= 0 && (placed < run_numel || shape[next] == 1)) {
            result.shape[next] = shape[next];
            result.stride[next] = stride_behind(placed, run_stride);
            placed *= shape[next];
            next--;
        }
        if (placed != run_numel) {
            return FL_NOT_SUPPORTED;
        }
        if (i > 0) {
            run_numel = 1;
            run_stride = view->stride[i - 1];
        }
    }
    for (; next >= 0; next--) { /* Of a scalar: all sizes are 1. */
        result.shape[next] = shape[next];
        result.stride[next] = 1;
    }
    return finish(&result, out);
}
