/*
 * failures.h: whether foreign code that failed has said why. Its words are the thread's last
 * message only if it recorded one; else that message is about something older.
 */
#ifndef FL_SRC_BASE_FAILURES_H
#define FL_SRC_BASE_FAILURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"

/* How many failures the calling thread has recorded, in steps that wrap around. Read it before
 * foreign code is called: one load, so that calls which succeed do not pay for those that fail. */
extern FL_THREAD_LOCAL_HOT uint32_t fl__failures;

/* Whether a failure was recorded since `before` was read. */
static inline bool fl__has_words_since(uint32_t before) {
    return fl__failures != before;
}

#endif
