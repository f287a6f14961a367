/*
 * overlap.c: whether views reach common bytes.
 *
 * Two indexes meet where a sum of strides times index differences hits a distance: a linear
 * equation with whole bounded unknowns. Views met in practice are decided by their bounds or after
 * a few steps of the search below; the number of steps is limited, because some cannot be decided
 * fast. Pure arithmetic.
 */
#include "fl/view.h"

#include <string.h>

enum {
    TERMS_MAX = 2 * FL_VIEW_DIMS_MAX + 2, /* Two views' dimensions, and the bytes of an element. */
    STEPS_MAX = 20000,                    /* Well below a millisecond. */
};

/* Unknown x with 0 <= x <= most contributes coefficient * x; coefficients are positive. 128 bits
 * hold a sum of all terms of two views, each of whose reaches fits 63 bits. */
typedef struct term {
    int64_t coefficient;
    __int128 most;
} term;

typedef struct equation {
    int32_t count;
    int32_t steps; /* Left. */
    term terms[TERMS_MAX];
    __int128 reach[TERMS_MAX + 1];  /* Largest sum of the terms from here on. */
    int64_t divisor[TERMS_MAX + 1]; /* Greatest common divisor of the coefficients from here on. */
} equation;

static void add_term(equation *eq, int64_t coefficient, __int128 most) {
    if (most > 0) {
        eq->terms[eq->count++] = (term){.coefficient = coefficient, .most = most};
    }
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Largest coefficients first: they leave the fewest choices. */
static void sort_terms(equation *eq) {
    for (int32_t i = 1; i < eq->count; i++) {
        for (int32_t j = i; j > 0 && eq->terms[j].coefficient > eq->terms[j - 1].coefficient; j--) {
            term swapped = eq->terms[j];
            eq->terms[j] = eq->terms[j - 1];
            eq->terms[j - 1] = swapped;
        }
    }
}

/* After sorting: terms of one coefficient are one term, c * x + c * y = c * (x + y). Without that,
 * two halves of a matrix would be searched row by row. */
static void merge_terms(equation *eq) {
    int32_t kept = 0;
    for (int32_t i = 0; i < eq->count; i++) {
        if (kept > 0 && eq->terms[kept - 1].coefficient == eq->terms[i].coefficient) {
            eq->terms[kept - 1].most += eq->terms[i].most;
        } else {
            eq->terms[kept++] = eq->terms[i];
        }
    }
    eq->count = kept;
}

static void sum_up(equation *eq) {
    eq->reach[eq->count] = 0;
    eq->divisor[eq->count] = 0;
    for (int32_t i = eq->count - 1; i >= 0; i--) {
        eq->reach[i] = eq->reach[i + 1] + eq->terms[i].coefficient * eq->terms[i].most;
        eq->divisor[i] = common_divisor(eq->terms[i].coefficient, eq->divisor[i + 1]);
    }
}

/* Is there a solution of: the sum of the terms from `first` on equals `sum`? */
static fl_overlap solve(equation *eq, int32_t first, __int128 sum) {
    if (sum < 0 || sum > eq->reach[first]) {
        return FL_OVERLAP_NO;
    }
    if (sum == 0) {
        return FL_OVERLAP_YES;
    }
    if (eq->steps-- <= 0) {
        return FL_OVERLAP_MAYBE;
    }
    if (sum % eq->divisor[first] != 0) {
        return FL_OVERLAP_NO;
    }
    int64_t coefficient = eq->terms[first].coefficient;
    __int128 most = sum / coefficient;
    if (most > eq->terms[first].most) {
        most = eq->terms[first].most;
    }
    /* Smaller values leave more than the other terms can reach. */
    __int128 left = sum - eq->reach[first + 1];
    __int128 least = left > 0 ? (left + coefficient - 1) / coefficient : 0;
    fl_overlap answer = FL_OVERLAP_NO;
    for (__int128 value = most; value >= least; value--) {
        fl_overlap found = solve(eq, first + 1, sum - value * coefficient);
        if (found == FL_OVERLAP_YES) {
            return FL_OVERLAP_YES;
        }
        if (found == FL_OVERLAP_MAYBE) {
            answer = FL_OVERLAP_MAYBE;
            break; /* Only for want of steps. */
        }
    }
    return answer;
}

/* With x and y two indexes, d = x - y is searched for with sum(d * stride) = 0 and d not all 0.
 * Signs of strides do not matter, as d takes both. The first d that is not 0, in order of the
 * strides, may be taken as positive; the later ones are shifted to start from 0. */
fl_overlap fl_view_self_overlap(const fl_view *view) {
    equation eq;
    eq.count = 0;
    if (fl_view_numel(view) < 2) {
        return FL_OVERLAP_NO;
    }
    for (int32_t i = 0; i < view->ndim; i++) {
        if (view->shape[i] > 1 && view->stride[i] == 0) {
            return FL_OVERLAP_YES;
        }
        if (view->shape[i] > 1) { /* The stride of one element may be any number. */
            add_term(&eq, view->stride[i] < 0 ? -view->stride[i] : view->stride[i],
                     view->shape[i] - 1);
        }
    }
    sort_terms(&eq);
    sum_up(&eq);
    int32_t steps = STEPS_MAX;
    for (int32_t i = 0; i < eq.count; i++) {
        if (eq.terms[i].coefficient > eq.reach[i + 1]) {
            continue; /* As for every dense view: nothing later reaches as far as one step. */
        }
        /* d * coefficient + sum over later terms of (u - most) * coefficient = 0, 0 <= u <= 2 *
         * most; the sum of most * coefficient is reach[i + 1]. */
        equation rest;
        rest.count = 0;
        rest.steps = steps;
        for (int32_t j = i + 1; j < eq.count; j++) {
            add_term(&rest, eq.terms[j].coefficient, 2 * eq.terms[j].most);
        }
        merge_terms(&rest);
        sum_up(&rest);
        __int128 sum = eq.reach[i + 1];
        for (__int128 d = 1; d <= eq.terms[i].most && sum >= 0; d++) {
            sum -= eq.terms[i].coefficient;
            fl_overlap found = solve(&rest, 0, sum);
            if (found != FL_OVERLAP_NO) {
                return found; /* "Maybe" is for want of steps: there are none for other terms. */
            }
        }
        steps = rest.steps;
    }
    return FL_OVERLAP_NO;
}

/* Adds a view's dimensions in bytes, each index counted from the end that makes its coefficient
 * positive; returns by how much the sum of the equation moves for that. `sign` is 1 or -1. */
static __int128 add_view(equation *eq, const fl_view *view, int64_t sign) {
    __int128 moved = 0;
    int64_t size = (int64_t)fl_dtype_size(view->dtype);
    for (int32_t i = 0; i < view->ndim; i++) {
        int64_t most = view->shape[i] - 1;
        if (most == 0 || view->stride[i] == 0) {
            continue;
        }
        int64_t coefficient = view->stride[i] * size * sign;
        if (coefficient < 0) {
            moved -= (__int128)coefficient * most;
            coefficient = -coefficient;
        }
        add_term(eq, coefficient, most);
    }
    return moved;
}

fl_overlap fl_views_overlap(const fl_view *a, const fl_view *b) {
    if (fl_view_numel(a) == 0 || fl_view_numel(b) == 0) {
        return FL_OVERLAP_NO;
    }
    int64_t low_a, high_a, low_b, high_b;
    fl_view_bounds(a, &low_a, &high_a);
    fl_view_bounds(b, &low_b, &high_b);
    __int128 base_a = (__int128)(uintptr_t)a->data;
    __int128 base_b = (__int128)(uintptr_t)b->data;
    if (base_a + high_a <= base_b + low_b || base_b + high_b <= base_a + low_a) {
        return FL_OVERLAP_NO;
    }
    int64_t size_a = (int64_t)fl_dtype_size(a->dtype);
    int64_t size_b = (int64_t)fl_dtype_size(b->dtype);
    /* first_a + sum_a + byte_a = first_b + sum_b + byte_b, with 0 <= byte < size. */
    equation eq;
    eq.count = 0;
    eq.steps = STEPS_MAX;
    __int128 sum =
        (base_b + (__int128)b->offset * size_b) - (base_a + (__int128)a->offset * size_a);
    sum += add_view(&eq, a, 1);
    sum += add_view(&eq, b, -1);
    add_term(&eq, 1, size_a - 1);
    add_term(&eq, 1, size_b - 1); /* byte_b is counted from its end. */
    sum += size_b - 1;
    sort_terms(&eq);
    merge_terms(&eq);
    sum_up(&eq);
    return solve(&eq, 0, sum);
}
