/*
 * status.h: how every function of libflagos says whether it worked.
 *
 * A function returns an fl_status; results come out through its last parameters and are written
 * only on success. What went wrong is kept as a sentence for the calling thread. The library never
 * prints and never aborts. Knows nothing of who fails.
 */
#ifndef FL_STATUS_H
#define FL_STATUS_H

#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* code, name for messages */
#define FL_STATUS_LIST(X)                                                                       \
    X(OK, "ok")                                                                                 \
    X(NOT_READY, "not ready") /* The answer of a query about work that still runs: no error. */ \
    X(INVALID_ARGUMENT, "invalid argument")                                                     \
    X(OUT_OF_RANGE, "out of range")                                                             \
    X(NOT_FOUND, "not found")                                                                   \
    X(NOT_SUPPORTED, "not supported") /* The platform cannot do this at all. */                 \
    X(UNAVAILABLE, "unavailable")     /* A library or a device is not there. */                 \
    X(OUT_OF_MEMORY, "out of memory")                                                           \
    X(WRONG_STATE, "wrong state") /* Right call, wrong time: not loaded, loaded twice, ... */   \
    X(BAD_FORK, "forked child")   /* The parent had used a device before it forked. */          \
    X(DEVICE_ERROR, "device error")                                                             \
    X(DEVICE_LOST, "device lost") /* The context is poisoned; nothing will work any more. */    \
    X(INTERNAL, "internal error")

typedef enum fl_status {
#define FL_STATUS_ENUM(code, name) FL_##code,
    FL_STATUS_LIST(FL_STATUS_ENUM)
#undef FL_STATUS_ENUM
        FL_STATUS_COUNT
} fl_status;

/* The name of a code, for messages; "unknown status" for a number that is none. Never NULL. */
FL_API const char *fl_status_name(fl_status status);

/* The sentence about the calling thread's last failure, "" if there was none. It says what we did,
 * the vendor's function and the vendor's own words. Valid until the thread's next failure. */
FL_API const char *fl_last_message(void);

/* The vendor's own number for the last failure, 0 if no vendor took part. */
FL_API int32_t fl_last_vendor_code(void);

/* Record a failure of the calling thread and return `status`. Drivers and the core's own files use
 * it; the message should name the function, what was asked and, where it helps, what to do. */
FL_API fl_status fl_fail(fl_status status, const char *format, ...) FL_PRINTF(2, 3);

/* The same with the vendor's number kept. */
FL_API fl_status fl_fail_vendor(fl_status status, int32_t vendor_code, const char *format, ...)
    FL_PRINTF(3, 4);

/* Put words in front of the last message ("while copying a tensor to flagos:1: ..."). */
FL_API fl_status fl_fail_context(fl_status status, const char *format, ...) FL_PRINTF(2, 3);

/* The one macro of the code base that returns from its caller: pass a failure on. */
#define FL_TRY(expression)                         \
    do {                                           \
        fl_status fl_try_status_ = (expression);   \
        if (__builtin_expect(fl_try_status_, 0)) { \
            return fl_try_status_;                 \
        }                                          \
    } while (0)

FL_EXTERN_C_END
#endif
