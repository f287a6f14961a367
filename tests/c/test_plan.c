/*
 * test_plan.c: every plan carried out on host memory and compared with a naive loop.
 *
 * The executor knows nothing of layouts and checks what a plan promises.
 */
#include <string.h>

#include "copy/plan.h"
#include "harness.h"
#include "layouts.h"
#include "plan_executor.h"

enum { ELEMS_MOST = 8192 };

static const fl_place places[4][2] = {
    /* dst, src */
    {{FL_PLACE_DEVICE, 0, 0}, {FL_PLACE_HOST, -1, 0}},
    {{FL_PLACE_HOST, -1, 0}, {FL_PLACE_DEVICE, 0, 0}},
    {{FL_PLACE_DEVICE, 0, 0}, {FL_PLACE_DEVICE, 0, 0}},
    {{FL_PLACE_DEVICE, 1, 0}, {FL_PLACE_DEVICE, 0, 0}},
};

static void carry_out(fl__copy_plan *plan, const fl_place *pair_of) {
    const char *wrong = plan_carry_out(plan, pair_of);
    if (wrong) {
        test_fail(__FILE__, __LINE__, "the plan breaks: %s", wrong);
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
            plan_naive(&dst, &src);
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
            plan_naive(&dst, &src);
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
