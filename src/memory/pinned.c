/*
 * pinned.c: the cache of page-locked host memory.
 *
 * Blocks are powers of two and never split; each size has a stack of free blocks. Page-locking
 * takes long, so the driver is called without the mutex. Lock order: `slow`, the pointer
 * registry's, `mutex`. Knows streams only as what a block waits for.
 *
 *          fl_pinned_alloc              fl_pinned_free, no streams
 *   FREE -----------------> IN_USE --------------------------------> FREE
 *    |  ^                     |  streams were recorded                ^
 *    |  | driver refuses      +------------------> WAITING -----------+
 *    v  |                                            their events have run
 *  LEAVING --> given back to the driver
 */
#include "fl/pinned.h"

#include "base/assert.h"
#include "base/thread.h"
#include "driver/call.h"
#include "memory/block.h"
#include "memory/pointers.h"
#include "runtime/device.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_SIZE ((size_t)512)

typedef struct fl__pinned_block {
    fl__list node; /* In `free_blocks` of its bucket, or in `leaving`. */
    char *ptr;
    size_t size;
    uint32_t bucket;       /* size is 2^bucket */
    fl__block_state state; /* Written under `mutex`, read with or without it. */
    fl__waiter waiter;
} fl__pinned_block;

static struct {
    fl__mutex slow;  /* Giving back, and trying again after that. */
    fl__mutex mutex; /* All below. */
    bool is_ready;
    fl__list free_blocks[FL_PINNED_BUCKETS];
    fl__list leaving;
    fl__waits waits;
    fl_pinned_stats stats;
    size_t blocks; /* All that the driver gave and has not got back. */
} cache = {.slow = FL__MUTEX_INIT, .mutex = FL__MUTEX_INIT};

static fl__block_state state_of(const fl__pinned_block *block) {
    return __atomic_load_n(&block->state, __ATOMIC_ACQUIRE);
}

static void set_state(fl__pinned_block *block, fl__block_state state) {
    __atomic_store_n(&block->state, state, __ATOMIC_RELEASE);
}

/* Nothing uses the block any more. */
static void become_free(fl__pinned_block *block) {
    set_state(block, FL__BLOCK_FREE);
    fl__list_push_front(&cache.free_blocks[block->bucket], &block->node);
    fl__stat_drop_one(&cache.stats.active_requests, 1);
    fl__stat_drop_one(&cache.stats.active_bytes, (int64_t)block->size);
}

static void waited(fl__waits *waits, fl__waiter *waiter) {
    (void)waits;
    become_free(FL__LIST_ENTRY(waiter, fl__pinned_block, waiter));
}

/* Under `mutex`, first thing. */
static void make_ready(void) {
    if (cache.is_ready) {
        return;
    }
    for (int bucket = 0; bucket < FL_PINNED_BUCKETS; bucket++) {
        fl__list_init(&cache.free_blocks[bucket]);
    }
    fl__list_init(&cache.leaving);
    fl__waits_init(&cache.waits, waited);
    cache.is_ready = true;
}

static void count_duration(fl_duration_stat *stat, uint64_t start_ns) {
    int64_t us = (int64_t)((fl__now_ns() - start_ns) / 1000);
    stat->total += us;
    stat->count++;
    stat->max = us > stat->max ? us : stat->max;
    stat->min = stat->min == 0 || us < stat->min ? us : stat->min;
}

/* --- handing out -------------------------------------------------------------------------------
 */

static void hand_out(fl__pinned_block *block) {
    set_state(block, FL__BLOCK_IN_USE);
    fl__stat_add_one(&cache.stats.active_requests, 1);
    fl__stat_add_one(&cache.stats.active_bytes, (int64_t)block->size);
}

/* NULL if no free block has this size. */
static fl__pinned_block *take(uint32_t bucket) {
    fl__list *node = fl__list_pop_front(&cache.free_blocks[bucket]);
    if (!node) {
        return NULL;
    }
    fl__pinned_block *block = FL__LIST_ENTRY(node, fl__pinned_block, node);
    hand_out(block);
    return block;
}

