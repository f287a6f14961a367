/*
 * assert.h: assertions in three levels.
 *
 * Level 1 checks arguments and cheap state, level 2 internal consistency, level 3 walks whole
 * structures. The macro TORCH_FL_DEBUG bounds what is compiled, the option of that name what is
 * checked at run time. A failed assertion is a bug of ours: it prints one line and stops the
 * process where the bug can be seen. Failures that a caller can cause are statuses, never these.
 */
#ifndef FL_BASE_ASSERT_H
#define FL_BASE_ASSERT_H

#include <assert.h> /* static_assert */

#include "base/log.h"

#ifndef TORCH_FL_DEBUG
#define TORCH_FL_DEBUG 1
#endif

static inline bool fl__assert_wanted(int level) {
    return TORCH_FL_DEBUG >= level && fl__debug_level_get() >= level;
}

/* The condition must not have side effects: at a lower level it is not evaluated. */
#define FL__ASSERT_AT(level, condition)                                  \
    do {                                                                 \
        if (fl__assert_wanted(level) && !(condition)) {                  \
            fl__assert_failed(#condition, __FILE__, __LINE__, __func__); \
        }                                                                \
    } while (0)

#define FL_ASSERT(condition) FL__ASSERT_AT(1, condition)
#define FL_ASSERT_INTERNAL(condition) FL__ASSERT_AT(2, condition)
#define FL_ASSERT_WALK(condition) FL__ASSERT_AT(3, condition)

#endif
