/* test_view_overlap.c: common bytes of views against a map of all bytes. */
#include <string.h>

#include "fl/view.h"
#include "harness.h"

enum { ARENA = 2048 };

static unsigned char arena[ARENA];

/* Marks each byte of the view in `map`; false if the view leaves the arena or is too large. */
static bool mark_bytes(const fl_view *view, unsigned char map[ARENA]) {
    memset(map, 0, ARENA);
    int64_t size = (int64_t)fl_dtype_size(view->dtype);
    int64_t base = (char *)view->data - (char *)arena;
    int64_t low = 0, high = 0;
    fl_view_bounds(view, &low, &high);
    if (base + low < 0 || base + high > ARENA) {
        return false;
    }
    int64_t numel = fl_view_numel(view);
    for (int64_t n = 0; n < numel; n++) {
        int64_t rest = n, at = view->offset;
        for (int32_t i = view->ndim - 1; i >= 0; i--) {
            at += rest % view->shape[i] * view->stride[i];
            rest /= view->shape[i];
        }
        memset(map + base + at * size, 1, (size_t)size);
    }
    return true;
}

static void random_view(uint64_t *seed, fl_view *out) {
    static const fl_dtype dtypes[] = {FL_DTYPE_U8, FL_DTYPE_F16, FL_DTYPE_F32, FL_DTYPE_C128};
    *out = (fl_view){.dtype = dtypes[test_random(seed) % 4]};
    out->data = arena + 900 + test_random(seed) % 40; /* Not aligned on purpose. */
    out->ndim = (int32_t)(test_random(seed) % 4);
    out->offset = (int64_t)(test_random(seed) % 9) - 4;
    for (int32_t i = 0; i < out->ndim; i++) {
        out->shape[i] = (int64_t)(test_random(seed) % 5);
        out->stride[i] = (int64_t)(test_random(seed) % 25) - 12;
    }
}

TEST_WITH_LIMIT(overlap, random_pairs_equal_a_map_of_bytes, 120) {
    uint64_t seed = 4711;
    unsigned char map_a[ARENA], map_b[ARENA];
    int counts[2] = {0, 0};
    for (int round = 0; round < 300000; round++) {
        fl_view a, b;
        random_view(&seed, &a);
        random_view(&seed, &b);
        if (!mark_bytes(&a, map_a) || !mark_bytes(&b, map_b)) {
            continue;
        }
        bool meet = false;
        for (int i = 0; i < ARENA; i++) {
            meet = meet || (map_a[i] && map_b[i]);
        }
        CHECK_INT(fl_views_overlap(&a, &b), meet ? FL_OVERLAP_YES : FL_OVERLAP_NO);
        CHECK_INT(fl_views_overlap(&b, &a), meet ? FL_OVERLAP_YES : FL_OVERLAP_NO);
        counts[meet]++;
    }
    /* Both answers are really met, inside of bounds that cross. */
    CHECK(counts[0] > 10000 && counts[1] > 10000);
}

TEST(overlap, interleaved_halves_do_not_meet) {
    fl_view even = {
        .data = arena, .dtype = FL_DTYPE_F32, .ndim = 2, .shape = {10, 20}, .stride = {40, 2}};
    fl_view odd = even;
    odd.offset = 1;
    CHECK_INT(fl_views_overlap(&even, &odd), FL_OVERLAP_NO);
    odd.data = arena + 2; /* Half an element further: every element meets. */
    CHECK_INT(fl_views_overlap(&even, &odd), FL_OVERLAP_YES);
}

TEST(overlap, large_views_are_decided_fast) {
    /* A matrix and its transpose, columns of one matrix, and 60 dimensions of size 2. */
    int64_t size = 1 << 20;
    fl_view matrix = {.data = arena,
                      .dtype = FL_DTYPE_F32,
                      .ndim = 2,
                      .shape = {size, size},
                      .stride = {size, 1}};
    fl_view transposed = {.data = arena,
                          .dtype = FL_DTYPE_F32,
                          .ndim = 2,
                          .shape = {size, size},
                          .stride = {1, size}};
    CHECK_INT(fl_view_self_overlap(&matrix), FL_OVERLAP_NO);
    CHECK_INT(fl_views_overlap(&matrix, &transposed), FL_OVERLAP_YES);
    fl_view left = {.data = arena,
                    .dtype = FL_DTYPE_F32,
                    .ndim = 2,
                    .shape = {size, size / 2},
                    .stride = {size, 1}};
    fl_view right = left;
    right.offset = size / 2;
    CHECK_INT(fl_views_overlap(&left, &right), FL_OVERLAP_NO);
    right.offset--;
    CHECK_INT(fl_views_overlap(&left, &right), FL_OVERLAP_YES);
    fl_view cube = {.data = arena, .dtype = FL_DTYPE_U8, .ndim = 60};
    for (int32_t i = 0; i < cube.ndim; i++) {
        cube.shape[i] = 2;
        cube.stride[i] = INT64_C(1) << i;
    }
    CHECK_INT(fl_view_self_overlap(&cube), FL_OVERLAP_NO);
    cube.stride[59] = 1;
    CHECK_INT(fl_view_self_overlap(&cube), FL_OVERLAP_YES);
}

TEST(overlap, windows_and_hard_cases_end) {
    /* unfold with step 1: strides (1, 1). */
    fl_view windows = {
        .data = arena, .dtype = FL_DTYPE_F32, .ndim = 2, .shape = {1000, 3}, .stride = {1, 1}};
    CHECK_INT(fl_view_self_overlap(&windows), FL_OVERLAP_YES);
    windows.stride[0] = 3;
    CHECK_INT(fl_view_self_overlap(&windows), FL_OVERLAP_NO);
    /* A subset-sum problem: it may be given up, but neither hangs nor is answered with no. */
    uint64_t seed = 5;
    fl_view hard = {.data = NULL, .dtype = FL_DTYPE_U8, .ndim = 40};
    for (int32_t i = 0; i < hard.ndim; i++) {
        hard.shape[i] = 2;
        hard.stride[i] = (INT64_C(1) << 30) + (int64_t)(test_random(&seed) % (1 << 30));
    }
    /* 3^40 differences fall on fewer than 2^37 sums: some two must be equal. */
    CHECK(fl_view_self_overlap(&hard) != FL_OVERLAP_NO);
}

TEST(overlap, nothing_meets_an_empty_view) {
    fl_view a = {.data = arena, .dtype = FL_DTYPE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
    fl_view none = a;
    none.shape[0] = 0;
    CHECK_INT(fl_views_overlap(&a, &none), FL_OVERLAP_NO);
    CHECK_INT(fl_views_overlap(&none, &none), FL_OVERLAP_NO);
    CHECK_INT(fl_view_self_overlap(&none), FL_OVERLAP_NO);
    CHECK_INT(fl_views_overlap(&a, &a), FL_OVERLAP_YES);
    fl_view scalar = {.data = arena + 12, .dtype = FL_DTYPE_F32};
    CHECK_INT(fl_views_overlap(&a, &scalar), FL_OVERLAP_YES);
    scalar.data = arena + 16;
    CHECK_INT(fl_views_overlap(&a, &scalar), FL_OVERLAP_NO);
}
