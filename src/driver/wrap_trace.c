/*
 * wrap_trace.c: a driver that passes every call on to another one and keeps a list of them, so that
 * a test can say in which order work was queued. Must not know which driver is inside.
 */
#include "driver/wrap.h"

#include <stdlib.h>

#include "base/thread.h"

struct fl__call_trace {
    fl_driver table;
    const fl_driver *inner;
    fl__mutex lock; /* Guards the rest. */
    fl__trace_entry *entries;
    size_t count, room;
};

enum { LOST = -1 };

/* Where the entry stands; LOST when there is no memory for it, and the call is made all the same.
 */
static int64_t note_begin(fl__call_trace *trace, fl__trace_entry entry) {
    int64_t index = LOST;
    fl__lock(&trace->lock);
    if (trace->count == trace->room) {
        size_t room = trace->room ? 2 * trace->room : 64;
        fl__trace_entry *grown = realloc(trace->entries, room * sizeof(*grown));
        if (grown) {
            trace->entries = grown;
            trace->room = room;
        }
    }
    if (trace->count < trace->room) {
        index = (int64_t)trace->count++;
        trace->entries[index] = entry;
        trace->entries[index].status = FL_STATUS_COUNT;
    }
    fl__unlock(&trace->lock);
    return index;
}

static fl_status note_end(fl__call_trace *trace, int64_t index, fl_status status) {
    fl__lock(&trace->lock);
    if (index != LOST && (size_t)index < trace->count) {
        trace->entries[index].status = status;
    }
    fl__unlock(&trace->lock);
    return status;
}

#define FL_SLOT(name, class, parameters, arguments, note)                                    \
    static fl_status trace_##name(parameters) {                                              \
        fl__call_trace *trace = ctx;                                                         \
        const fl_driver *inner = trace->inner;                                               \
        int64_t index = note_begin(trace, (fl__trace_entry){.slot = FL__SLOT_##name, note}); \
        return note_end(trace, index, inner->name(arguments));                               \
    }
#include "driver/slots.inc"
#undef FL_SLOT

fl_status fl__call_trace_create(const fl_driver *inner, fl__call_trace **out_trace) {
    fl__call_trace *trace = calloc(1, sizeof(*trace));
    if (!trace) {
        return fl_fail(FL_OUT_OF_MEMORY, "fl__call_trace_create: no memory");
    }
    (void)pthread_mutex_init(&trace->lock, NULL);
    trace->inner = inner;
    trace->table = *inner;
    trace->table.ctx = trace;
#define FL_SLOT(name, class, parameters, arguments, note) \
    if (inner->name) {                                    \
        trace->table.name = trace_##name;                 \
    }
#include "driver/slots.inc"
#undef FL_SLOT
    *out_trace = trace;
    return FL_OK;
}

void fl__call_trace_destroy(fl__call_trace *trace) {
    if (trace) {
        (void)pthread_mutex_destroy(&trace->lock);
        free(trace->entries);
        free(trace);
    }
}

const fl_driver *fl__call_trace_driver(fl__call_trace *trace) {
    return &trace->table;
}

size_t fl__call_trace_count(fl__call_trace *trace) {
    fl__lock(&trace->lock);
    size_t count = trace->count;
    fl__unlock(&trace->lock);
    return count;
}

fl__trace_entry fl__call_trace_at(fl__call_trace *trace, size_t index) {
    fl__lock(&trace->lock);
    fl__trace_entry entry = trace->entries[index];
    fl__unlock(&trace->lock);
    return entry;
}

void fl__call_trace_clear(fl__call_trace *trace) {
    fl__lock(&trace->lock);
    trace->count = 0;
    fl__unlock(&trace->lock);
}

size_t fl__call_trace_find(fl__call_trace *trace, size_t from, fl__slot slot) {
    fl__lock(&trace->lock);
    size_t index = from;
    while (index < trace->count && trace->entries[index].slot != slot) {
        index++;
    }
    size_t count = trace->count;
    fl__unlock(&trace->lock);
    return index < count ? index : count;
}
