/*
 * plan_executor.h: plans of copies, carried out on host memory.
 *
 * Also checks what a plan promises: host memory is read only after a wait, a buffer only after it
 * was filled, driver copies only between places that a driver copies between. The dtypes U8, I16
 * and I32 are known.
 */
#ifndef FL_TESTS_PLAN_EXECUTOR_H
#define FL_TESTS_PLAN_EXECUTOR_H

#include "copy/plan.h"

/* dst[i] = src[i], index by index. */
void plan_naive(const fl_view *dst, const fl_view *src);

/* `places` are those of the destination and of the source. NULL, or the promise that was broken. */
const char *plan_carry_out(fl__copy_plan *plan, const fl_place places[2]);

#endif
