/*
 * conformance.h: the suite that every driver must pass.
 *
 * A library of its own (libfl_conformance), so that a vendor can run it on their machine. It calls
 * nothing but the slots of the table, each by the contract of fl/driver.h. Must not know any
 * vendor.
 */
#ifndef FL_CONFORMANCE_H
#define FL_CONFORMANCE_H

#include "fl/driver.h"

FL_EXTERN_C_BEGIN

typedef enum fl_conformance_result {
    FL_CONFORMANCE_PASSED,
    FL_CONFORMANCE_FAILED,
    FL_CONFORMANCE_SKIPPED,    /* The driver has no such slot, or the machine no second device. */
    FL_CONFORMANCE_CANNOT,     /* Failed or absent, as the driver's limits say: no failure. */
    FL_CONFORMANCE_UNEXPECTED, /* Passed although the driver's limits say that it cannot. */
} fl_conformance_result;

FL_API const char *fl_conformance_word(fl_conformance_result result);

/* One case is over. `text` says why it did not pass, "" if it did; both are valid during the call.
 */
typedef void (*fl_conformance_report)(void *user, const char *case_name,
                                      fl_conformance_result result, const char *text);

/* Run every case whose name begins with `prefix` (NULL or "": all) on a driver, which is
 * initialised first. Returns the number of cases that failed, unexpected passes included; 0 only if
 * all is well; -1 if the driver cannot be used at all, which is reported as the case "driver". The
 * devices must be idle; what the cases make, they release. */
FL_API int fl_conformance_run(const fl_driver *driver, const char *prefix,
                              fl_conformance_report report, void *user);

/* Names of the cases, for listing; NULL behind the last. */
FL_API const char *fl_conformance_case(size_t index);

FL_EXTERN_C_END
#endif
