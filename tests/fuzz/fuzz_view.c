/*
 * fuzz_view.c: any view, any arithmetic on it: each element of a result is the element of the
 * source that a naive model says, or the call is refused and leaves its output as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fl/view.h"
#include "input.h"

enum { DIMS_MOST = 5, ELEMENTS_MOST = 1 << 10, STEPS_MOST = 6 };

#define REQUIRE(condition)                                                         \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "fuzz_view:%d: is false: %s\n", __LINE__, #condition); \
            abort();                                                               \
        }                                                                          \
    } while (0)

/* Mostly small, sometimes anything, so that sums and products overflow. */
static int64_t number(input *in) {
    uint8_t tag = input_byte(in);
    return tag < 0xF0 ? (int64_t)(tag % 16) - 5 : (int64_t)input_word(in);
}

static int64_t size_of_dim(input *in) {
    int64_t size = number(in);
    return size < 0 && size >= -5 ? -size : size;
}

static int64_t at(const fl_view *view, const int64_t *index) {
    int64_t place = view->offset;
    for (int32_t i = 0; i < view->ndim; i++) {
        place += index[i] * view->stride[i];
    }
    return place;
}

/* The next index in row-major order; false behind the last. */
static bool advance(const fl_view *view, int64_t *index) {
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (++index[i] < view->shape[i]) {
            return true;
        }
        index[i] = 0;
    }
    return false;
}

static bool is_small(const fl_view *view) {
    int64_t numel = fl_view_numel(view);
    return numel > 0 && numel <= ELEMENTS_MOST;
}

/* --- questions about one view ------------------------------------------------------------------
 */

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t places_of(const fl_view *view, int64_t places[ELEMENTS_MOST]) {
    int64_t index[FL_VIEW_DIMS_MAX] = {0}, count = 0;
    do {
        places[count++] = at(view, index);
    } while (advance(view, index));
    REQUIRE(count == fl_view_numel(view));
    return count;
}

static void check_questions(const fl_view *view) {
    static int64_t places[ELEMENTS_MOST];
    if (!is_small(view)) {
        return;
    }
    int64_t count = places_of(view, places);
    bool in_order = true;
    for (int64_t i = 0; i < count; i++) {
        in_order = in_order && places[i] == places[0] + i;
    }
    REQUIRE(fl_view_is_contiguous(view, FL_FORMAT_CONTIGUOUS) == in_order);
    qsort(places, (size_t)count, sizeof(places[0]), compare);
    bool twice = false;
    for (int64_t i = 1; i < count; i++) {
        twice = twice || places[i] == places[i - 1];
    }
    fl_overlap overlap = fl_view_self_overlap(view);
    REQUIRE(overlap == FL_OVERLAP_MAYBE || (overlap == FL_OVERLAP_YES) == twice);
    if (fl_view_is_dense(view)) {
        REQUIRE(!twice && places[count - 1] - places[0] == count - 1);
    }
    int64_t low, high, size = (int64_t)fl_dtype_size(view->dtype);
    fl_view_bounds(view, &low, &high);
    REQUIRE(low == places[0] * size && high == (places[count - 1] + 1) * size);
    REQUIRE((fl_view_fits(view, (uint64_t)1 << 40) == FL_OK) == (low >= 0 && high <= 1LL << 40));
}

static void check_loops(const fl_view *view) {
    if (!is_small(view) || fl_view_self_overlap(view) != FL_OVERLAP_NO) {
        return;
    }
    static int64_t before[ELEMENTS_MOST], after[ELEMENTS_MOST];
    int64_t count = places_of(view, before);
    fl_view looped = *view;
    fl_views_sort(&looped, 1);
    fl_views_collapse(&looped, 1);
    REQUIRE(fl_view_check(&looped) == FL_OK && places_of(&looped, after) == count);
    qsort(before, (size_t)count, sizeof(before[0]), compare);
    qsort(after, (size_t)count, sizeof(after[0]), compare);
    REQUIRE(memcmp(before, after, (size_t)count * sizeof(before[0])) == 0);
}

/* --- views made of views -----------------------------------------------------------------------
 */

typedef enum step { EXPAND, PERMUTE, SLICE, SELECT, UNFOLD, AS_STRIDED, RESHAPE, STEP_COUNT } step;

typedef struct action {
    step step;
    int32_t dim, ndim;
    int64_t a, b, c;
    int64_t shape[FL_VIEW_DIMS_MAX], stride[FL_VIEW_DIMS_MAX];
    int32_t order[FL_VIEW_DIMS_MAX];
} action;

