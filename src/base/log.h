/*
 * log.h: trace lines by category, and the line of a failed assertion.
 *
 * log.c is the only file that prints. The sink can be replaced (fl/debug.h). Knows no device.
 */
#ifndef FL_BASE_LOG_H
#define FL_BASE_LOG_H

#include "fl/debug.h"

/* One bit a category; all bits set until the options were read. */
extern uint32_t fl__trace_mask;
#define FL__TRACE_UNREAD UINT32_MAX

/* -1 until the options were read. */
extern int32_t fl__debug_level_cache;

/* Read the options if that has not happened, and return the mask or the level. */
uint32_t fl__trace_mask_slow(void);
int32_t fl__debug_level_slow(void);

/* The options call this when a value changes. */
void fl__log_configure(uint32_t trace_mask, int32_t debug_level);

static inline bool fl__trace_on(fl_trace_category category) {
    uint32_t mask = __atomic_load_n(&fl__trace_mask, __ATOMIC_RELAXED);
    if (__builtin_expect(mask == FL__TRACE_UNREAD, 0)) {
        mask = fl__trace_mask_slow();
    }
    return __builtin_expect((mask >> category) & 1u, 0);
}

static inline int32_t fl__debug_level_get(void) {
    int32_t level = __atomic_load_n(&fl__debug_level_cache, __ATOMIC_RELAXED);
    return __builtin_expect(level < 0, 0) ? fl__debug_level_slow() : level;
}

/* Prints where and what, then aborts. */
_Noreturn void fl__assert_failed(const char *condition, const char *file, int line,
                                 const char *function);

#endif