static fl__range range_of(fl__pinned_block *block) {
    return (fl__range){
        .base = (uintptr_t)block->ptr,
        .end = (uintptr_t)block->ptr + block->size,
        .kind = FL_POINTER_PINNED,
        .device = -1,
        .owner = block,
    };
}

/* A new block from the driver, in use. Without `mutex`. */
static fl_status fetch(const fl_driver *driver, uint32_t bucket, fl__pinned_block **out_block) {
    fl__pinned_block *block = calloc(1, sizeof(*block));
    if (!block) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory to describe a pinned block");
    }
    block->size = (size_t)1 << bucket;
    block->bucket = bucket;
    block->state = FL__BLOCK_LEAVING;
    fl__list_init(&block->node);
    void *ptr = NULL;
    uint64_t start = fl__now_ns();
    fl_status status = fl__drv_host_alloc(driver, block->size, &ptr);
    if (!status) {
        block->ptr = ptr;
        fl__range range = range_of(block);
        status = fl__pointers_add(&range);
        if (status) {
            (void)fl__drv_host_free(driver, ptr);
        }
    }
    if (status) {
        free(block);
        return status;
    }
    fl__lock(&cache.mutex);
    count_duration(&cache.stats.host_alloc_time, start);
    fl__stat_add_one(&cache.stats.allocations, 1);
    fl__stat_add_one(&cache.stats.allocated_bytes, (int64_t)block->size);
    cache.stats.num_host_alloc++;
    cache.stats.bucket_allocation[bucket]++;
    cache.blocks++;
    hand_out(block);
    fl__unlock(&cache.mutex);
    fl_trace(FL_TRACE_MEMORY, "fetched %zu bytes of pinned memory at %p", block->size, ptr);
    *out_block = block;
    return FL_OK;
}

/* --- giving back -------------------------------------------------------------------------------
 */

/* Give `leaving` to the driver; what it does not take is free again. Under `slow`. */
static fl_status free_leaving(const fl_driver *driver) {
    fl_status status = FL_OK;
    while (!fl__list_is_empty(&cache.leaving)) {
        fl__pinned_block *block = FL__LIST_ENTRY(cache.leaving.next, fl__pinned_block, node);
        uint64_t start = fl__now_ns();
        if (!status) {
            fl__range range = range_of(block);
            fl__pointers_remove(range.base);
            status = fl__drv_host_free(driver, block->ptr);
            if (status) {
                /* Cannot fail: the room of the one just removed is still there. */
                (void)fl__pointers_add(&range);
            }
        }
        fl__lock(&cache.mutex);
        fl__list_remove(&block->node);
        if (status) {
            set_state(block, FL__BLOCK_FREE);
            fl__list_push_back(&cache.free_blocks[block->bucket], &block->node);
        } else {
            count_duration(&cache.stats.host_free_time, start);
            fl__stat_drop_one(&cache.stats.allocations, 1);
            fl__stat_drop_one(&cache.stats.allocated_bytes, (int64_t)block->size);
            cache.stats.num_host_free++;
            cache.blocks--;
        }
        fl__unlock(&cache.mutex);
        if (!status) {
            free(block);
        }
    }
    return status;
}

/* Under `slow`. */
static fl_status release_unused(const fl_driver *driver) {
    fl__lock(&cache.mutex);
    make_ready();
    fl__waits_poll(&cache.waits);
    for (int bucket = 0; bucket < FL_PINNED_BUCKETS; bucket++) {
        fl__list *node;
        while ((node = fl__list_pop_front(&cache.free_blocks[bucket])) != NULL) {
            set_state(FL__LIST_ENTRY(node, fl__pinned_block, node), FL__BLOCK_LEAVING);
            fl__list_push_back(&cache.leaving, node);
        }
    }
    fl__unlock(&cache.mutex);
    return free_leaving(driver);
}

/* Blocks that still wait: wait with them. Under `slow`. */
static fl_status wait_for_devices(const fl_driver *driver) {
    fl__lock(&cache.mutex);
    uint64_t epoch;
    uint64_t devices = fl__waits_mark(&cache.waits, &epoch);
    fl__unlock(&cache.mutex);
    for (fl_device device = 0; device < FL_DEVICE_MAX; device++) {
        if ((devices >> device) & 1u) {
            FL_TRY(fl__drv_device_synchronize(driver, device));
        }
    }
    fl__lock(&cache.mutex);
    fl__waits_finish(&cache.waits, devices, epoch);
    fl__unlock(&cache.mutex);
    return FL_OK;
}