static fl_status apply(const action *it, const fl_view *view, fl_view *out) {
    switch (it->step) {
    case EXPAND:
        return fl_view_expand(view, it->ndim, it->shape, out);
    case PERMUTE:
        return fl_view_permute(view, it->order, out);
    case SLICE:
        return fl_view_slice(view, it->dim, it->a, it->b, it->c, out);
    case SELECT:
        return fl_view_select(view, it->dim, it->a, out);
    case UNFOLD:
        return fl_view_unfold(view, it->dim, it->a, it->b, out);
    case AS_STRIDED:
        return fl_view_as_strided(view, it->ndim, it->shape, it->stride, it->a, out);
    default:
        return fl_view_reshape(view, it->ndim, it->shape, out);
    }
}

/* The index of the source that an index of the result means; false where only the order counts. */
static bool source_index(const action *it, const fl_view *view, const fl_view *result,
                         const int64_t *index, int64_t *source) {
    int32_t added = result->ndim - view->ndim;
    memcpy(source, index, sizeof(index[0]) * FL_VIEW_DIMS_MAX);
    switch (it->step) {
    case EXPAND:
        for (int32_t i = 0; i < view->ndim; i++) {
            source[i] = view->shape[i] == 1 ? 0 : index[i + added];
        }
        return true;
    case PERMUTE:
        for (int32_t i = 0; i < view->ndim; i++) {
            source[it->order[i]] = index[i];
        }
        return true;
    case SLICE: {
        int64_t size = view->shape[it->dim], start = it->a < 0 ? it->a + size : it->a;
        start = start < 0 ? 0 : start > size ? size : start;
        source[it->dim] = start + index[it->dim] * it->c;
        return true;
    }
    case SELECT:
        memmove(&source[it->dim + 1], &source[it->dim],
                sizeof(index[0]) * (size_t)(view->ndim - 1 - it->dim));
        source[it->dim] = it->a < 0 ? it->a + view->shape[it->dim] : it->a;
        return true;
    case UNFOLD:
        if (view->ndim > 0) {
            source[it->dim] = index[it->dim] * it->b + index[view->ndim];
        }
        return true;
    default:
        return false;
    }
}

static void check_step(const action *it, const fl_view *view, const fl_view *result) {
    static int64_t from[ELEMENTS_MOST], to[ELEMENTS_MOST];
    if (!is_small(result) || (it->step == RESHAPE && !is_small(view))) {
        return;
    }
    if (it->step == RESHAPE) {
        int64_t count = places_of(view, from);
        REQUIRE(places_of(result, to) == count);
        REQUIRE(memcmp(from, to, (size_t)count * sizeof(from[0])) == 0);
        return;
    }
    int64_t index[FL_VIEW_DIMS_MAX] = {0}, source[FL_VIEW_DIMS_MAX];
    do {
        if (source_index(it, view, result, index, source)) {
            for (int32_t i = 0; i < view->ndim; i++) {
                REQUIRE(source[i] >= 0 && source[i] < view->shape[i]);
            }
            REQUIRE(at(result, index) == at(view, source));
        }
    } while (advance(result, index));
}

static action read_action(input *in, const fl_view *view) {
    action it = {.step = (step)(input_byte(in) % STEP_COUNT)};
    it.dim = (int8_t)input_byte(in) % 8;
    it.ndim = input_byte(in) % (DIMS_MOST + 2);
    it.a = number(in);
    it.b = number(in);
    it.c = number(in);
    for (int32_t i = 0; i < it.ndim; i++) {
        it.shape[i] = number(in);
        it.stride[i] = number(in);
    }
    for (int32_t i = 0; i < view->ndim; i++) {
        it.order[i] = (int8_t)input_byte(in) % 8;
    }
    return it;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, data + size};
    fl_view view = {.data = NULL, .dtype = (fl_dtype)(input_byte(&in) % (FL_DTYPE_COUNT + 1))};
    view.ndim = input_byte(&in) % (DIMS_MOST + 1);
    view.offset = number(&in);
    for (int32_t i = 0; i < view.ndim; i++) {
        view.shape[i] = size_of_dim(&in);
        view.stride[i] = number(&in);
    }
    if (fl_view_check(&view) != FL_OK) {
        return 0;
    }
    for (int i = 0; i < STEPS_MOST && in.at < in.end; i++) {
        check_questions(&view);
        check_loops(&view);
        action it = read_action(&in, &view);
        fl_view result, untouched;
        memset(&result, 0x5A, sizeof(result));
        memcpy(&untouched, &result, sizeof(result));
        fl_status status = apply(&it, &view, &result);
        if (status) {
            REQUIRE(memcmp(&untouched, &result, sizeof(result)) == 0);
            continue;
        }
        REQUIRE(fl_view_check(&result) == FL_OK);
        check_step(&it, &view, &result);
        view = result;
    }
    return 0;
}
