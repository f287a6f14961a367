/*
 * plan_executor.c: see plan_executor.h.
 *
 * Bytes are memcpy, rows are memcpy, kernels are a loop over indexes; nothing here knows layouts.
 */
#include "plan_executor.h"

#include <stdlib.h>
#include <string.h>

#include "layouts.h"

/* --- a cast that both sides of the comparison share: three integer dtypes ------------------------
 */

static int64_t load(fl_dtype dtype, const char *at) {
    switch (dtype) {
    case FL_DTYPE_U8: {
        uint8_t value;
        memcpy(&value, at, sizeof(value));
        return value;
    }
    case FL_DTYPE_I16: {
        int16_t value;
        memcpy(&value, at, sizeof(value));
        return value;
    }
    default: {
        int32_t value;
        memcpy(&value, at, sizeof(value));
        return value;
    }
    }
}

static void store(fl_dtype dtype, char *at, int64_t wide) {
    switch (dtype) {
    case FL_DTYPE_U8: {
        uint8_t value = (uint8_t)wide;
        memcpy(at, &value, sizeof(value));
        break;
    }
    case FL_DTYPE_I16: {
        int16_t value = (int16_t)wide;
        memcpy(at, &value, sizeof(value));
        break;
    }
    default: {
        int32_t value = (int32_t)wide;
        memcpy(at, &value, sizeof(value));
        break;
    }
    }
}

typedef struct pair {
    char *dst;
    const char *src;
    fl_dtype dst_dtype, src_dtype;
} pair;

static void copy_one(void *user, int64_t dst_byte, int64_t src_byte) {
    const pair *all = user;
    store(all->dst_dtype, all->dst + dst_byte, load(all->src_dtype, all->src + src_byte));
}

void plan_naive(const fl_view *dst, const fl_view *src) {
    pair all = {dst->data, src->data, dst->dtype, src->dtype};
    layout_each(dst, src, copy_one, &all);
}

/* --- carrying a plan out -----------------------------------------------------------------------
 */

typedef struct executor {
    fl__copy_plan *plan;
    const fl_place *places;
    bool filled[FL__BUFFER_COUNT];
    bool pending[FL__BUFFER_COUNT]; /* Written by the device, not waited for. */
    const char *wrong;              /* The first broken promise. */
} executor;

static bool want(executor *run, bool holds, const char *promise) {
    if (!holds && !run->wrong) {
        run->wrong = promise;
    }
    return holds;
}

static bool on_host(const executor *run, fl__copy_buffer buffer) {
    switch (buffer) {
    case FL__BUFFER_DST:
        return run->places[0].kind == FL_PLACE_HOST;
    case FL__BUFFER_SRC:
        return run->places[1].kind == FL_PLACE_HOST;
    case FL__BUFFER_HOST_DST:
    case FL__BUFFER_HOST_SRC:
        return true;
    default:
        return false;
    }
}

static fl_device device_of(const executor *run, fl__copy_buffer buffer) {
    bool is_dst = buffer == FL__BUFFER_DST || buffer == FL__BUFFER_NEAR_DST;
    return run->places[is_dst ? 0 : 1].device;
}

static void do_bytes(executor *run, const fl_view *dst, const fl_view *src) {
    int64_t dst_low, dst_high, src_low, src_high;
    fl_view_bounds(dst, &dst_low, &dst_high);
    fl_view_bounds(src, &src_low, &src_high);
    if (want(run, dst_high - dst_low == src_high - src_low, "bytes: ranges of one size")) {
        memcpy((char *)dst->data + dst_low, (const char *)src->data + src_low,
               (size_t)(dst_high - dst_low));
    }
}

