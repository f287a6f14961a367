/* test_view.c: view arithmetic against naive loops over all elements. */
#include "fl/view.h"

#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { ELEMENTS_MAX = 4096 };

/* Element numbers, relative to the storage, in the order of the indexes; returns how many. */
static int enumerate(const fl_view *view, int64_t out[ELEMENTS_MAX]) {
    int64_t numel = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        numel *= view->shape[i];
    }
    CHECK(numel <= ELEMENTS_MAX);
    for (int64_t n = 0; n < numel; n++) {
        int64_t rest = n;
        int64_t at = view->offset;
        for (int32_t i = view->ndim - 1; i >= 0; i--) {
            at += rest % view->shape[i] * view->stride[i];
            rest /= view->shape[i];
        }
        out[n] = at;
    }
    return (int)numel;
}

static void describe(const char *what, const fl_view *view) {
    test_note("%s: ndim %d, offset %ld", what, view->ndim, (long)view->offset);
    for (int32_t i = 0; i < view->ndim; i++) {
        test_note("  size %ld stride %ld", (long)view->shape[i], (long)view->stride[i]);
    }
}

/* Every view with up to 3 dimensions, sizes 0..3 and a few strides: some 20,000. */
typedef void (*visit_view)(const fl_view *view);

static void each_small_view(visit_view visit) {
    static const int64_t strides[] = {-3, -1, 0, 1, 2, 3, 6};
    enum { STRIDES = sizeof(strides) / sizeof(strides[0]), CHOICES = 4 * STRIDES };
    fl_view view = {.offset = 30, .dtype = FL_DTYPE_F32};
    for (view.ndim = 0; view.ndim <= 3; view.ndim++) {
        int total = 1;
        for (int32_t i = 0; i < view.ndim; i++) {
            total *= CHOICES;
        }
        for (int n = 0; n < total; n++) {
            int rest = n;
            for (int32_t i = 0; i < view.ndim; i++) {
                view.shape[i] = rest % 4;
                view.stride[i] = strides[rest / 4 % STRIDES];
                rest /= CHOICES;
            }
            visit(&view);
        }
    }
}

static void check_questions(const fl_view *view) {
    int64_t at[ELEMENTS_MAX];
    int count = enumerate(view, at);
    CHECK_OK(fl_view_check(view));
    CHECK_INT(fl_view_numel(view), count);
    CHECK_UINT(fl_view_nbytes(view), (uint64_t)count * 4);

    int64_t low = INT64_MAX, high = INT64_MIN;
    bool repeats = false;
    bool is_contiguous = true;
    for (int i = 0; i < count; i++) {
        low = at[i] < low ? at[i] : low;
        high = at[i] > high ? at[i] : high;
        is_contiguous = is_contiguous && at[i] == view->offset + i;
        for (int j = 0; j < i; j++) {
            repeats = repeats || at[i] == at[j];
        }
    }
    int64_t found_low = 0, found_high = 0;
    fl_view_bounds(view, &found_low, &found_high);
    CHECK_INT(found_low, count ? low * 4 : 0);
    CHECK_INT(found_high, count ? (high + 1) * 4 : 0);
    bool fits = count == 0 || low >= 0;
    CHECK_STATUS(fl_view_fits(view, (uint64_t)(found_high > 0 ? found_high : 0)),
                 fits ? FL_OK : FL_INVALID_ARGUMENT);
    if (count) {
        CHECK_STATUS(fl_view_fits(view, (uint64_t)found_high - 1), FL_INVALID_ARGUMENT);
    }

    CHECK_INT(fl_view_is_contiguous(view, FL_FORMAT_CONTIGUOUS), is_contiguous);
    /* Dense: as many elements as places between the ends, each once, from the first one up. */
    bool is_dense = count < 2 || (!repeats && high - low + 1 == count && low == view->offset);
    CHECK_INT(fl_view_is_dense(view), is_dense);
    CHECK_INT(fl_view_self_overlap(view), repeats ? FL_OVERLAP_YES : FL_OVERLAP_NO);
    CHECK(fl_view_is_same(view, view));
}

static void check_questions_noted(const fl_view *view) {
    check_questions(view);
}

TEST_WITH_LIMIT(view, questions_about_all_small_views, 120) {
    each_small_view(check_questions_noted);
}

