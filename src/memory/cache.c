/*
 * cache.c: handing out and taking back device memory.
 *
 * The common case takes one lock, two bit scans and a handful of additions, calls neither the
 * driver nor malloc, and is bound by the lock and the cache lines of the block's node: about 35 ns
 * each way on the machine of docs/allocator.md, half as much again where a block is split. What
 * misses goes to reclaim.c. Knows streams as numbers and nothing of vendors.
 */
#include "memory/block.h"
#include "memory/pointers.h"

#include "base/assert.h"
#include "runtime/device.h"

/* --- sizes --------------------------------------------------------------------------------------
 */

/* Divisions of the doubling that a size lies in; 0 or 1: plain rounding. */
static size_t divisions_of(const fl_memory_settings *settings, size_t bytes) {
    size_t interval = 0;
    if (bytes >= FL__MIB) {
        interval = (size_t)(63 - __builtin_clzll(bytes)) - 20;
    }
    if (interval >= FL_MEMORY_ROUNDUP_INTERVALS) {
        interval = FL_MEMORY_ROUNDUP_INTERVALS - 1;
    }
    return settings->roundup_power2_divisions[interval];
}

size_t fl__cache_round(const fl_memory_settings *settings, size_t bytes) {
    size_t unit = FL__BLOCK_UNIT;
    size_t divisions = divisions_of(settings, bytes);
    if (__builtin_expect(divisions > 1, 0) && bytes > FL__BLOCK_UNIT * divisions) {
        size_t floor = (size_t)1 << (63 - __builtin_clzll(bytes));
        unit = floor / divisions;
    }
    return (bytes + unit - 1) & ~(unit - 1);
}

static int32_t pool_of(size_t size) {
    return size <= FL__SMALL_SIZE ? FL_POOL_SMALL : FL_POOL_LARGE;
}

bool fl__cache_should_split(const fl__cache *cache, const fl__block *block, size_t size) {
    size_t rest = block->size - size;
    if (block->segment->pool == FL_POOL_SMALL) {
        return rest >= FL__BLOCK_UNIT;
    }
    return size < cache->settings.max_split_size && rest > FL__SMALL_SIZE;
}

/* --- taking ------------------------------------------------------------------------------------
 */

static fl__bins *bins_of(const fl__block *block) {
    return &block->segment->home->bins[block->segment->pool];
}

/* Cut a block after `size` bytes; the rest gets the node `rest` and is free. */
static void split(fl__cache *cache, fl__block *block, size_t size, fl__block *rest) {
    *rest = (fl__block){
        .ptr = block->ptr + size,
        .size = block->size - size,
        .prev = block,
        .next = block->next,
        .segment = block->segment,
        .freed_tick = block->freed_tick,
        .state = FL__BLOCK_FREE,
    };
    if (rest->next) {
        rest->next->prev = rest;
    }
    block->next = rest;
    block->size = size;
    fl__table_insert(&cache->table, rest);
    fl__bins_insert(bins_of(rest), rest);
}

void fl__cache_claim(fl__cache *cache, fl__block *block, size_t size, size_t requested,
                     fl__block *rest) {
    fl_memory_stats *stats = &cache->stats;
    int32_t pool = block->segment->pool;
    bool was_split = fl__block_is_split(block);
    if (rest) {
        split(cache, block, size, rest);
        if (was_split) {
            fl__stat_drop(stats->inactive_split_bytes, pool, (int64_t)size);
        } else {
            fl__stat_add(stats->inactive_split_bytes, pool, (int64_t)rest->size);
            fl__stat_add(stats->inactive_split, pool, 1);
        }
    } else if (was_split) {
        fl__stat_drop(stats->inactive_split_bytes, pool, (int64_t)block->size);
        fl__stat_drop(stats->inactive_split, pool, 1);
    }
    block->state = FL__BLOCK_IN_USE;
    block->requested = requested;
    block->oversize = block->size >= cache->settings.max_split_size;
    fl__stat_add(stats->allocation, pool, 1);
    fl__stat_add(stats->allocated_bytes, pool, (int64_t)block->size);
    fl__stat_add(stats->active, pool, 1);
    fl__stat_add(stats->active_bytes, pool, (int64_t)block->size);
    fl__stat_add(stats->requested_bytes, pool, (int64_t)requested);
    if (__builtin_expect(block->oversize, 0)) {
        fl__stat_add_one(&stats->oversize_allocations, 1);
    }
    fl__history_add(cache, FL_MEMORY_ACTION_ALLOC, block->segment->home->stream, block->ptr,
                    requested);
}

