/*
 * waits.h: blocks that streams still use when their owner lets go; private to src/memory.
 *
 * While a block is in use the streams that touch it are noted. When it is let go an event is
 * recorded behind the work of each, and the block is done when all events have run. Serves the
 * device cache and the pinned cache; each guards its own with its mutex. Knows neither sizes nor
 * addresses.
 */
#ifndef FL_MEMORY_WAITS_H
#define FL_MEMORY_WAITS_H

#include "base/list.h"
#include "base/slab.h"
#include "fl/stream.h"

typedef struct fl__lane fl__lane;
typedef struct fl__use fl__use;
typedef struct fl__waits fl__waits;

/* A member of what may wait. All zero: used by no stream. */
typedef struct fl__waiter {
    fl__use *uses;    /* Streams noted while the block is in use. */
    uint32_t pending; /* Uses whose events have not run, once it was let go. */
} fl__waiter;

/* One stream's use of one block. */
struct fl__use {
    fl__list node; /* In lane->queue or waits->unrecorded while pending. */
    fl__use *next; /* Of the same waiter, or in lane->spare. */
    fl__lane *lane;
    fl__waiter *waiter;
    uint64_t epoch;  /* Of the waits, when the event could not be recorded. */
    fl_event *event; /* Kept when the use is given back, so that events are made once. */
};

/* A stream that somebody waits or waited for; kept for good. */
struct fl__lane {
    fl__lane *next;
    fl_device device;
    fl_stream stream;
    fl__list queue; /* fl__use.node, in the order of their events. */
    fl__list busy;  /* In waits->busy while the queue is not empty. */
    fl__use *spare;
};

struct fl__waits {
    fl__lane *lanes;
    fl__list busy;
    fl__list unrecorded; /* Uses whose event the driver refused; tried again at each poll. */
    fl__slab uses;
    uint64_t epoch; /* Counts waits for whole devices. */
    /* Every event of a waiter has run. Called by poll and finish, under the owner's mutex. */
    void (*done)(fl__waits *waits, fl__waiter *waiter);
};

void fl__waits_init(fl__waits *waits, void (*done)(fl__waits *waits, fl__waiter *waiter));

/* The stream uses the block; the same one twice counts once. Says whether it was new. */
fl_status fl__waits_note(fl__waits *waits, fl__waiter *waiter, fl_device device, fl_stream stream,
                         bool *out_new);

/* The block was let go. True: it waits, and `done` will be called. False: nobody uses it. */
bool fl__waits_begin(fl__waits *waits, fl__waiter *waiter);

/* Look which events have run. */
void fl__waits_poll_slow(fl__waits *waits);
static inline void fl__waits_poll(fl__waits *waits) {
    if (__builtin_expect(!fl__list_is_empty(&waits->busy) || !fl__list_is_empty(&waits->unrecorded),
                         0)) {
        fl__waits_poll_slow(waits);
    }
}

/* For waiting without the mutex: which devices (a bit each) somebody waits for now, and the epoch
 * to hand to fl__waits_finish once those devices were synchronised. */
uint64_t fl__waits_mark(fl__waits *waits, uint64_t *out_epoch);
/* The devices were synchronised after the epoch was marked: what waited then is done. */
void fl__waits_finish(fl__waits *waits, uint64_t devices, uint64_t epoch);

/* For checks: uses in all queues; SIZE_MAX if a lane is listed wrongly. */
size_t fl__waits_count(const fl__waits *waits);

#endif
