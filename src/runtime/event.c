/*
 * event.c: events, and a pool of those that were destroyed.
 *
 * A destroyed event keeps its vendor's event and serves the next fl_event_create of the same device
 * and flags, because vendors make events slowly. Work that still waits for a pooled event is not
 * disturbed: a wait counts from the record before it. Relies on stream.c for handles. Does not know
 * why someone waits.
 *
 *   fl_event_create: new, or pool -> live, not recorded -> fl_event_record -> live, recorded
 *   fl_event_destroy: live -> pool, or freed where the pool is full or events are shared
 */
#include "fl/stream.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/thread.h"
#include "driver/call.h"
#include "runtime/device.h"

enum {
    POOLED_FLAGS = FL_EVENT_TIMING | FL_EVENT_BLOCKING_SYNC, /* Pools are told apart by these. */
    POOL_COUNT = POOLED_FLAGS + 1,
    POOL_MAX = 256, /* Events a pool keeps. */
    ALL_FLAGS = POOLED_FLAGS | FL_EVENT_INTERPROCESS,
};

struct fl_event {
    fl_event *next; /* In the pool. */
    fl_device device;
    uint32_t flags;
    fl_native_event native;
    bool is_recorded; /* Atomic. Of this life, whatever the vendor's event did in an earlier one. */
};

typedef struct event_pool {
    fl_event *first;
    uint32_t count;
} event_pool;

static event_pool pools[FL_DEVICE_MAX][POOL_COUNT];
static fl__mutex lock = FL__MUTEX_INIT; /* Guards the pools. */

static fl_event *take_pooled(fl_device device, uint32_t flags) {
    fl__lock(&lock);
    event_pool *pool = &pools[device][flags];
    fl_event *event = pool->first;
    if (event) {
        pool->first = event->next;
        pool->count--;
    }
    fl__unlock(&lock);
    return event;
}

static bool give_pooled(fl_event *event) {
    bool is_kept = false;
    fl__lock(&lock);
    event_pool *pool = &pools[event->device][event->flags];
    if (pool->count < POOL_MAX) {
        event->next = pool->first;
        pool->first = event;
        pool->count++;
        is_kept = true;
    }
    fl__unlock(&lock);
    return is_kept;
}

fl_status fl_event_create(fl_device device, uint32_t flags, fl_event **out_event) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    if (flags & ~(uint32_t)ALL_FLAGS) {
        return fl_fail(FL_INVALID_ARGUMENT, "fl_event_create: 0x%x has unknown flags", flags);
    }
    fl_event *event = flags < POOL_COUNT ? take_pooled(device, flags) : NULL;
    if (!event) {
        event = malloc(sizeof(*event));
        if (!event) {
            return fl_fail(FL_OUT_OF_MEMORY, "fl_event_create: no host memory");
        }
        *event = (fl_event){.device = device, .flags = flags};
        fl_status status = fl__drv_event_create(drv, device, flags, &event->native);
        if (status) {
            free(event);
            return status;
        }
    }
    event->next = NULL;
    __atomic_store_n(&event->is_recorded, false, __ATOMIC_RELAXED);
    *out_event = event;
    return FL_OK;
}

void fl_event_destroy(fl_event *event) {
    if (!event) {
        return;
    }
    /* In a forked child the vendor's event is the parent's: only our memory goes. */
    const fl_driver *drv = fl__device_driver();
    if (drv && event->flags < POOL_COUNT && give_pooled(event)) {
        return;
    }
    if (drv) {
        (void)fl__drv_event_destroy(drv, event->device, event->native);
    }
    free(event);
}

fl_status fl_event_record(fl_event *event, fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    if (device != event->device) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "an event of device %d cannot be recorded in a stream of device %d",
                       event->device, device);
    }
    FL_TRY(fl_stream_native(device, stream, &native));
    FL_TRY(fl__drv_event_record(drv, device, event->native, native));
    __atomic_store_n(&event->is_recorded, true, __ATOMIC_RELEASE);
    return FL_OK;
}

static bool is_recorded(const fl_event *event) {
    return __atomic_load_n(&event->is_recorded, __ATOMIC_ACQUIRE);
}

fl_status fl_event_block(fl_event *event, fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    FL_TRY(fl_stream_native(device, stream, &native));
    if (!is_recorded(event)) {
        return FL_OK;
    }
    return fl__drv_stream_wait_event(drv, device, native, event->native);
}

fl_status fl_event_query(fl_event *event) {
    const fl_driver *drv = NULL;
    fl_device device = event->device;
    FL_TRY(fl__device_enter(&device, &drv));
    return is_recorded(event) ? fl__drv_event_query(drv, device, event->native) : FL_OK;
}

fl_status fl_event_synchronize(fl_event *event) {
    const fl_driver *drv = NULL;
    fl_device device = event->device;
    FL_TRY(fl__device_enter(&device, &drv));
    return is_recorded(event) ? fl__drv_event_synchronize(drv, device, event->native) : FL_OK;
}

fl_status fl_event_elapsed_ms(fl_event *start, fl_event *end, double *out_ms) {
    const fl_driver *drv = NULL;
    fl_device device = start->device;
    FL_TRY(fl__device_enter(&device, &drv));
    if (start->device != end->device) {
        return fl_fail(
            FL_INVALID_ARGUMENT,
            "no time can be told between events of devices %d and %d; record both on one device",
            start->device, end->device);
    }
    if (!(start->flags & end->flags & FL_EVENT_TIMING)) {
        return fl_fail(
            FL_INVALID_ARGUMENT,
            "no time can be told between events unless both are made with timing enabled");
    }
    if (!is_recorded(start) || !is_recorded(end)) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "no time can be told between events before both are recorded");
    }
    fl_status status = fl_event_query(end);
    status = status ? status : fl_event_query(start);
    status =
        status ? status : fl__drv_event_elapsed_ms(drv, device, start->native, end->native, out_ms);
    if (status == FL_NOT_READY) {
        /* To a query that is an answer; here nothing is left to be answered with. */
        return fl_fail(FL_NOT_READY,
                       "no time can be told between events while work before one of them still "
                       "runs; synchronize the events first");
    }
    return status;
}

fl_device fl_event_device(const fl_event *event) {
    return event->device;
}
