/*
 * copy.h: the elements of one view into another, wherever the two live.
 *
 * Layouts, dtypes and places may all differ. A copy is planned first (a few steps: plain bytes,
 * pitched rows, a kernel, staging in pinned memory) and then run in stream order. How it is planned
 * is nobody's business above; docs/copy.md tells.
 */
#ifndef FL_COPY_H
#define FL_COPY_H

#include "fl/stream.h"
#include "fl/view.h"

FL_EXTERN_C_BEGIN

typedef enum fl_place_kind {
    FL_PLACE_HOST = 0, /* Pageable or pinned: which of both is looked up where it matters. */
    FL_PLACE_DEVICE,
} fl_place_kind;

/* Where a view's bytes live and in whose order they are used. */
typedef struct fl_place {
    fl_place_kind kind;
    fl_device device; /* Of device memory; -1 for the current one. Not read for the host. */
    fl_stream stream; /* Of that device. Not read for the host. */
} fl_place;

static inline fl_place fl_place_host(void) {
    fl_place place = {FL_PLACE_HOST, -1, FL_STREAM_DEFAULT};
    return place;
}

static inline fl_place fl_place_device(fl_device device, fl_stream stream) {
    fl_place place = {FL_PLACE_DEVICE, device, stream};
    return place;
}

/* dst[i] = src[i] for every index, cast to dst's dtype as PyTorch defines it; src is broadcast to
 * dst's shape.
 *
 * Order: after earlier work of the streams of both places, before later work of them. Between two
 * devices the streams wait for each other, as with torch.cuda.
 * Blocking: with `non_blocking` false the call returns when host memory that takes part may be
 * used, read or freed. With true it may return earlier where the host side is pinned memory of
 * fl/pinned.h or needs no staging; a pageable destination is always complete on return. Between
 * device places no call ever waits, except where a driver can neither run kernels nor copy what is
 * asked for.
 * Overlap: FL_INVALID_ARGUMENT, in PyTorch's words, where PyTorch refuses: an expanded destination,
 * or two dense views that share some but not all bytes in order. Otherwise the source is read as if
 * before anything is written.
 * After a failure the destination's elements are undefined, and nothing else is. */
FL_API fl_status fl_copy_view(const fl_view *dst, fl_place dst_place, const fl_view *src,
                              fl_place src_place, bool non_blocking);

/* dst[i] = *element, which is one value of dst's dtype and is read before the call returns. In
 * stream order on a device, at once on the host. */
FL_API fl_status fl_fill_view(const fl_view *dst, fl_place place, const void *element);

FL_EXTERN_C_END
#endif
