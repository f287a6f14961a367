/*
 * test_plan.c: every plan carried out on host memory and compared with a naive loop.
 *
 * The executor here knows nothing of layouts: bytes are memcpy, rows are memcpy, kernels are a loop
 * over indexes. It also checks what a plan promises: host memory is read only after a wait, and a
 * buffer only after it was filled.
 */
#include <stdlib.h>
#include <string.h>

#include "copy/plan.h"
#include "harness.h"
#include "layouts.h"

enum { ELEMS_MOST = 8192 };

static const fl_place places[4][2] = {
    /* dst, src */
    {{FL_PLACE_DEVICE, 0, 0}, {FL_PLACE_HOST, -1, 0}},
    {{FL_PLACE_HOST, -1, 0}, {FL_PLACE_DEVICE, 0, 0}},
    {{FL_PLACE_DEVICE, 0, 0}, {FL_PLACE_DEVICE, 0, 0}},
    {{FL_PLACE_DEVICE, 1, 0}, {FL_PLACE_DEVICE, 0, 0}},
};

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

static void naive(const fl_view *dst, const fl_view *src) {
    pair all = {dst->data, src->data, dst->dtype, src->dtype};
    layout_each(dst, src, copy_one, &all);
}

/* --- carrying a plan out -----------------------------------------------------------------------
 */

typedef struct executor {
    fl__copy_plan *plan;
    bool filled[FL__BUFFER_COUNT];
    bool pending[FL__BUFFER_COUNT]; /* Written by the device, not waited for. */
} executor;

static bool on_host(const fl_place *pair_of, fl__copy_buffer buffer) {
    switch (buffer) {
    case FL__BUFFER_DST:
        return pair_of[0].kind == FL_PLACE_HOST;
    case FL__BUFFER_SRC:
        return pair_of[1].kind == FL_PLACE_HOST;
    case FL__BUFFER_HOST_DST:
    case FL__BUFFER_HOST_SRC:
        return true;
    default:
        return false;
    }
}

static fl_device device_of(const fl_place *pair_of, fl__copy_buffer buffer) {
    bool is_dst = buffer == FL__BUFFER_DST || buffer == FL__BUFFER_NEAR_DST;
    return pair_of[is_dst ? 0 : 1].device;
}

static void do_bytes(const fl_view *dst, const fl_view *src) {
    int64_t dst_low, dst_high, src_low, src_high;
    fl_view_bounds(dst, &dst_low, &dst_high);
    fl_view_bounds(src, &src_low, &src_high);
    CHECK_INT(dst_high - dst_low, src_high - src_low);
    memcpy((char *)dst->data + dst_low, (const char *)src->data + src_low,
           (size_t)(dst_high - dst_low));
}

