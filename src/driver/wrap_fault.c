/*
 * wrap_fault.c: a driver that passes every call on to another one, but for the call that it was
 * told to fail. Must not know which driver is inside.
 */
#include "driver/wrap.h"

static const struct {
    const char *name;
    fl__slot_class class;
} slots[FL__SLOT_COUNT] = {
#define FL_SLOT(name, class, parameters, arguments, note) \
    [FL__SLOT_##name] = {#name, FL__SLOT_##class},
#include "driver/slots.inc"
#undef FL_SLOT
};

const char *fl__slot_name(fl__slot slot) {
    return (unsigned)slot < FL__SLOT_COUNT ? slots[slot].name : "no slot";
}

fl__slot_class fl__slot_class_of(fl__slot slot) {
    return slots[slot].class;
}

/* Whether this call is to fail; counts it. */
static bool strikes(fl__fault *fault, fl__slot slot) {
    if (!(atomic_load(&fault->classes) & (uint64_t)slots[slot].class)) {
        return false;
    }
    (void)atomic_fetch_add(&fault->calls, 1);
    int64_t left = atomic_fetch_sub(&fault->countdown, 1) - 1;
    if (left > 0 || (left < 0 && !atomic_load(&fault->stays))) {
        return false;
    }
    (void)atomic_fetch_add(&fault->failures, 1);
    return true;
}

static fl_status strike(const fl__fault *fault, fl__slot slot) {
    fl_status status = (fl_status)atomic_load(&fault->status);
    if (status == FL_NOT_READY) {
        return status; /* An answer, which leaves no message. */
    }
    return fl_fail(status, "%s: %s was told to fail", fault->inner->name, slots[slot].name);
}

#define FL_SLOT(name, class, parameters, arguments, note) \
    static fl_status fault_##name(parameters) {           \
        fl__fault *fault = ctx;                           \
        const fl_driver *inner = fault->inner;            \
        if (strikes(fault, FL__SLOT_##name)) {            \
            return strike(fault, FL__SLOT_##name);        \
        }                                                 \
        return inner->name(arguments);                    \
    }
#include "driver/slots.inc"
#undef FL_SLOT

void fl__fault_wrap(fl__fault *fault, const fl_driver *inner) {
    fault->inner = inner;
    fault->table = *inner;
    fault->table.ctx = fault;
    fl__fault_disarm(fault);
#define FL_SLOT(name, class, parameters, arguments, note) \
    if (inner->name) {                                    \
        fault->table.name = fault_##name;                 \
    }
#include "driver/slots.inc"
#undef FL_SLOT
}

void fl__fault_arm(fl__fault *fault, uint32_t classes, int64_t nth, fl_status status, bool stays) {
    atomic_store(&fault->countdown, nth);
    atomic_store(&fault->calls, 0);
    atomic_store(&fault->failures, 0);
    atomic_store(&fault->status, (int)status);
    atomic_store(&fault->stays, stays);
    atomic_store(&fault->classes, classes);
}

void fl__fault_disarm(fl__fault *fault) {
    fl__fault_arm(fault, 0, 0, FL_OK, false);
}
