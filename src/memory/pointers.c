/*
 * pointers.c: which range of memory an address lies in.
 *
 * A sorted array under a reader-writer lock: it changes only when the driver is asked for memory,
 * and is looked at when a copy wants to know whether host memory is pinned. Knows neither blocks
 * nor streams.
 */
#include "memory/block.h"
#include "memory/pointers.h"

#include "runtime/device.h"

#include <stdlib.h>
#include <string.h>

static struct {
    pthread_rwlock_t lock;
    fl__range *ranges; /* Sorted by base; they do not overlap. */
    size_t used, room;
} registry = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* Index of the first range whose base is above `address`. */
static size_t upper_bound(uintptr_t address) {
    size_t low = 0, high = registry.used;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (registry.ranges[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

fl_status fl__pointers_add(const fl__range *range) {
    (void)pthread_rwlock_wrlock(&registry.lock);
    if (registry.used == registry.room) {
        size_t room = registry.room ? registry.room * 2 : 64;
        fl__range *grown = realloc(registry.ranges, room * sizeof(*grown));
        if (!grown) {
            (void)pthread_rwlock_unlock(&registry.lock);
            return fl_fail(FL_OUT_OF_MEMORY, "no host memory to register %zu ranges", room);
        }
        registry.ranges = grown;
        registry.room = room;
    }
    size_t at = upper_bound(range->base);
    memmove(&registry.ranges[at + 1], &registry.ranges[at],
            (registry.used - at) * sizeof(registry.ranges[0]));
    registry.ranges[at] = *range;
    registry.used++;
    (void)pthread_rwlock_unlock(&registry.lock);
    return FL_OK;
}

void fl__pointers_remove(uintptr_t base) {
    (void)pthread_rwlock_wrlock(&registry.lock);
    size_t at = upper_bound(base);
    if (at > 0 && registry.ranges[at - 1].base == base) {
        memmove(&registry.ranges[at - 1], &registry.ranges[at],
                (registry.used - at) * sizeof(registry.ranges[0]));
        registry.used--;
    }
    (void)pthread_rwlock_unlock(&registry.lock);
}

const fl__range *fl__pointers_enter(const void *ptr) {
    uintptr_t address = (uintptr_t)ptr;
    (void)pthread_rwlock_rdlock(&registry.lock);
    size_t at = upper_bound(address);
    if (at == 0 || registry.ranges[at - 1].end <= address) {
        return NULL;
    }
    return &registry.ranges[at - 1];
}

void fl__pointers_leave(void) {
    (void)pthread_rwlock_unlock(&registry.lock);
}

static void describe_device(fl__segment *segment, fl_device device, const char *ptr,
                            fl_pointer_info *out_info) {
    fl__cache *cache = fl__cache_peek(device);
    fl__lock(&cache->mutex);
    fl__block *block = segment->first;
    while (block->next && block->next->ptr <= ptr) {
        block = block->next;
    }
    if (block->state == FL__BLOCK_IN_USE) {
        *out_info = (fl_pointer_info){
            .kind = FL_POINTER_DEVICE,
            .device = device,
            .base = block->ptr,
            .size = block->size,
            .stream = segment->home->stream,
        };
    }
    fl__unlock(&cache->mutex);
}

void fl_pointer_lookup(const void *ptr, fl_pointer_info *out_info) {
    *out_info = (fl_pointer_info){.kind = FL_POINTER_UNKNOWN, .device = -1};
    /* A forked child may have inherited a lock that nobody will ever give back. */
    if (!fl__device_driver()) {
        return;
    }
    const fl__range *range = fl__pointers_enter(ptr);
    if (range && range->kind == FL_POINTER_DEVICE) {
        describe_device(range->owner, range->device, ptr, out_info);
    } else if (range && !fl__pinned_describe(range->owner, out_info)) {
        *out_info = (fl_pointer_info){.kind = FL_POINTER_UNKNOWN, .device = -1};
    }
    fl__pointers_leave();
}

fl_status fl_memory_device_of(const void *ptr, fl_device *out_device) {
    fl_pointer_info info;
    fl_pointer_lookup(ptr, &info);
    if (info.kind != FL_POINTER_DEVICE) {
        return fl_fail(FL_NOT_FOUND, "%p does not lie in a live block of device memory", ptr);
    }
    *out_device = info.device;
    return FL_OK;
}
