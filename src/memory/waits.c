/*
 * waits.c: events behind the work of streams that used a block.
 *
 * A driver that refuses an event (it may be out of them, or broken) must not make a block reusable
 * too early: such a use is kept and tried again, and a wait for the whole device settles it.
 */
#include "memory/waits.h"

#include <stdlib.h>

void fl__waits_init(fl__waits *waits, void (*done)(fl__waits *waits, fl__waiter *waiter)) {
    *waits = (fl__waits){.done = done};
    fl__list_init(&waits->busy);
    fl__list_init(&waits->unrecorded);
    fl__slab_init(&waits->uses, sizeof(fl__use), 64);
}

/* NULL if there is no host memory for a new one. */
static fl__lane *lane_of(fl__waits *waits, fl_device device, fl_stream stream) {
    fl__lane *lane = waits->lanes;
    while (lane && (lane->stream != stream || lane->device != device)) {
        lane = lane->next;
    }
    if (!lane) {
        lane = calloc(1, sizeof(*lane));
    }
    if (lane && !lane->queue.next) {
        lane->device = device;
        lane->stream = stream;
        fl__list_init(&lane->queue);
        fl__list_init(&lane->busy);
        lane->next = waits->lanes;
        waits->lanes = lane;
    }
    return lane;
}

fl_status fl__waits_note(fl__waits *waits, fl__waiter *waiter, fl_device device, fl_stream stream,
                         bool *out_new) {
    *out_new = false;
    for (const fl__use *use = waiter->uses; use; use = use->next) {
        if (use->lane->stream == stream && use->lane->device == device) {
            return FL_OK;
        }
    }
    fl__lane *lane = lane_of(waits, device, stream);
    if (!lane) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory to follow a stream");
    }
    fl__use *use = lane->spare;
    if (use) {
        lane->spare = use->next;
    } else {
        void *node;
        FL_TRY(fl__slab_take(&waits->uses, &node));
        use = node;
        fl__list_init(&use->node);
        use->lane = lane;
    }
    use->waiter = waiter;
    use->next = waiter->uses;
    waiter->uses = use;
    *out_new = true;
    return FL_OK;
}

/* Put an event behind what the use's stream has queued; false if the driver refuses. */
static bool record(fl__waits *waits, fl__use *use) {
    fl__lane *lane = use->lane;
    if (!use->event && fl_event_create(lane->device, 0, &use->event)) {
        use->event = NULL;
        return false;
    }
    if (fl_event_record(use->event, lane->device, lane->stream)) {
        return false;
    }
    fl__list_remove(&use->node);
    fl__list_push_back(&lane->queue, &use->node);
    if (fl__list_is_empty(&lane->busy)) {
        fl__list_push_back(&waits->busy, &lane->busy);
    }
    return true;
}

bool fl__waits_begin(fl__waits *waits, fl__waiter *waiter) {
    fl__use *use = waiter->uses;
    waiter->uses = NULL;
    while (use) {
        fl__use *next = use->next;
        use->next = NULL;
        waiter->pending++;
        if (!record(waits, use)) {
            use->epoch = waits->epoch;
            fl__list_push_back(&waits->unrecorded, &use->node);
        }
        use = next;
    }
    return waiter->pending > 0;
}

static void finish(fl__waits *waits, fl__use *use) {
    fl__lane *lane = use->lane;
    fl__waiter *waiter = use->waiter;
    fl__list_remove(&use->node);
    if (fl__list_is_empty(&lane->queue)) {
        fl__list_remove(&lane->busy);
    }
    use->waiter = NULL;
    use->next = lane->spare;
    lane->spare = use;
    waiter->pending--;
    if (waiter->pending == 0) {
        waits->done(waits, waiter);
    }
}

void fl__waits_poll_slow(fl__waits *waits) {
    while (!fl__list_is_empty(&waits->unrecorded)) {
        if (!record(waits, FL__LIST_ENTRY(waits->unrecorded.next, fl__use, node))) {
            break;
        }
    }
    fl__list *next;
    for (fl__list *node = waits->busy.next; node != &waits->busy; node = next) {
        next = node->next;
        fl__lane *lane = FL__LIST_ENTRY(node, fl__lane, busy);
        while (!fl__list_is_empty(&lane->queue)) {
            fl__use *use = FL__LIST_ENTRY(lane->queue.next, fl__use, node);
            /* An error keeps the block waiting, which is safe; the caller's own work meets it. */
            if (fl_event_query(use->event) != FL_OK) {
                break;
            }
            finish(waits, use);
        }
    }
}

uint64_t fl__waits_mark(fl__waits *waits, uint64_t *out_epoch) {
    uint64_t devices = 0;
    for (fl__list *node = waits->busy.next; node != &waits->busy; node = node->next) {
        devices |= UINT64_C(1) << FL__LIST_ENTRY(node, fl__lane, busy)->device;
    }
    for (fl__list *node = waits->unrecorded.next; node != &waits->unrecorded; node = node->next) {
        devices |= UINT64_C(1) << FL__LIST_ENTRY(node, fl__use, node)->lane->device;
    }
    *out_epoch = waits->epoch++;
    return devices;
}

void fl__waits_finish(fl__waits *waits, uint64_t devices, uint64_t epoch) {
    fl__list *next;
    for (fl__list *node = waits->unrecorded.next; node != &waits->unrecorded; node = next) {
        next = node->next;
        fl__use *use = FL__LIST_ENTRY(node, fl__use, node);
        if (use->epoch <= epoch && ((devices >> use->lane->device) & 1u)) {
            finish(waits, use);
        }
    }
    fl__waits_poll(waits);
}

size_t fl__waits_count(const fl__waits *waits) {
    size_t count = 0;
    for (const fl__lane *lane = waits->lanes; lane; lane = lane->next) {
        if (fl__list_is_empty(&lane->queue) != fl__list_is_empty(&lane->busy)) {
            return SIZE_MAX;
        }
        for (const fl__list *node = lane->queue.next; node != &lane->queue; node = node->next) {
            count++;
        }
    }
    const fl__list *end = &waits->unrecorded;
    for (const fl__list *node = end->next; node != end; node = node->next) {
        count++;
    }
    return count;
}