static void do_rows(const fl_view *dst, const fl_view *src) {
    fl__copy_rows rows = fl__copy_rows_of(dst, src);
    CHECK(rows.dst_pitch >= rows.width && rows.src_pitch >= rows.width);
    CHECK_INT(rows.calls * rows.rows * (int64_t)rows.width, (int64_t)fl_view_nbytes(dst));
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

static void do_step(executor *run, const fl_place *pair_of, const fl__copy_step *step) {
    bool to_host = on_host(pair_of, step->to), from_host = on_host(pair_of, step->from);
    const fl_view *dst = &run->plan->views[step->to], *src = &run->plan->views[step->from];
    if (step->action == FL__COPY_WAIT) {
        CHECK(run->filled[step->from] && !from_host);
        memset(run->pending, 0, sizeof(run->pending));
        return;
    }
    CHECK(run->filled[step->from]);
    CHECK(!from_host || !run->pending[step->from]);
    switch (step->action) {
    case FL__COPY_BYTES:
        CHECK(!to_host || !from_host);
        CHECK(to_host || from_host ||
              device_of(pair_of, step->to) == device_of(pair_of, step->from));
        do_bytes(dst, src);
        run->pending[step->to] = to_host;
        break;
    case FL__COPY_ROWS:
        CHECK(!to_host || !from_host);
        CHECK_INT(dst->dtype, src->dtype);
        do_rows(dst, src);
        run->pending[step->to] = to_host;
        break;
    case FL__COPY_PEER:
        CHECK(!to_host && !from_host);
        CHECK(device_of(pair_of, step->to) != device_of(pair_of, step->from));
        do_bytes(dst, src);
        break;
    case FL__COPY_KERNEL:
        CHECK(!to_host && !from_host);
        CHECK_INT(device_of(pair_of, step->to), device_of(pair_of, step->from));
        naive(dst, src);
        break;
    default:
        CHECK_INT(step->action, FL__COPY_HOST);
        CHECK(to_host && from_host);
        naive(dst, src);
        break;
    }
    run->filled[step->to] = true;
}

static void carry_out(fl__copy_plan *plan, const fl_place *pair_of) {
    /* The sizes that the plan asks for are all that it gets; sanitizers watch. */
    executor run = {.plan = plan};
    void *owned[FL__BUFFER_COUNT] = {NULL};
    for (int buffer = 0; buffer < FL__BUFFER_COUNT; buffer++) {
        if (plan->bytes[buffer]) {
            owned[buffer] = malloc(plan->bytes[buffer]);
            memset(owned[buffer], 0xA5, plan->bytes[buffer]);
            plan->views[buffer].data = owned[buffer];
            CHECK_OK(fl_view_fits(&plan->views[buffer], plan->bytes[buffer]));
        }
    }
    run.filled[FL__BUFFER_SRC] = true;
    run.filled[FL__BUFFER_DST] = true; /* It may be read to be written back. */
    for (int32_t i = 0; i < plan->count; i++) {
        do_step(&run, pair_of, &plan->steps[i]);
    }
    for (int buffer = 0; buffer < FL__BUFFER_COUNT; buffer++) {
        free(owned[buffer]);
    }
}

/* --- one pair of views, all places and means ----------------------------------------------------
 */

static char source[ELEMS_MOST * 4], wanted[ELEMS_MOST * 4], actual[ELEMS_MOST * 4];

static void prepare(void) {
    uint64_t seed = 1234567;
    for (size_t i = 0; i < sizeof(source); i++) {
        source[i] = (char)test_random(&seed);
    }
}

static void try_pair(fl_view dst, fl_view src, size_t dst_bytes) {
    src.data = source;
    for (int where = 0; where < 4; where++) {
        for (int means = 0; means < 4; means++) {
            fl__copy_plan plan;
            fl__copy_means can = {.kernels = means & 1, .rows = means & 2};
            memset(wanted, 0x5A, dst_bytes);
            memset(actual, 0x5A, dst_bytes);
            dst.data = wanted;
            naive(&dst, &src);
            dst.data = actual;
            CHECK_OK(
                fl__copy_plan_make(&dst, places[where][0], &src, places[where][1], can, &plan));
            if (plan.count > 0 || fl_view_numel(&dst) > 0) {
                carry_out(&plan, places[where]);
            }
            if (memcmp(wanted, actual, dst_bytes) != 0) {
                test_note("places %d, means %d, steps %d", where, means, plan.count);
                CHECK_BYTES(actual, wanted, dst_bytes);
            }
        }
    }
}

static void try_layouts(int32_t ndim, const int64_t *shape, bool all_changes) {
    static const fl_dtype dtypes[3][2] = {
        {FL_DTYPE_I16, FL_DTYPE_I16}, {FL_DTYPE_U8, FL_DTYPE_I32}, {FL_DTYPE_I32, FL_DTYPE_I16}};
    int32_t dst_order[5] = {0, 1, 2, 3, 4}, src_order[5] = {0, 1, 2, 3, 4};
    uint64_t seed = 99;
    do {
        do {
            for (int change = 0; change < LAYOUT_COUNT * LAYOUT_COUNT; change++) {
                layout_change to = (layout_change)(change % LAYOUT_COUNT);
                layout_change from = (layout_change)(change / LAYOUT_COUNT);
                if (to == LAYOUT_EXPANDED || (!all_changes && test_random(&seed) % 12 != 0)) {
                    continue;
                }
                int64_t dst_elems, src_elems;
                int32_t which = ndim ? (int32_t)(test_random(&seed) % (uint64_t)ndim) : 0;
                const fl_dtype *types = dtypes[test_random(&seed) % 3];
                fl_view dst = layout_make(types[0], ndim, shape, dst_order, to, which, &dst_elems);
                which = ndim ? (int32_t)(test_random(&seed) % (uint64_t)ndim) : 0;
                fl_view src =
                    layout_make(types[1], ndim, shape, src_order, from, which, &src_elems);
                CHECK(dst_elems <= ELEMS_MOST && src_elems <= ELEMS_MOST);
                try_pair(dst, src, (size_t)dst_elems * fl_dtype_size(dst.dtype));
            }
        } while (layout_next_order(src_order, ndim));
    } while (layout_next_order(dst_order, ndim));
}

/* Every shape with sizes up to 3 and 0 to 3 dimensions, every order of both sides. */
TEST_WITH_LIMIT(plan, every_layout_up_to_3_dimensions, 120) {
    prepare();
    for (int32_t ndim = 0; ndim <= 3; ndim++) {
        int64_t shape[3] = {1, 1, 1};
        bool more = true;
        while (more) {
            try_layouts(ndim, shape, true);
            more = false;
            for (int32_t dim = 0; dim < ndim && !more; dim++) {
                more = ++shape[dim] <= 3;
                if (!more) {
                    shape[dim] = 1;
                }
            }
        }
    }
}

TEST_WITH_LIMIT(plan, every_order_of_4_dimensions, 120) {
    prepare();
    static const int64_t shapes[][4] = {{2, 3, 2, 3}, {1, 4, 2, 2}, {3, 1, 5, 1}};
    for (int i = 0; i < 3; i++) {
        try_layouts(4, shapes[i], false);
    }
}

TEST_WITH_LIMIT(plan, every_order_of_5_dimensions, 240) {
    prepare();
    static const int64_t shape[5] = {2, 3, 1, 2, 2};
    try_layouts(5, shape, false);
}

/* Large enough for rows, ranges and calls to weigh against each other. */
TEST_WITH_LIMIT(plan, sizes_where_rows_and_ranges_compete, 120) {
    prepare();
    static const int64_t shapes[][3] = {
        {2, 3, 200}, {30, 2, 20}, {1, 3, 500}, {8, 1, 130}, {9, 1, 130}, {700, 1, 1},
    };
    for (int i = 0; i < 6; i++) {
        try_layouts(3, shapes[i], true);
    }
}

/* --- which plan --------------------------------------------------------------------------------
 */

static const char *words(const fl__copy_plan *plan) {
    static const char *const actions[] = {"bytes", "rows", "peer", "kernel", "host", "wait"};
    static char text[200];
    text[0] = '\0';
    for (int32_t i = 0; i < plan->count; i++) {
        strcat(text, i ? " " : "");
        strcat(text, actions[plan->steps[i].action]);
    }
    return text;
}

static fl_view dense(fl_dtype dtype, int64_t rows, int64_t columns) {
    fl_view view;
    int64_t shape[2] = {rows, columns};
    CHECK_OK(fl_view_init(&view, NULL, dtype, 2, shape, FL_FORMAT_CONTIGUOUS));
    return view;
}

static fl_view turned(fl_view view) {
    static const int32_t order[2] = {1, 0};
    CHECK_OK(fl_view_permute(&view, order, &view));
    return view;
}

static fl_view sliced(fl_view view, int32_t dim, int64_t end, int64_t step) {
    CHECK_OK(fl_view_slice(&view, dim, 0, end, step, &view));
    return view;
}

static void check_plan(int line, fl_view dst, fl_view src, int where, bool kernels, bool rows,
                       const char *wanted_words) {
    fl__copy_plan plan;
    fl__copy_means means = {kernels, rows};
    dst.data = actual;
    src.data = source;
    test_note("line %d", line);
    CHECK_INT(dst.shape[0], src.shape[0]);
    CHECK_INT(dst.shape[1], src.shape[1]);
    CHECK_OK(fl__copy_plan_make(&dst, places[where][0], &src, places[where][1], means, &plan));
    CHECK_STRING(words(&plan), wanted_words);
}

enum { UP, DOWN, WITHIN, BETWEEN };

TEST(plan, the_cheapest_way_is_taken) {
    fl_view a = dense(FL_DTYPE_F32, 64, 64);
    fl_view half = dense(FL_DTYPE_F16, 64, 64);
    fl_view row = dense(FL_DTYPE_F32, 1, 64);
    CHECK_OK(fl_view_expand(&row, 2, a.shape, &row));
    fl_view left = sliced(dense(FL_DTYPE_F32, 64, 128), 1, 64, 1);
    fl_view column = sliced(dense(FL_DTYPE_F32, 64, 640), 1, 1, 1);
    fl_view narrow = dense(FL_DTYPE_F32, 64, 1);
#define PLAN(...) check_plan(__LINE__, __VA_ARGS__)
    for (int where = 0; where < 4; where++) {
        const char *plain = where == BETWEEN ? "peer" : "bytes";
        PLAN(a, a, where, true, true, plain);
        PLAN(turned(a), turned(a), where, false, false, plain);
    }
    PLAN(left, a, UP, false, true, "rows");
    PLAN(a, left, DOWN, true, true, "rows");
    PLAN(a, left, WITHIN, true, true, "kernel");
    PLAN(a, left, WITHIN, false, true, "rows");
    PLAN(a, left, WITHIN, false, false, "rows");
    PLAN(a, turned(a), UP, true, true, "bytes kernel");
    PLAN(a, turned(a), UP, false, true, "host bytes");
    PLAN(a, half, UP, true, true, "bytes kernel");
    PLAN(half, a, UP, true, true, "bytes kernel");
    PLAN(half, a, UP, false, true, "host bytes");
    PLAN(a, row, UP, true, true, "bytes kernel");
    PLAN(a, row, UP, false, true, "host bytes");
    PLAN(sliced(a, 1, 64, 2), sliced(a, 1, 32, 1), UP, true, true, "bytes kernel");
    fl_view sparse = sliced(dense(FL_DTYPE_F32, 64, 320), 1, 320, 5);
    PLAN(sliced(dense(FL_DTYPE_F32, 64, 128), 1, 128, 2), sparse, UP, true, true,
         "host bytes kernel");
    PLAN(a, sparse, UP, true, true, "host bytes");
    PLAN(column, narrow, UP, true, true, "bytes kernel");
    PLAN(column, narrow, UP, false, true, "host rows");
    PLAN(column, narrow, DOWN, true, true, "bytes wait host");
    PLAN(narrow, column, DOWN, true, true, "kernel bytes");
    PLAN(narrow, column, DOWN, false, true, "bytes wait host");
    fl_view thin = sliced(dense(FL_DTYPE_F32, 400, 4096), 1, 1, 1);
    fl_view packed = turned(dense(FL_DTYPE_F32, 2, 400));
    PLAN(sliced(packed, 1, 1, 1), thin, DOWN, false, true, "rows wait host");
    PLAN(turned(a), a, DOWN, true, true, "kernel bytes");
    PLAN(turned(a), a, DOWN, false, true, "bytes wait host");
    PLAN(half, a, DOWN, true, true, "kernel bytes");
    PLAN(turned(a), a, WITHIN, true, true, "kernel");
    PLAN(half, a, WITHIN, false, true, "bytes wait host bytes");
    PLAN(sliced(a, 1, 64, 2), sliced(half, 1, 64, 2), WITHIN, false, true,
         "bytes wait bytes wait host bytes");
    PLAN(half, a, BETWEEN, true, true, "kernel peer");
    PLAN(a, half, BETWEEN, true, true, "peer kernel");
    PLAN(a, row, BETWEEN, true, true, "peer kernel");
    PLAN(sliced(a, 1, 64, 2), sliced(dense(FL_DTYPE_F32, 64, 96), 1, 96, 3), BETWEEN, true, true,
         "kernel peer kernel");
#undef PLAN
}

TEST(plan, what_torch_refuses_is_refused_in_its_words) {
    fl__copy_plan plan;
    fl__copy_means means = {true, true};
    fl_place device = fl_place_device(0, 0), host = fl_place_host();
    fl_view a = dense(FL_DTYPE_F32, 8, 8), row = dense(FL_DTYPE_F32, 1, 8);
    a.data = actual;
    row.data = source;
    fl_view wide;
    CHECK_OK(fl_view_expand(&row, 2, a.shape, &wide));
    CHECK_STATUS(fl__copy_plan_make(&wide, device, &a, device, means, &plan), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "more than one element of the written-to tensor refers to a "
                                      "single memory location. Please clone() the tensor");
    fl_view shifted = a;
    shifted.offset = 4;
    fl_view flipped = turned(a);
    for (int on_host_too = 0; on_host_too < 2; on_host_too++) {
        fl_place place = on_host_too ? host : device;
        CHECK_STATUS(fl__copy_plan_make(&shifted, place, &a, place, means, &plan),
                     FL_INVALID_ARGUMENT);
        CHECK_CONTAINS(fl_last_message(), "some elements of the input tensor and the written-to "
                                          "tensor refer to a single memory location");
        CHECK_STATUS(fl__copy_plan_make(&flipped, place, &a, place, means, &plan),
                     FL_INVALID_ARGUMENT);
        CHECK_OK(fl__copy_plan_make(&a, place, &a, place, means, &plan));
        CHECK_INT(plan.count, 0);
    }
    /* The same numbers on two devices, or on device and host, are different memory. */
    CHECK_OK(fl__copy_plan_make(&shifted, device, &a, host, means, &plan));
    CHECK_OK(fl__copy_plan_make(&shifted, device, &a, fl_place_device(1, 0), means, &plan));
    /* Nothing is written, so nothing is refused. */
    fl_view none = dense(FL_DTYPE_F32, 0, 8);
    none.stride[1] = 0;
    CHECK_OK(fl__copy_plan_make(&none, device, &none, device, means, &plan));
    CHECK_INT(plan.count, 0);
}

TEST(plan, views_that_interleave_are_copied_as_if_the_source_were_read_first) {
    prepare();
    for (int kernels = 0; kernels < 2; kernels++) {
        for (int on_host_too = 0; on_host_too < 2; on_host_too++) {
            fl_place pair_of[2] = {fl_place_device(0, 0), fl_place_device(0, 0)};
            if (on_host_too) {
                pair_of[0] = pair_of[1] = fl_place_host();
            }
            /* Rows of 6 in steps of 8, shifted by two elements and one row. */
            fl_view dst = sliced(dense(FL_DTYPE_I16, 9, 8), 1, 6, 1);
            fl_view src = dst;
            dst.shape[0] = src.shape[0] = 8;
            dst.offset = 10;
            memcpy(actual, source, 9 * 8 * 2);
            memcpy(wanted, source, 9 * 8 * 2);
            dst.data = wanted;
            src.data = source;
            naive(&dst, &src);
            dst.data = src.data = actual;
            fl__copy_plan plan;
            fl__copy_means means = {kernels, true};
            CHECK_OK(fl__copy_plan_make(&dst, pair_of[0], &src, pair_of[1], means, &plan));
            carry_out(&plan, pair_of);
            CHECK_BYTES(actual, wanted, 9 * 8 * 2);
        }
    }
}

TEST(plan, a_view_that_overlaps_itself_gets_one_of_its_sources) {
    prepare();
    fl_view dst = dense(FL_DTYPE_U8, 4, 3), src = dense(FL_DTYPE_U8, 4, 3);
    dst.stride[0] = 1; /* windows */
    src.data = source;
    for (int means = 0; means < 4; means++) {
        fl__copy_plan plan;
        fl__copy_means can = {.kernels = means & 1, .rows = means & 2};
        memset(actual, 0, 8);
        dst.data = actual;
        CHECK_OK(fl__copy_plan_make(&dst, places[WITHIN][0], &src, places[WITHIN][1], can, &plan));
        carry_out(&plan, places[WITHIN]);
        for (int at = 0; at < 6; at++) {
            bool found = false;
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 3; j++) {
                    found = found || (i + j == at && actual[at] == source[3 * i + j]);
                }
            }
            CHECK(found);
        }
        CHECK_INT(actual[6], 0);
    }
}