/* The strides that a reshaped view must have, if there are any: found element by element. */
static bool naive_reshape(const fl_view *view, int32_t ndim, const int64_t *shape) {
    int64_t at[ELEMENTS_MAX];
    int count = enumerate(view, at);
    fl_view wanted = {.offset = view->offset, .dtype = view->dtype, .ndim = ndim};
    int64_t step = count;
    for (int32_t i = 0; i < ndim; i++) {
        step /= shape[i];
        wanted.shape[i] = shape[i];
        wanted.stride[i] = shape[i] > 1 ? at[step] - at[0] : 0;
    }
    int64_t again[ELEMENTS_MAX];
    CHECK_INT(enumerate(&wanted, again), count);
    return memcmp(at, again, (size_t)count * sizeof(at[0])) == 0;
}

static void check_reshape_to(const fl_view *view, int32_t ndim, const int64_t *shape) {
    fl_view out = {.ndim = 77};
    fl_status status = fl_view_reshape(view, ndim, shape, &out);
    if (fl_view_numel(view) == 0) {
        CHECK_OK(status);
        return;
    }
    bool possible = naive_reshape(view, ndim, shape);
    if (status != (possible ? FL_OK : FL_NOT_SUPPORTED)) {
        describe("of", view);
        for (int32_t i = 0; i < ndim; i++) {
            test_note("  to size %ld", (long)shape[i]);
        }
    }
    CHECK_STATUS(status, possible ? FL_OK : FL_NOT_SUPPORTED);
    if (!possible) {
        CHECK_INT(out.ndim, 77);
        return;
    }
    int64_t before[ELEMENTS_MAX], after[ELEMENTS_MAX];
    int count = enumerate(view, before);
    CHECK_INT(enumerate(&out, after), count);
    CHECK_BYTES(after, before, (size_t)count * sizeof(before[0]));
}

static void check_reshape(const fl_view *view) {
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 6, 9, 12, 18, 27};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };
    int64_t numel = fl_view_numel(view);
    int64_t shape[3];
    if (numel == 1) {
        check_reshape_to(view, 0, shape);
    }
    for (int i = 0; i < SIZES * SIZES * SIZES; i++) {
        shape[0] = sizes[i % SIZES];
        shape[1] = sizes[i / SIZES % SIZES];
        shape[2] = sizes[i / SIZES / SIZES];
        if (shape[0] == numel && i < SIZES) {
            check_reshape_to(view, 1, shape);
        }
        if (shape[0] * shape[1] == numel && i < SIZES * SIZES) {
            check_reshape_to(view, 2, shape);
        }
        if (shape[0] * shape[1] * shape[2] == numel) {
            check_reshape_to(view, 3, shape);
        }
    }
}

TEST_WITH_LIMIT(view, reshape_of_all_small_views, 240) {
    each_small_view(check_reshape);
}

/* A view of few elements may step through nearly all that an int64_t can tell. */
TEST(view, reshape_of_the_longest_strides) {
    const int64_t stride = INT64_C(2843590465896740470); /* 3 of it fit, 4 do not. */
    fl_view view = {
        .dtype = FL_DTYPE_U8, .ndim = 3, .shape = {1, 4, 1}, .stride = {7, stride, stride}};
    fl_view out;
    CHECK_OK(fl_view_reshape(&view, 2, (const int64_t[]){2, 2}, &out));
    CHECK_INT(out.stride[0], 2 * stride);
    CHECK_INT(out.stride[1], stride);
    CHECK_OK(fl_view_reshape(&view, 3, (const int64_t[]){1, 4, 1}, &out));
    CHECK_INT(out.stride[1], stride);
    CHECK_OK(fl_view_reshape(&view, 2, (const int64_t[]){4, 1}, &out));
    CHECK_INT(out.stride[0], stride);
}

TEST(view, the_smallest_offset_and_stride_are_numbers_like_others) {
    fl_view view = {.dtype = FL_DTYPE_U8,
                    .ndim = 2,
                    .shape = {1, 2},
                    .stride = {INT64_MIN, 1},
                    .offset = INT64_MIN};
    CHECK_STATUS(fl_view_fits(&view, 1), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "9223372036854775808 bytes in front of its storage");
    CHECK_INT(fl_view_self_overlap(&view), FL_OVERLAP_NO);
    fl_views_sort(&view, 1);
    CHECK_INT(fl_view_numel(&view), 2);
}