fl_status fl__cache_take(fl__cache *cache, fl__home *home, size_t size, size_t requested,
                         fl__block **out_block) {
    *out_block = NULL;
    cache->tick++;
    fl__block *block = fl__bins_best(&home->bins[pool_of(size)], size);
    if (!block) {
        return FL_OK;
    }
    /* Blocks that may not be split serve only requests of about their own size. */
    size_t max_split = cache->settings.max_split_size;
    if (__builtin_expect(block->size >= max_split, 0)) {
        if (size < max_split || block->size - size >= cache->settings.max_non_split_rounding) {
            return FL_OK;
        }
    }
    void *rest = NULL;
    if (fl__cache_should_split(cache, block, size)) {
        FL_TRY(fl__table_reserve(&cache->table, 1));
        FL_TRY(fl__slab_take(&cache->block_slab, &rest));
    }
    fl__bins_remove(bins_of(block), block);
    fl__cache_claim(cache, block, size, requested, rest);
    *out_block = block;
    return FL_OK;
}

/* What the cache cannot serve at once. One thread a device at a time talks to the driver. */
static fl_status alloc_slow(fl__cache *cache, size_t bytes, fl_stream stream,
                            fl__block **out_block) {
    fl__lock(&cache->slow);
    fl__lock(&cache->mutex);
    /* Another thread may have fetched or freed something while we waited. */
    fl__waits_poll(&cache->waits);
    size_t size = fl__cache_round(&cache->settings, bytes);
    fl__home *home;
    fl_status status = fl__cache_home(cache, stream, &home);
    if (!status) {
        status = fl__cache_take(cache, home, size, bytes, out_block);
    }
    fl__unlock(&cache->mutex);
    if (!status && !*out_block) {
        status = fl__cache_grow(cache, home, size, bytes, out_block);
    }
    fl__unlock(&cache->slow);
    return status;
}

fl_status fl_memory_alloc(fl_device device, size_t bytes, fl_stream stream, void **out_ptr) {
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    if (bytes > FL__LARGEST_REQUEST) {
        return fl_fail(FL_OUT_OF_MEMORY,
                       "flagos out of memory. Tried to allocate %zu bytes on flagos:%d, and no "
                       "device has that much",
                       bytes, device);
    }
    fl__cache *cache;
    FL_TRY(fl__cache_get(device, driver, &cache));
    fl__block *block = NULL;
    fl__home *home;
    fl__lock(&cache->mutex);
    fl_status status = fl__cache_home(cache, stream, &home);
    if (!status) {
        cache->last_home = home;
        fl__waits_poll(&cache->waits);
        size_t size = fl__cache_round(&cache->settings, bytes);
        status = fl__cache_take(cache, home, size, bytes, &block);
        FL_ASSERT_WALK(fl__cache_is_sound(cache));
    }
    fl__unlock(&cache->mutex);
    if (__builtin_expect(!status && !block, 0)) {
        status = alloc_slow(cache, bytes, stream, &block);
    }
    if (!status) {
        *out_ptr = block->ptr;
    }
    return status;
}

/* --- giving back -------------------------------------------------------------------------------
 */

static void drop_node(fl__cache *cache, fl__block *block) {
    fl__table_remove(&cache->table, block);
    fl__slab_give(&cache->block_slab, block);
}

/* Nothing uses the block any more: merge it with free neighbours and list it. */
static void become_free(fl__cache *cache, fl__block *block) {
    fl_memory_stats *stats = &cache->stats;
    fl__segment *segment = block->segment;
    int32_t pool = segment->pool;
    int64_t size = (int64_t)block->size;
    int64_t split_blocks = 0, split_bytes = 0;

    fl__history_add(cache, FL_MEMORY_ACTION_FREE_COMPLETED, segment->home->stream, block->ptr,
                    block->requested);
    fl__stat_drop(stats->active, pool, 1);
    fl__stat_drop(stats->active_bytes, pool, size);
    fl__stat_drop(stats->requested_bytes, pool, (int64_t)block->requested);
    if (__builtin_expect(cache->poison, 0)) {
        fl_native_stream native;
        if (fl_stream_native(cache->device, segment->home->stream, &native) == FL_OK) {
            (void)fl__drv_fill(cache->driver, cache->device, block->ptr, 0xFF, block->size, native);
        }
    }
    fl__block *next = block->next;
    if (next && next->state == FL__BLOCK_FREE) {
        fl__bins_remove(bins_of(next), next);
        split_blocks--;
        split_bytes -= (int64_t)next->size;
        block->size += next->size;
        block->next = next->next;
        if (block->next) {
            block->next->prev = block;
        }
        drop_node(cache, next);
    }
    fl__block *prev = block->prev;
    if (prev && prev->state == FL__BLOCK_FREE) {
        fl__bins_remove(bins_of(prev), prev);
        split_blocks--;
        split_bytes -= (int64_t)prev->size;
        prev->size += block->size;
        prev->next = block->next;
        if (prev->next) {
            prev->next->prev = prev;
        }
        drop_node(cache, block);
        block = prev;
    }
    block->state = FL__BLOCK_FREE;
    block->requested = 0;
    block->freed_tick = cache->tick;
    fl__bins_insert(bins_of(block), block);
    if (fl__block_is_split(block)) {
        split_blocks++;
        split_bytes += (int64_t)block->size;
    }
    if (split_blocks > 0) {
        fl__stat_add(stats->inactive_split, pool, split_blocks);
    } else if (split_blocks < 0) {
        fl__stat_drop(stats->inactive_split, pool, -split_blocks);
    }
    if (split_bytes > 0) {
        fl__stat_add(stats->inactive_split_bytes, pool, split_bytes);
    } else if (split_bytes < 0) {
        fl__stat_drop(stats->inactive_split_bytes, pool, -split_bytes);
    }
}

