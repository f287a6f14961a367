/*
 * loops.c: several views of one shape, prepared for a loop over their elements.
 *
 * Pure arithmetic. Does not know what the loop does.
 */
#include "fl/view.h"

/* Unsigned, for the smallest int64_t has no positive counterpart. */
static uint64_t magnitude(int64_t stride) {
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* Whether dimension `a` belongs outside of `b`. */
static bool is_outer(const fl_view *views, int32_t count, int32_t a, int32_t b) {
    for (int32_t v = 0; v < count; v++) {
        uint64_t stride_a = magnitude(views[v].stride[a]);
        uint64_t stride_b = magnitude(views[v].stride[b]);
        if (stride_a != stride_b) {
            return stride_a > stride_b;
        }
    }
    return false; /* Equal ones keep their order. */
}

static void swap_dims(fl_view *views, int32_t count, int32_t a, int32_t b) {
    for (int32_t v = 0; v < count; v++) {
        int64_t shape = views[v].shape[a];
        int64_t stride = views[v].stride[a];
        views[v].shape[a] = views[v].shape[b];
        views[v].stride[a] = views[v].stride[b];
        views[v].shape[b] = shape;
        views[v].stride[b] = stride;
    }
}

void fl_views_sort(fl_view *views, int32_t count) {
    for (int32_t i = 1; i < views[0].ndim; i++) {
        for (int32_t j = i; j > 0 && is_outer(views, count, j, j - 1); j--) {
            swap_dims(views, count, j, j - 1);
        }
    }
}

/* Whether every view steps from the end of dimension `inner` to the next index of `outer`. */
static bool can_merge(const fl_view *views, int32_t count, int32_t outer, int32_t inner) {
    for (int32_t v = 0; v < count; v++) {
        int64_t reach;
        if (__builtin_mul_overflow(views[v].stride[inner], views[v].shape[inner], &reach) ||
            views[v].stride[outer] != reach) {
            return false;
        }
    }
    return true;
}

void fl_views_collapse(fl_view *views, int32_t count) {
    int32_t ndim = views[0].ndim;
    if (fl_view_numel(&views[0]) == 0) {
        for (int32_t v = 0; v < count; v++) {
            views[v].ndim = 1;
            views[v].shape[0] = 0;
            views[v].stride[0] = 1;
        }
        return;
    }
    int32_t kept = 0; /* Dimensions 0..kept-1 are done; kept-1 may still take in the next one. */
    for (int32_t i = 0; i < ndim; i++) {
        if (views[0].shape[i] == 1) {
            continue;
        }
        bool merges = kept > 0 && can_merge(views, count, kept - 1, i);
        for (int32_t v = 0; v < count; v++) {
            if (merges) {
                views[v].shape[kept - 1] *= views[v].shape[i];
                views[v].stride[kept - 1] = views[v].stride[i];
            } else {
                views[v].shape[kept] = views[v].shape[i];
                views[v].stride[kept] = views[v].stride[i];
            }
        }
        kept += !merges;
    }
    for (int32_t v = 0; v < count; v++) {
        views[v].ndim = kept;
    }
}