TEST(view, reshape_of_another_number_of_elements) {
    int64_t shape[] = {2, 3}, other[] = {7};
    fl_view view, out;
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F32, 2, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_STATUS(fl_view_reshape(&view, 1, other, &out), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "6 elements");
}

/* --- derived views --------------------------------------------------------------------------- */

static void check_slices(const fl_view *view) {
    int64_t after[ELEMENTS_MAX];
    if (view->ndim > 2) {
        return; /* A third dimension adds nothing but time. */
    }
    for (int32_t dim = 0; dim < view->ndim; dim++) {
        int64_t size = view->shape[dim];
        for (int64_t start = -4; start <= 4; start++) {
            for (int64_t end = -4; end <= 4; end++) {
                for (int64_t step = 1; step <= 3; step++) {
                    fl_view out;
                    CHECK_OK(fl_view_slice(view, dim, start, end, step, &out));
                    int count = enumerate(&out, after);
                    /* Python's rule, on the one dimension; then all elements by selecting. */
                    int64_t from = start < 0 ? start + size : start;
                    int64_t to = end < 0 ? end + size : end;
                    from = from < 0 ? 0 : from > size ? size : from;
                    to = to < 0 ? 0 : to > size ? size : to;
                    int64_t kept = 0;
                    for (int64_t i = from; i < to; i += step) {
                        fl_view one, same;
                        CHECK_OK(fl_view_select(view, dim, i, &one));
                        CHECK_OK(fl_view_select(&out, dim, kept, &same));
                        CHECK(fl_view_is_same(&one, &same));
                        kept++;
                    }
                    CHECK_INT(out.shape[dim], kept);
                    CHECK(count == 0 || kept > 0);
                }
            }
        }
        fl_view out = {.ndim = 77};
        CHECK_STATUS(fl_view_slice(view, dim, 0, 1, 0, &out), FL_INVALID_ARGUMENT);
        CHECK_STATUS(fl_view_select(view, dim, size, &out), FL_INVALID_ARGUMENT);
        CHECK_STATUS(fl_view_select(view, dim, -size - 1, &out), FL_INVALID_ARGUMENT);
        CHECK_INT(out.ndim, 77);
    }
}

/* Indexes of both views are compared through the naive address. */
static int64_t address(const fl_view *view, const int64_t *index) {
    int64_t at = view->offset;
    for (int32_t i = 0; i < view->ndim; i++) {
        at += index[i] * view->stride[i];
    }
    return at;
}

static void check_select(const fl_view *view) {
    for (int32_t dim = 0; dim < view->ndim; dim++) {
        for (int64_t i = 0; i < view->shape[dim]; i++) {
            fl_view out, negative;
            CHECK_OK(fl_view_select(view, dim, i, &out));
            CHECK_OK(fl_view_select(view, dim, i - view->shape[dim], &negative));
            CHECK(fl_view_is_same(&out, &negative));
            CHECK_INT(out.ndim, view->ndim - 1);
            int64_t index[3] = {0, 0, 0};
            index[dim] = i;
            CHECK_INT(out.offset, address(view, index));
        }
    }
}