void fl__cache_waited(fl__waits *waits, fl__waiter *waiter) {
    become_free(FL__LIST_ENTRY(waits, fl__cache, waits), FL__LIST_ENTRY(waiter, fl__block, waiter));
}

/* --- by pointer --------------------------------------------------------------------------------
 */

/* The live block that starts at `ptr`, with its cache's mutex held; NULL if there is none. Bounds
 * of two devices may overlap, so each that fits is asked. */
static fl__block *find_live(const void *ptr, fl__cache **out_cache) {
    uintptr_t address = (uintptr_t)ptr;
    fl_device end = fl__cache_top();
    for (fl_device device = 0; device < end; device++) {
        fl__cache *cache = fl__cache_peek(device);
        if (!cache || address < __atomic_load_n(&cache->lowest, __ATOMIC_RELAXED) ||
            address >= __atomic_load_n(&cache->highest, __ATOMIC_RELAXED)) {
            continue;
        }
        fl__lock(&cache->mutex);
        fl__block *block = fl__table_find(&cache->table, ptr);
        if (block && block->state == FL__BLOCK_IN_USE) {
            *out_cache = cache;
            return block;
        }
        fl__unlock(&cache->mutex);
    }
    return NULL;
}

void fl_memory_free(void *ptr) {
    /* In a forked child the locks may be held for ever and the memory is the parent's. */
    if (!ptr || !fl__device_driver()) {
        return;
    }
    fl__cache *cache;
    fl__block *block = find_live(ptr, &cache);
    FL_ASSERT(block != NULL);
    if (!block) {
        return;
    }
    fl_memory_stats *stats = &cache->stats;
    int32_t pool = block->segment->pool;
    fl__history_add(cache, FL_MEMORY_ACTION_FREE_REQUESTED, block->segment->home->stream,
                    block->ptr, block->requested);
    fl__stat_drop(stats->allocation, pool, 1);
    fl__stat_drop(stats->allocated_bytes, pool, (int64_t)block->size);
    if (__builtin_expect(block->oversize, 0)) {
        fl__stat_drop_one(&stats->oversize_allocations, 1);
    }
    if (__builtin_expect(block->waiter.uses != NULL, 0)) {
        block->state = FL__BLOCK_WAITING;
        (void)fl__waits_begin(&cache->waits, &block->waiter);
    } else {
        become_free(cache, block);
    }
    FL_ASSERT_WALK(fl__cache_is_sound(cache));
    fl__unlock(&cache->mutex);
}

fl_status fl_memory_record_stream(void *ptr, fl_stream stream) {
    if (!ptr) {
        return FL_OK;
    }
    if (fl_device_in_bad_fork()) {
        return fl_fail(FL_BAD_FORK, "recording a stream on a block: this process was forked after "
                                    "the device had been used");
    }
    fl__cache *cache;
    fl__block *block = find_live(ptr, &cache);
    if (!block) {
        fl_pointer_info info;
        fl_pointer_lookup(ptr, &info);
        if (info.kind == FL_POINTER_DEVICE) {
            block = find_live(info.base, &cache);
        }
    }
    if (!block) {
        return fl_fail(FL_NOT_FOUND,
                       "recording a stream: %p does not lie in a live block of device memory", ptr);
    }
    fl_status status = FL_OK;
    if (stream != block->segment->home->stream) {
        bool is_new;
        status = fl__waits_note(&cache->waits, &block->waiter, cache->device, stream, &is_new);
        if (!status && is_new) {
            fl__history_add(cache, FL_MEMORY_ACTION_RECORD_STREAM, stream, block->ptr,
                            block->requested);
        }
    }
    fl__unlock(&cache->mutex);
    return status;
}
