/*
 * plan.h: a copy as a few steps over at most six buffers; private to src/copy.
 *
 * A plan is made by arithmetic alone: nothing is allocated and no device is touched, so that every
 * pair of layouts can be tested on any machine. run.c carries it out.
 */
#ifndef FL_COPY_PLAN_H
#define FL_COPY_PLAN_H

#include "fl/copy.h"

typedef enum fl__copy_buffer {
    FL__BUFFER_DST = 0,  /* The caller's. */
    FL__BUFFER_SRC,      /* The caller's. */
    FL__BUFFER_HOST_DST, /* Pinned, in the layout of the destination or packed. */
    FL__BUFFER_HOST_SRC, /* Pinned, in the layout of the source or packed. */
    FL__BUFFER_NEAR_DST, /* On the destination's device. */
    FL__BUFFER_NEAR_SRC, /* On the source's device. */
    FL__BUFFER_COUNT,
} fl__copy_buffer;

typedef enum fl__copy_action {
    FL__COPY_BYTES = 0, /* One driver copy of all bytes between the views' bounds: same layout. */
    FL__COPY_ROWS,      /* Driver copies of pitched rows: same dtype, any layout. */
    FL__COPY_PEER,      /* As BYTES, from one device to another. */
    FL__COPY_KERNEL,    /* The kernel table's copy, on the device that holds both. */
    FL__COPY_HOST,      /* The host kernel, now. What it reads has been waited for. */
    FL__COPY_WAIT,      /* The host waits for the stream that `from` was last read on. */
} fl__copy_action;

typedef struct fl__copy_step {
    fl__copy_action action;
    fl__copy_buffer to, from; /* WAIT: only `from`. */
} fl__copy_step;

enum { FL__COPY_STEPS_MAX = 8 };

typedef struct fl__copy_plan {
    int32_t count;
    fl__copy_step steps[FL__COPY_STEPS_MAX];
    /* By buffer: sorted, collapsed, all of one shape. The caller's two keep their data; the others
     * have NULL, and `bytes` says how much memory their data needs (0: unused). */
    fl_view views[FL__BUFFER_COUNT];
    size_t bytes[FL__BUFFER_COUNT];
} fl__copy_plan;

/* What the platform can do. */
typedef struct fl__copy_means {
    bool kernels; /* The kernel table can be used on the devices that take part. */
    bool rows;    /* The driver has pitched copies of its own: a call for many rows. */
} fl__copy_means;

/* One device in two streams is one place for the plan; run.c orders the streams. The source has the
 * destination's shape. FL_INVALID_ARGUMENT for overlaps that PyTorch refuses. */
fl_status fl__copy_plan_make(const fl_view *dst, fl_place dst_place, const fl_view *src,
                             fl_place src_place, fl__copy_means means, fl__copy_plan *out);

/* FL_INVALID_ARGUMENT where elements of the view share memory by a stride of 0, in PyTorch's words
 * for a tensor that is written to. */
fl_status fl__copy_check_target(const fl_view *dst);

/* How a pair of views is copied row by row. */
typedef struct fl__copy_rows {
    int32_t outer;               /* Dimensions in front that need a loop. */
    size_t width;                /* Bytes of a run. */
    int64_t rows;                /* Runs a call. */
    size_t dst_pitch, src_pitch; /* Bytes between runs of a call. */
    int64_t calls;               /* Iterations of the loop. */
} fl__copy_rows;

/* For two views of one shape and dtype, sorted and collapsed. */
fl__copy_rows fl__copy_rows_of(const fl_view *dst, const fl_view *src);

#endif