static void check_permute(const fl_view *view) {
    static const int32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    if (view->ndim != 3) {
        return;
    }
    for (int o = 0; o < 6; o++) {
        fl_view out;
        CHECK_OK(fl_view_permute(view, orders[o], &out));
        for (int n = 0; n < 27; n++) {
            int64_t index[3] = {n % 3, n / 3 % 3, n / 9};
            int64_t moved[3];
            for (int i = 0; i < 3; i++) {
                CHECK_INT(out.shape[i], view->shape[orders[o][i]]);
                moved[i] = index[orders[o][i]];
            }
            CHECK_INT(address(&out, moved), address(view, index));
        }
    }
    static const int32_t twice[] = {0, 0, 1}, outside[] = {0, 1, 3};
    fl_view out;
    CHECK_STATUS(fl_view_permute(view, twice, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_permute(view, outside, &out), FL_INVALID_ARGUMENT);
}

static void check_unfold(const fl_view *view) {
    for (int32_t dim = 0; dim < view->ndim; dim++) {
        for (int64_t size = 0; size <= 4; size++) {
            for (int64_t step = 1; step <= 3; step++) {
                fl_view out;
                fl_status status = fl_view_unfold(view, dim, size, step, &out);
                CHECK_STATUS(status, size <= view->shape[dim] ? FL_OK : FL_INVALID_ARGUMENT);
                if (status) {
                    continue;
                }
                int64_t windows = 0;
                for (int64_t start = 0; start + size <= view->shape[dim]; start += step) {
                    for (int64_t i = 0; i < size; i++) {
                        int64_t index[4] = {0, 0, 0, 0}, from[3] = {0, 0, 0};
                        index[dim] = windows;
                        index[view->ndim] = i;
                        from[dim] = start + i;
                        CHECK_INT(address(&out, index), address(view, from));
                    }
                    windows++;
                }
                CHECK_INT(out.shape[dim], windows);
                CHECK_INT(out.shape[view->ndim], size);
            }
        }
    }
}

static void check_derived(const fl_view *view) {
    check_select(view);
    check_permute(view);
    check_unfold(view);
}

TEST_WITH_LIMIT(view, slices_of_all_small_views, 240) {
    each_small_view(check_slices);
}

TEST_WITH_LIMIT(view, select_permute_unfold_of_all_small_views, 120) {
    each_small_view(check_derived);
}

TEST(view, expand) {
    int64_t shape[] = {3, 1};
    fl_view view, out = {.ndim = 77};
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F32, 2, shape, FL_FORMAT_CONTIGUOUS));
    int64_t wanted[] = {2, -1, 4};
    CHECK_OK(fl_view_expand(&view, 3, wanted, &out));
    for (int64_t a = 0; a < 2; a++) {
        for (int64_t b = 0; b < 3; b++) {
            for (int64_t c = 0; c < 4; c++) {
                CHECK_INT(address(&out, (int64_t[]){a, b, c}), b);
            }
        }
    }
    CHECK_INT(out.shape[1], 3);
    int64_t to_none[] = {3, 0};
    CHECK_OK(fl_view_expand(&view, 2, to_none, &out));
    CHECK_INT(fl_view_numel(&out), 0);
    out.ndim = 77;
    int64_t wrong[] = {2, 1}, fewer[] = {3}, leading[] = {-1, 3, 1}, negative[] = {3, -2};
    CHECK_STATUS(fl_view_expand(&view, 2, wrong, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_expand(&view, 1, fewer, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_expand(&view, 3, leading, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_expand(&view, 2, negative, &out), FL_INVALID_ARGUMENT);
    CHECK_INT(out.ndim, 77);
}

TEST(view, formats) {
    int64_t shape[] = {2, 3, 4, 5, 6};
    fl_view view;
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F16, 4, shape, FL_FORMAT_CHANNELS_LAST));
    CHECK_INT(view.stride[0], 60);
    CHECK_INT(view.stride[1], 1);
    CHECK_INT(view.stride[2], 15);
    CHECK_INT(view.stride[3], 3);
    CHECK(fl_view_is_contiguous(&view, FL_FORMAT_CHANNELS_LAST));
    CHECK(!fl_view_is_contiguous(&view, FL_FORMAT_CONTIGUOUS));
    CHECK(!fl_view_is_contiguous(&view, FL_FORMAT_CHANNELS_LAST_3D));
    CHECK(fl_view_is_dense(&view));
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F16, 5, shape, FL_FORMAT_CHANNELS_LAST_3D));
    CHECK_INT(view.stride[1], 1);
    CHECK_INT(view.stride[4], 3);
    CHECK(fl_view_is_contiguous(&view, FL_FORMAT_CHANNELS_LAST_3D));
    CHECK_STATUS(fl_view_init(&view, NULL, FL_DTYPE_F16, 3, shape, FL_FORMAT_CHANNELS_LAST),
                 FL_INVALID_ARGUMENT);
    /* One channel: both at once, whatever the strides of sizes of 1 are. */
    int64_t one[] = {2, 1, 4, 5};
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F16, 4, one, FL_FORMAT_CONTIGUOUS));
    CHECK(fl_view_is_contiguous(&view, FL_FORMAT_CHANNELS_LAST));
    /* Sizes of 0 give the strides that PyTorch gives. */
    int64_t none[] = {2, 0, 3};
    CHECK_OK(fl_view_init(&view, NULL, FL_DTYPE_F16, 3, none, FL_FORMAT_CONTIGUOUS));
    CHECK_INT(view.stride[0], 3);
    CHECK_INT(view.stride[1], 3);
    CHECK_INT(view.stride[2], 1);
}