static void do_rows(executor *run, const fl_view *dst, const fl_view *src) {
    fl__copy_rows rows = fl__copy_rows_of(dst, src);
    int64_t moved = rows.calls * rows.rows * (int64_t)rows.width;
    if (!want(run, dst->dtype == src->dtype, "rows: one dtype") ||
        !want(run, rows.dst_pitch >= rows.width && rows.src_pitch >= rows.width,
              "rows: pitches not below the width") ||
        !want(run, moved == (int64_t)fl_view_nbytes(dst), "rows: each element once")) {
        return;
    }
    int64_t index[FL_VIEW_DIMS_MAX] = {0};
    int64_t element = (int64_t)fl_dtype_size(dst->dtype);
    for (int64_t call = 0; call < rows.calls; call++) {
        int64_t to = dst->offset, from = src->offset;
        for (int32_t dim = 0; dim < rows.outer; dim++) {
            to += index[dim] * dst->stride[dim];
            from += index[dim] * src->stride[dim];
        }
        for (int64_t row = 0; row < rows.rows; row++) {
            memcpy((char *)dst->data + to * element + row * (int64_t)rows.dst_pitch,
                   (const char *)src->data + from * element + row * (int64_t)rows.src_pitch,
                   rows.width);
        }
        for (int32_t dim = rows.outer - 1; dim >= 0 && ++index[dim] == dst->shape[dim]; dim--) {
            index[dim] = 0;
        }
    }
}

static void do_step(executor *run, const fl__copy_step *step) {
    bool to_host = on_host(run, step->to), from_host = on_host(run, step->from);
    bool same_device = device_of(run, step->to) == device_of(run, step->from);
    const fl_view *dst = &run->plan->views[step->to], *src = &run->plan->views[step->from];
    if (!want(run, run->filled[step->from], "what is read was filled")) {
        return;
    }
    if (step->action == FL__COPY_WAIT) {
        (void)want(run, !from_host, "waits are for devices");
        memset(run->pending, 0, sizeof(run->pending));
        return;
    }
    if (!want(run, !from_host || !run->pending[step->from], "host memory is read after a wait")) {
        return;
    }
    bool driver_copy = !(to_host && from_host) && (to_host || from_host || same_device);
    bool on_device = !to_host && !from_host;
    switch (step->action) {
    case FL__COPY_BYTES:
        if (want(run, driver_copy, "bytes: host and device, or one device")) {
            do_bytes(run, dst, src);
        }
        run->pending[step->to] = to_host;
        break;
    case FL__COPY_ROWS:
        if (want(run, driver_copy, "rows: host and device, or one device")) {
            do_rows(run, dst, src);
        }
        run->pending[step->to] = to_host;
        break;
    case FL__COPY_PEER:
        if (want(run, on_device && !same_device, "peer: two devices")) {
            do_bytes(run, dst, src);
        }
        break;
    case FL__COPY_KERNEL:
        if (want(run, on_device && same_device, "kernel: one device")) {
            plan_naive(dst, src);
        }
        break;
    default:
        if (want(run, step->action == FL__COPY_HOST && to_host && from_host, "host: two hosts")) {
            plan_naive(dst, src);
        }
        break;
    }
    run->filled[step->to] = true;
}

const char *plan_carry_out(fl__copy_plan *plan, const fl_place places[2]) {
    executor run = {.plan = plan, .places = places};
    void *owned[FL__BUFFER_COUNT] = {NULL};
    for (int buffer = 0; buffer < FL__BUFFER_COUNT && !run.wrong; buffer++) {
        if (plan->bytes[buffer]) {
            /* The size that the plan asks for is all that it gets; sanitizers watch. */
            owned[buffer] = malloc(plan->bytes[buffer]);
            if (want(&run, owned[buffer] != NULL, "memory")) {
                memset(owned[buffer], 0xA5, plan->bytes[buffer]);
            }
            plan->views[buffer].data = owned[buffer];
            (void)want(&run, !fl_view_fits(&plan->views[buffer], plan->bytes[buffer]),
                       "views fit into their buffers");
        }
    }
    run.filled[FL__BUFFER_SRC] = true;
    run.filled[FL__BUFFER_DST] = true; /* It may be read to be written back. */
    for (int32_t i = 0; i < plan->count && !run.wrong; i++) {
        do_step(&run, &plan->steps[i]);
    }
    for (int buffer = 0; buffer < FL__BUFFER_COUNT; buffer++) {
        free(owned[buffer]);
    }
    return run.wrong;
}
