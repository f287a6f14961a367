/* layouts.c: views of many layouts. */
#include "layouts.h"

#include <string.h>

#include "fl/kernels.h"

fl_view layout_make(fl_dtype dtype, int32_t ndim, const int64_t *shape, const int32_t *order,
                    layout_change change, int32_t which, int64_t *out_elems) {
    fl_view view;
    memset(&view, 0, sizeof(view));
    view.dtype = dtype;
    view.ndim = ndim;
    int64_t step = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        int32_t dim = order[i];
        view.shape[dim] = shape[dim];
        view.stride[dim] = step;
        int64_t reach = shape[dim];
        if (change == LAYOUT_GAPS && dim == which) {
            view.stride[dim] = 2 * step;
            reach *= 2;
        }
        if (change == LAYOUT_EXPANDED && dim == which) {
            view.stride[dim] = 0;
            reach = 1;
        }
        if (change == LAYOUT_PADDED && i == ndim - 1) {
            reach += 3;
        }
        step *= reach;
    }
    if (change == LAYOUT_FLIPPED && ndim > 0) {
        view.offset = view.stride[which] * (view.shape[which] - 1);
        view.stride[which] = -view.stride[which];
    }
    view.offset += 5;
    *out_elems = step + 10;
    return view;
}

bool layout_next_order(int32_t *order, int32_t ndim) {
    int32_t i = ndim - 2;
    while (i >= 0 && order[i] > order[i + 1]) {
        i--;
    }
    for (int32_t low = i + 1, high = ndim - 1; low < high; low++, high--) {
        int32_t kept = order[low];
        order[low] = order[high];
        order[high] = kept;
    }
    if (i < 0) {
        return false;
    }
    int32_t j = i + 1;
    while (order[j] < order[i]) {
        j++;
    }
    int32_t kept = order[i];
    order[i] = order[j];
    order[j] = kept;
    return true;
}

void layout_each(const fl_view *dst, const fl_view *src,
                 void (*visit)(void *user, int64_t dst_byte, int64_t src_byte), void *user) {
    int64_t index[FL_VIEW_DIMS_MAX] = {0};
    int64_t count = fl_view_numel(dst);
    int64_t dst_size = (int64_t)fl_dtype_size(dst->dtype);
    int64_t src_size = (int64_t)fl_dtype_size(src->dtype);
    for (int64_t n = 0; n < count; n++) {
        int64_t to = dst->offset, from = src->offset;
        for (int32_t dim = 0; dim < dst->ndim; dim++) {
            to += index[dim] * dst->stride[dim];
            from += index[dim] * src->stride[dim];
        }
        visit(user, to * dst_size, from * src_size);
        for (int32_t dim = dst->ndim - 1; dim >= 0 && ++index[dim] == dst->shape[dim]; dim--) {
            index[dim] = 0;
        }
    }
}

/* The two parts of the element, as doubles. */
static void parts_of(fl_dtype dtype, const char *at, double out[2]) {
    fl_view from = {.data = (void *)(uintptr_t)at, .dtype = dtype};
    fl_view to = {.data = out, .dtype = FL_DTYPE_C128};
    fl_host_copy(&to, &from);
}

bool layout_same_values(fl_dtype dtype, const void *a, const void *b, size_t bytes) {
    size_t size = fl_dtype_size(dtype);
    if (memcmp(a, b, bytes) == 0) {
        return true;
    }
    for (size_t at = 0; at + size <= bytes; at += size) {
        const char *left = (const char *)a + at, *right = (const char *)b + at;
        double one[2], other[2];
        if (memcmp(left, right, size) == 0) {
            continue;
        }
        parts_of(dtype, left, one);
        parts_of(dtype, right, other);
        for (int part = 0; part < 2; part++) {
            bool both_nan = one[part] != one[part] && other[part] != other[part];
            if (!both_nan && memcmp(&one[part], &other[part], sizeof(one[part])) != 0) {
                return false;
            }
        }
    }
    return true;
}