TEST(view, overflow_and_bad_views_are_refused) {
    int64_t big = INT64_C(1) << 40, numel = 77;
    int64_t huge[] = {big, big}, zero_after[] = {big, big, 0}, negative[] = {0, -1};
    CHECK_STATUS(fl_shape_numel(2, huge, &numel), FL_INVALID_ARGUMENT);
    CHECK_INT(numel, 77);
    CHECK_OK(fl_shape_numel(3, zero_after, &numel));
    CHECK_INT(numel, 0);
    CHECK_STATUS(fl_shape_numel(2, negative, &numel), FL_INVALID_ARGUMENT);
    CHECK_OK(fl_shape_numel(0, huge, &numel));
    CHECK_INT(numel, 1);

    fl_view view = {.dtype = FL_DTYPE_U8, .ndim = 1, .shape = {INT64_MAX}, .stride = {1}};
    CHECK_OK(fl_view_check(&view));
    view.dtype = FL_DTYPE_I16;
    CHECK_STATUS(fl_view_check(&view), FL_INVALID_ARGUMENT);
    view = (fl_view){.dtype = FL_DTYPE_U8, .ndim = 1, .shape = {3}, .stride = {INT64_MAX}};
    CHECK_STATUS(fl_view_check(&view), FL_INVALID_ARGUMENT);
    view.shape[0] = 1;
    CHECK_OK(fl_view_check(&view));
    view.stride[0] = INT64_MIN;
    view.shape[0] = 2;
    CHECK_STATUS(
        fl_view_fits(&(fl_view){.dtype = FL_DTYPE_U8, .ndim = 1, .shape = {2}, .stride = {-1}},
                     100),
        FL_INVALID_ARGUMENT);
    view = (fl_view){.dtype = FL_DTYPE_U8, .ndim = 0, .offset = INT64_MAX};
    CHECK_STATUS(fl_view_check(&view), FL_INVALID_ARGUMENT);
    view = (fl_view){.dtype = FL_DTYPE_COUNT};
    CHECK_STATUS(fl_view_check(&view), FL_INVALID_ARGUMENT);
    view = (fl_view){.dtype = FL_DTYPE_U8, .ndim = 65};
    CHECK_STATUS(fl_view_check(&view), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "65");

    fl_view out;
    view = (fl_view){.dtype = FL_DTYPE_U8, .ndim = 64};
    CHECK_STATUS(fl_view_unfold(&view, 0, 0, 1, &out), FL_INVALID_ARGUMENT);
    int64_t shape[65] = {0};
    CHECK_STATUS(fl_view_expand(&view, 65, shape, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_as_strided(&view, 2, huge, huge, 0, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_init(&out, NULL, FL_DTYPE_U8, 3, zero_after, FL_FORMAT_CONTIGUOUS), FL_OK);
    int64_t zero_first[] = {0, big, big};
    CHECK_STATUS(fl_view_init(&out, NULL, FL_DTYPE_U8, 3, zero_first, FL_FORMAT_CONTIGUOUS),
                 FL_INVALID_ARGUMENT);
    /* Large steps and indexes next to the end of the numbers. */
    view = (fl_view){.dtype = FL_DTYPE_U8, .ndim = 1, .shape = {5}, .stride = {INT64_C(1) << 60}};
    CHECK_OK(fl_view_slice(&view, 0, 1, INT64_MAX, INT64_MAX, &out));
    CHECK_INT(out.shape[0], 1);
    CHECK_INT(out.offset, INT64_C(1) << 60);
    CHECK_OK(fl_view_slice(&view, 0, INT64_MIN, INT64_MAX, 4, &out));
    CHECK_INT(out.shape[0], 2);
    CHECK_STATUS(fl_view_select(&view, 0, INT64_MIN, &out), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_view_slice(&view, 1, 0, 1, 1, &out), FL_INVALID_ARGUMENT);
}

TEST(view, dtypes) {
#define CHECK_DTYPE(name, bytes, code, bits)           \
    CHECK_UINT(fl_dtype_size(FL_DTYPE_##name), bytes); \
    CHECK_STRING(fl_dtype_name(FL_DTYPE_##name), #name);
    FL_DTYPE_LIST(CHECK_DTYPE)
#undef CHECK_DTYPE
    CHECK_UINT(fl_dtype_size(FL_DTYPE_COUNT), 0);
    CHECK_STRING(fl_dtype_name((fl_dtype)-1), "unknown");
}

/* --- loops ----------------------------------------------------------------------------------- */

typedef struct pair {
    int64_t a, b;
} pair;

static int compare_pairs(const void *x, const void *y) {
    return memcmp(x, y, sizeof(pair));
}

static void random_shape(uint64_t *seed, fl_view views[2]) {
    static const int64_t strides[] = {-6, -1, 0, 1, 2, 3, 6, 12};
    views[0] = (fl_view){.offset = 100, .dtype = FL_DTYPE_F32};
    views[0].ndim = (int32_t)(test_random(seed) % 5);
    views[1] = views[0];
    for (int32_t i = 0; i < views[0].ndim; i++) {
        int64_t size = (int64_t)(test_random(seed) % 4);
        for (int v = 0; v < 2; v++) {
            views[v].shape[i] = size;
            views[v].stride[i] = strides[test_random(seed) % 8];
        }
    }
    if (test_random(seed) % 2) { /* Often contiguous, so that dimensions merge. */
        int64_t stride = 1;
        for (int32_t i = views[0].ndim - 1; i >= 0; i--) {
            views[0].stride[i] = stride;
            views[1].stride[i] = 2 * stride;
            stride *= views[0].shape[i];
        }
    }
}

TEST_WITH_LIMIT(view, loops_visit_the_same_pairs, 120) {
    uint64_t seed = 99;
    static int64_t before[2][ELEMENTS_MAX], after[2][ELEMENTS_MAX];
    static pair old[ELEMENTS_MAX], new[ELEMENTS_MAX];
    for (int round = 0; round < 100000; round++) {
        fl_view views[2];
        random_shape(&seed, views);
        int count = enumerate(&views[0], before[0]);
        CHECK_INT(enumerate(&views[1], before[1]), count);
        /* Collapsing alone keeps the order. */
        fl_view collapsed[2] = {views[0], views[1]};
        fl_views_collapse(collapsed, 2);
        CHECK(collapsed[0].ndim <= (views[0].ndim > 1 ? views[0].ndim : 1));
        for (int v = 0; v < 2; v++) {
            CHECK_INT(enumerate(&collapsed[v], after[v]), count);
            CHECK_BYTES(after[v], before[v], (size_t)count * sizeof(int64_t));
        }
        /* Sorting changes it, but keeps the pairs. */
        fl_views_sort(views, 2);
        fl_views_collapse(views, 2);
        for (int v = 0; v < 2; v++) {
            CHECK_INT(enumerate(&views[v], after[v]), count);
        }
        for (int i = 0; i < count; i++) {
            old[i] = (pair){before[0][i], before[1][i]};
            new[i] = (pair){after[0][i], after[1][i]};
        }
        qsort(old, (size_t)count, sizeof(pair), compare_pairs);
        qsort(new, (size_t)count, sizeof(pair), compare_pairs);
        CHECK_BYTES(new, old, (size_t)count * sizeof(pair));
        for (int32_t i = 1; i < views[0].ndim; i++) {
            CHECK(views[0].shape[i] != 1);
            CHECK(llabs(views[0].stride[i - 1]) >= llabs(views[0].stride[i]));
        }
    }
}

TEST(view, loops_over_contiguous_views_have_one_dimension) {
    int64_t shape[] = {2, 3, 1, 4};
    static const int32_t order[] = {3, 1, 0, 2};
    fl_view views[2];
    CHECK_OK(fl_view_init(&views[0], NULL, FL_DTYPE_F32, 4, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_OK(fl_view_permute(&views[0], order, &views[0]));
    views[1] = views[0];
    fl_views_sort(views, 2);
    fl_views_collapse(views, 2);
    CHECK_INT(views[0].ndim, 1);
    CHECK_INT(views[1].shape[0], 24);
    CHECK_INT(views[1].stride[0], 1);
    views[0] = (fl_view){.dtype = FL_DTYPE_F32, .ndim = 2, .shape = {1, 1}, .stride = {5, 7}};
    fl_views_collapse(views, 1);
    CHECK_INT(views[0].ndim, 0);
}
