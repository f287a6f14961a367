/*
 * layouts.h: views of many layouts over one storage, for tests of copies.
 */
#ifndef FL_TESTS_LAYOUTS_H
#define FL_TESTS_LAYOUTS_H

#include "fl/view.h"

/* What is done to a dense view of permuted dimensions. */
typedef enum layout_change {
    LAYOUT_DENSE = 0,
    LAYOUT_GAPS,     /* Every second element of one dimension. */
    LAYOUT_PADDED,   /* Rows of the innermost dimension have elements behind them. */
    LAYOUT_FLIPPED,  /* One dimension runs backwards. */
    LAYOUT_EXPANDED, /* One dimension has stride 0; for sources. */
    LAYOUT_COUNT,
} layout_change;

/* A view of that shape whose dimension order[0] is outermost in memory. `which` picks the dimension
 * that is changed. Data is NULL; the offset makes every byte of the view lie at 0 or above, and
 * `out_elems` is the number of elements that a storage needs. */
fl_view layout_make(fl_dtype dtype, int32_t ndim, const int64_t *shape, const int32_t *order,
                    layout_change change, int32_t which, int64_t *out_elems);

/* The next permutation in lexicographic order; false after the last one, which becomes the first.
 */
bool layout_next_order(int32_t *order, int32_t ndim);

/* Call `visit` with the byte offsets, relative to the data, of each index in turn. */
void layout_each(const fl_view *dst, const fl_view *src,
                 void (*visit)(void *user, int64_t dst_byte, int64_t src_byte), void *user);

/* Whether the bytes are the same, or differ only in the payloads of NaNs. */
bool layout_same_values(fl_dtype dtype, const void *a, const void *b, size_t bytes);

#endif
