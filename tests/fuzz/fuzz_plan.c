/*
 * fuzz_plan.c: any two views between any two places: the plan does what a naive loop does, or the
 * pair is refused.
 *
 * Built and run by tests/fuzz/run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy/plan.h"
#include "plan_executor.h"

enum { STORAGE = 1 << 14, ELEMENTS_MOST = 4096 };

static char storages[2][STORAGE], wanted[2][STORAGE];

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint8_t byte(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

/* A view that lies within a storage; false if these bytes make none. */
static bool make_view(input *in, fl_view *view, int32_t ndim, const int64_t *shape) {
    static const fl_dtype dtypes[3] = {FL_DTYPE_U8, FL_DTYPE_I16, FL_DTYPE_I32};
    memset(view, 0, sizeof(*view));
    view->dtype = dtypes[byte(in) % 3];
    view->ndim = ndim;
    view->offset = byte(in) * 8;
    for (int32_t dim = 0; dim < ndim; dim++) {
        view->shape[dim] = shape[dim];
        int64_t stride = (int8_t)byte(in);
        view->stride[dim] = byte(in) % 4 == 0 ? stride * 16 : stride;
    }
    return fl_view_check(view) == FL_OK && fl_view_fits(view, STORAGE) == FL_OK;
}

static fl_place make_place(input *in) {
    uint8_t which = byte(in) % 3;
    return which == 0 ? fl_place_host() : fl_place_device(which - 1, 0);
}

static bool same_memory(fl_place a, fl_place b) {
    return a.kind == b.kind && (a.kind == FL_PLACE_HOST || a.device == b.device);
}

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "fuzz_plan: %s: %s\n", what, detail);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, data + size};
    int32_t ndim = byte(&in) % 6;
    int64_t shape[5], numel = 1;
    for (int32_t dim = 0; dim < ndim; dim++) {
        uint8_t code = byte(&in);
        shape[dim] = code % 8 == 7 ? code : code % 8;
        numel *= shape[dim];
    }
    fl_view dst, src;
    if (numel > ELEMENTS_MOST || !make_view(&in, &dst, ndim, shape) ||
        !make_view(&in, &src, ndim, shape)) {
        return 0;
    }
    fl_place places[2] = {make_place(&in), make_place(&in)};
    fl__copy_means means = {.kernels = byte(&in) & 1, .rows = byte(&in) & 1};
    /* One storage for both only where the places are one memory. */
    int from = same_memory(places[0], places[1]) && (byte(&in) & 1) ? 0 : 1;
    for (int i = 0; i < STORAGE; i++) {
        storages[0][i] = (char)(i * 7 + 1);
        storages[1][i] = (char)(i * 13 + 5);
    }
    memcpy(wanted, storages, sizeof(wanted));
    dst.data = storages[0];
    src.data = storages[from];
    fl__copy_plan plan;
    fl_status status = fl__copy_plan_make(&dst, places[0], &src, places[1], means, &plan);
    if (status) {
        if (status != FL_INVALID_ARGUMENT) {
            fail("status", fl_last_message());
        }
        return 0;
    }
    if (plan.count == 0) {
        return 0; /* Nothing to do: no elements, or a view onto itself. */
    }
    const char *wrong = plan_carry_out(&plan, places);
    if (wrong) {
        fail("broken promise", wrong);
    }
    if (fl_view_self_overlap(&dst) != FL_OVERLAP_NO) {
        return 0; /* Which element wins is open. */
    }
    fl_view naive_dst = dst, naive_src = src;
    static char before[STORAGE];
    memcpy(before, wanted[from], STORAGE); /* The source as it was before anything is written. */
    naive_dst.data = wanted[0];
    naive_src.data = before;
    plan_naive(&naive_dst, &naive_src);
    if (memcmp(storages, wanted, sizeof(wanted)) != 0) {
        fail("values", "differ from a naive loop's");
    }
    return 0;
}
