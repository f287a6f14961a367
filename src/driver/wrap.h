/*
 * wrap.h: drivers around a driver, for tests: one that fails on demand, one that writes down what
 * is called. They stack in either order. Must not know which driver is inside.
 */
#ifndef FL_SRC_DRIVER_WRAP_H
#define FL_SRC_DRIVER_WRAP_H

#include <stdatomic.h>

#include "fl/driver.h"

typedef enum fl__slot_class {
    FL__SLOT_DEVICE = 1 << 0,
    FL__SLOT_MEMORY = 1 << 1,
    FL__SLOT_COPY = 1 << 2,
    FL__SLOT_STREAM = 1 << 3,
    FL__SLOT_EVENT = 1 << 4,
    FL__SLOT_CODE = 1 << 5,
    FL__SLOT_ANY = (1 << 6) - 1,
} fl__slot_class;

typedef enum fl__slot {
#define FL_SLOT(name, class, parameters, arguments, note) FL__SLOT_##name,
#include "driver/slots.inc"
#undef FL_SLOT
    FL__SLOT_COUNT
} fl__slot;

const char *fl__slot_name(fl__slot slot);
fl__slot_class fl__slot_class_of(fl__slot slot);

/* --- failing ---------------------------------------------------------------------------------- */

/* The struct is the caller's and must outlive every use of the table. */
typedef struct fl__fault {
    fl_driver table; /* Use this one; optional slots that the inner driver lacks are NULL. */
    const fl_driver *inner;
    _Atomic uint64_t classes;  /* Mask of fl__slot_class; 0: nothing fails. */
    _Atomic int64_t countdown; /* The call that makes it 0 fails. */
    _Atomic int64_t calls;     /* Of the armed classes since it was armed. */
    _Atomic int64_t failures;  /* Since it was armed. */
    _Atomic int status;
    _Atomic bool stays; /* Later calls fail too. */
} fl__fault;

void fl__fault_wrap(fl__fault *fault, const fl_driver *inner);

/* From now on the `nth` call (1: the next) into slots of `classes` fails with `status` before the
 * inner driver hears of it, once or, with `stays`, from then on. Not while calls are running. */
void fl__fault_arm(fl__fault *fault, uint32_t classes, int64_t nth, fl_status status, bool stays);
void fl__fault_disarm(fl__fault *fault);

/* --- writing down ----------------------------------------------------------------------------- */

/* One call, written down before it is made, so that the order of a thread's entries is the order
 * in which work was queued. */
typedef struct fl__trace_entry {
    fl__slot slot;
    fl_device device, peer; /* -1: the slot has none; `peer` is that of the peer slots. */
    fl_copy_kind kind;
    const void *dst, *src;
    size_t bytes;
    fl_native_stream stream;
    fl_native_event event;
    fl_status status; /* FL_STATUS_COUNT while the call runs. */
} fl__trace_entry;

typedef struct fl__call_trace fl__call_trace; /* Must outlive every use of its driver. */

fl_status fl__call_trace_create(const fl_driver *inner, fl__call_trace **out_trace);
void fl__call_trace_destroy(fl__call_trace *trace);
const fl_driver *fl__call_trace_driver(fl__call_trace *trace);

size_t fl__call_trace_count(fl__call_trace *trace);
/* A copy; `index` < count. */
fl__trace_entry fl__call_trace_at(fl__call_trace *trace, size_t index);
void fl__call_trace_clear(fl__call_trace *trace);

/* The index of the first entry at or behind `from` of this slot; the count if there is none. */
size_t fl__call_trace_find(fl__call_trace *trace, size_t from, fl__slot slot);

#endif
