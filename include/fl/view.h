/*
 * view.h: a strided view of a storage, and arithmetic on it.
 *
 * Fields and units are DLPack's: shape and strides count elements, strides may be 0 or negative.
 * Everything here is pure: nothing is read or written where the bytes live, nothing is allocated.
 * Every function that takes a view expects fl_view_check to hold for it; results satisfy it again,
 * or the function says why not with FL_INVALID_ARGUMENT and leaves its output as it was. Input and
 * output may be the same view.
 */
#ifndef FL_VIEW_H
#define FL_VIEW_H

#include "fl/status.h"
#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* PyTorch's limit as well. */
#define FL_VIEW_DIMS_MAX 64

typedef struct fl_view {
    void *data;     /* The storage's first byte; NULL is allowed where there are no elements. */
    int64_t offset; /* Elements from there to the element with all indexes 0. */
    fl_dtype dtype;
    int32_t ndim; /* 0: one element, a scalar. */
    int64_t shape[FL_VIEW_DIMS_MAX];
    int64_t stride[FL_VIEW_DIMS_MAX];
} fl_view;

/* Orders of the dimensions in memory. The last two hold for 4 and 5 dimensions only. */
typedef enum fl_format {
    FL_FORMAT_CONTIGUOUS = 0,
    FL_FORMAT_CHANNELS_LAST,
    FL_FORMAT_CHANNELS_LAST_3D,
} fl_format;

typedef enum fl_overlap {
    FL_OVERLAP_NO = 0,
    FL_OVERLAP_YES,
    FL_OVERLAP_MAYBE, /* Deciding would take too long; treat as yes. */
} fl_overlap;

/* --- dtypes ----------------------------------------------------------------------------------- */

FL_API size_t fl_dtype_size(fl_dtype dtype);      /* Bytes; 0 for a number that is none. */
FL_API const char *fl_dtype_name(fl_dtype dtype); /* "F32"; "unknown" likewise. */

/* --- questions ----------------------------------------------------------------------------------
 */

/* A known dtype, 0 to 64 dimensions, no negative size, and a number of elements and byte distances
 * that fit 63 bits. */
FL_API fl_status fl_view_check(const fl_view *view);

/* Product of the shape; 0 as soon as one size is 0. FL_INVALID_ARGUMENT if it exceeds 63 bits. */
FL_API fl_status fl_shape_numel(int32_t ndim, const int64_t *shape, int64_t *out_numel);

FL_API int64_t fl_view_numel(const fl_view *view);
FL_API size_t fl_view_nbytes(const fl_view *view); /* Elements times size, gaps not counted. */

/* The element with all indexes 0. */
FL_API void *fl_view_first(const fl_view *view);

/* Bytes touched, relative to `data`: low <= x < high; 0, 0 where there are no elements. Low is
 * negative only for views that reach in front of their storage. */
FL_API void fl_view_bounds(const fl_view *view, int64_t *out_low, int64_t *out_high);

/* FL_INVALID_ARGUMENT if the view reaches outside a storage of that many bytes; the message has
 * both figures. */
FL_API fl_status fl_view_fits(const fl_view *view, uint64_t storage_bytes);

/* As PyTorch: strides of dimensions of size 1 do not matter, a view without elements is contiguous
 * in FL_FORMAT_CONTIGUOUS, and in the others if its strides are. */
FL_API bool fl_view_is_contiguous(const fl_view *view, fl_format format);

/* Some order of the dimensions makes it contiguous: no gap and no overlap. */
FL_API bool fl_view_is_dense(const fl_view *view);

/* Same shape, and the same element at each index: same first element, strides, dtype size. */
FL_API bool fl_view_is_same(const fl_view *a, const fl_view *b);

/* Do two indexes of the view reach a common element? */
FL_API fl_overlap fl_view_self_overlap(const fl_view *view);

/* Do the views, which may differ in shape, dtype and storage, have a byte in common? */
FL_API fl_overlap fl_views_overlap(const fl_view *a, const fl_view *b);

/* --- views made of views ------------------------------------------------------------------------
 */

/* A view of a storage's beginning, contiguous in `format`. */
FL_API fl_status fl_view_init(fl_view *out, void *data, fl_dtype dtype, int32_t ndim,
                              const int64_t *shape, fl_format format);

/* Sizes of 1 become those of `shape`, new dimensions come in front; -1 keeps a size. */
FL_API fl_status fl_view_expand(const fl_view *view, int32_t ndim, const int64_t *shape,
                                fl_view *out);
/* Dimension i of the result is `order[i]` of the view. */
FL_API fl_status fl_view_permute(const fl_view *view, const int32_t *order, fl_view *out);
/* Elements start, start + step, ... below end. start and end are clamped into the size after a
 * negative one counted from the end; step is at least 1. */
FL_API fl_status fl_view_slice(const fl_view *view, int32_t dim, int64_t start, int64_t end,
                               int64_t step, fl_view *out);
/* One index of a dimension, which goes away; negative indexes count from the end. */
FL_API fl_status fl_view_select(const fl_view *view, int32_t dim, int64_t index, fl_view *out);
/* Windows of `size` elements every `step`: the dimension becomes the windows' number, and a last
 * one of `size` is added. */
FL_API fl_status fl_view_unfold(const fl_view *view, int32_t dim, int64_t size, int64_t step,
                                fl_view *out);
/* Anything on the same storage. Bounds are not checked: see fl_view_fits. */
FL_API fl_status fl_view_as_strided(const fl_view *view, int32_t ndim, const int64_t *shape,
                                    const int64_t *stride, int64_t offset, fl_view *out);
/* Another shape of as many elements in the same order. FL_NOT_SUPPORTED (no message is recorded)
 * where the elements would have to be copied for that. */
FL_API fl_status fl_view_reshape(const fl_view *view, int32_t ndim, const int64_t *shape,
                                 fl_view *out);

/* --- for loops over several views of one shape --------------------------------------------------
 */

/* Both work on `count` >= 1 views of the same shape, in place, and keep which elements of the views
 * belong together. */

/* Order the dimensions by the first view's strides, largest first; among equal ones the next view
 * decides. The order of visiting changes, so it is not for views that overlap themselves. */
FL_API void fl_views_sort(fl_view *views, int32_t count);

/* Drop dimensions of size 1, and merge neighbours that all views step through as if they were one
 * dimension. At least one dimension is left unless all sizes are 1. */
FL_API void fl_views_collapse(fl_view *views, int32_t count);

FL_EXTERN_C_END
#endif