fl_status fl_pinned_empty_cache(void) {
    if (!fl_device_is_initialized() && !fl_device_in_bad_fork()) {
        return FL_OK;
    }
    fl_device device = FL_DEVICE_CURRENT;
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    fl__lock(&cache.slow);
    fl_status status = release_unused(driver);
    fl__unlock(&cache.slow);
    return status;
}

/* The driver has no more: wait for blocks that wait, give unused ones back, try again. */
static fl_status fetch_again(const fl_driver *driver, uint32_t bucket,
                             fl__pinned_block **out_block) {
    fl__lock(&cache.slow);
    fl_status status = wait_for_devices(driver);
    if (!status) {
        fl__lock(&cache.mutex);
        *out_block = take(bucket);
        fl__unlock(&cache.mutex);
        if (!*out_block) {
            status = release_unused(driver);
            if (!status) {
                status = fetch(driver, bucket, out_block);
            }
        }
    }
    fl__unlock(&cache.slow);
    return status;
}

fl_status fl_pinned_alloc(size_t bytes, void **out_ptr) {
    fl_device device = FL_DEVICE_CURRENT;
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    if (bytes > FL__LARGEST_REQUEST) {
        return fl_fail(FL_OUT_OF_MEMORY, "out of pinned memory: no host has %zu bytes", bytes);
    }
    size_t least = bytes < LEAST_SIZE ? LEAST_SIZE : bytes;
    uint32_t bucket = 64u - (uint32_t)__builtin_clzll(least - 1);
    fl__lock(&cache.mutex);
    make_ready();
    fl__waits_poll(&cache.waits);
    fl__pinned_block *block = take(bucket);
    fl__unlock(&cache.mutex);
    if (!block) {
        fl_status status = fetch(driver, bucket, &block);
        if (status == FL_OUT_OF_MEMORY) {
            status = fetch_again(driver, bucket, &block);
        }
        if (status) {
            return fl_fail_context(status, "pinning %zu bytes of host memory: ", bytes);
        }
    }
    *out_ptr = block->ptr;
    return FL_OK;
}

/* --- by pointer --------------------------------------------------------------------------------
 */

/* The live block around `ptr`, with the registry locked until fl__pointers_leave; NULL if there is
 * none. */
static fl__pinned_block *enter_live(const void *ptr) {
    const fl__range *range = fl__pointers_enter(ptr);
    if (!range || range->kind != FL_POINTER_PINNED) {
        return NULL;
    }
    fl__pinned_block *block = range->owner;
    return state_of(block) == FL__BLOCK_IN_USE ? block : NULL;
}

void fl_pinned_free(void *ptr) {
    /* In a forked child the locks may be held for ever and the memory is the parent's. */
    if (!ptr || !fl__device_driver()) {
        return;
    }
    fl__pinned_block *block = enter_live(ptr);
    FL_ASSERT(block && block->ptr == ptr);
    if (block && block->ptr == ptr) {
        fl__lock(&cache.mutex);
        set_state(block, FL__BLOCK_WAITING);
        if (!fl__waits_begin(&cache.waits, &block->waiter)) {
            become_free(block);
        }
        fl__unlock(&cache.mutex);
    }
    fl__pointers_leave();
}

fl_status fl_pinned_record_stream(const void *ptr, fl_device device, fl_stream stream) {
    if (!ptr) {
        return FL_OK;
    }
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    fl__pinned_block *block = enter_live(ptr);
    fl_status status;
    if (block) {
        bool is_new;
        fl__lock(&cache.mutex);
        status = fl__waits_note(&cache.waits, &block->waiter, device, stream, &is_new);
        fl__unlock(&cache.mutex);
    } else {
        status = fl_fail(FL_NOT_FOUND, "%p does not lie in a live block of pinned memory", ptr);
    }
    fl__pointers_leave();
    return status;
}

bool fl_pinned_contains(const void *ptr) {
    if (!ptr || !fl__device_driver()) {
        return false;
    }
    bool found = enter_live(ptr) != NULL;
    fl__pointers_leave();
    return found;
}

bool fl__pinned_describe(void *owner, fl_pointer_info *out_info) {
    const fl__pinned_block *block = owner;
    if (state_of(block) != FL__BLOCK_IN_USE) {
        return false;
    }
    *out_info = (fl_pointer_info){
        .kind = FL_POINTER_PINNED,
        .device = -1,
        .base = block->ptr,
        .size = block->size,
    };
    return true;
}

/* --- statistics and check ----------------------------------------------------------------------
 */

void fl_pinned_get_stats(fl_pinned_stats *out_stats) {
    memset(out_stats, 0, sizeof(*out_stats));
    if (fl__device_driver()) {
        fl__lock(&cache.mutex);
        *out_stats = cache.stats;
        fl__unlock(&cache.mutex);
    }
}

static fl_stat *const counters[] = {
    &cache.stats.active_requests,
    &cache.stats.active_bytes,
    &cache.stats.allocations,
    &cache.stats.allocated_bytes,
};

void fl_pinned_reset_peak_stats(void) {
    if (!fl__device_driver()) {
        return;
    }
    fl__lock(&cache.mutex);
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        counters[i]->peak = counters[i]->current;
    }
    fl_duration_stat *const times[] = {&cache.stats.host_alloc_time, &cache.stats.host_free_time};
    for (size_t i = 0; i < 2; i++) {
        times[i]->max = 0;
        times[i]->min = 0;
    }
    fl__unlock(&cache.mutex);
}

void fl_pinned_reset_accumulated_stats(void) {
    if (!fl__device_driver()) {
        return;
    }
    fl__lock(&cache.mutex);
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        counters[i]->allocated = 0;
        counters[i]->freed = 0;
    }
    fl_duration_stat *const times[] = {&cache.stats.host_alloc_time, &cache.stats.host_free_time};
    for (size_t i = 0; i < 2; i++) {
        times[i]->total = 0;
        times[i]->count = 0;
    }
    cache.stats.num_host_alloc = 0;
    cache.stats.num_host_free = 0;
    memset(cache.stats.bucket_allocation, 0, sizeof(cache.stats.bucket_allocation));
    fl__unlock(&cache.mutex);
}

fl_status fl_pinned_check(void) {
    if (!fl__device_driver()) {
        return FL_OK;
    }
    fl__lock(&cache.mutex);
    make_ready();
    int64_t idle = 0, idle_bytes = 0;
    bool sound = true;
    for (uint32_t bucket = 0; bucket < FL_PINNED_BUCKETS; bucket++) {
        const fl__list *head = &cache.free_blocks[bucket];
        for (fl__list *node = head->next; node != head; node = node->next) {
            const fl__pinned_block *block = FL__LIST_ENTRY(node, fl__pinned_block, node);
            sound = sound && block->bucket == bucket && block->size == (size_t)1 << bucket &&
                    state_of(block) == FL__BLOCK_FREE && block->waiter.pending == 0;
            idle++;
            idle_bytes += (int64_t)block->size;
        }
    }
    for (fl__list *node = cache.leaving.next; node != &cache.leaving; node = node->next) {
        const fl__pinned_block *block = FL__LIST_ENTRY(node, fl__pinned_block, node);
        sound = sound && state_of(block) == FL__BLOCK_LEAVING;
        idle++;
        idle_bytes += (int64_t)block->size;
    }
    const fl_pinned_stats *stats = &cache.stats;
    sound = sound && fl__waits_count(&cache.waits) != SIZE_MAX;
    bool counted = stats->allocations.current == (int64_t)cache.blocks &&
                   stats->allocations.current - idle == stats->active_requests.current &&
                   stats->allocated_bytes.current - idle_bytes == stats->active_bytes.current;
    fl__unlock(&cache.mutex);
    if (!sound) {
        return fl_fail(FL_INTERNAL, "the pinned cache is damaged: a block is in the wrong list");
    }
    if (!counted) {
        return fl_fail(FL_INTERNAL, "the pinned cache is damaged: blocks and statistics disagree");
    }
    return FL_OK;
}
