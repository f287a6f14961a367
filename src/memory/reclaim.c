/*
 * reclaim.c: where the cache meets the driver: fetching segments, giving them back, running out.
 *
 * Everything here runs under a cache's `slow` lock and takes `mutex` only for moments, so that
 * other threads keep allocating from the cache while the driver works. Memory goes back to the
 * driver only after the device was waited for, since not every vendor's free waits by itself.
 */
#include "memory/block.h"
#include "memory/pointers.h"

#include "base/assert.h"
#include "runtime/device.h"

#include <stdio.h>
#include <string.h>

/* --- giving back -------------------------------------------------------------------------------
 */

static fl__segment *segment_at(fl__list *node) {
    return FL__LIST_ENTRY(node, fl__segment, node);
}

static bool is_unused(const fl__segment *segment) {
    return segment->first->state == FL__BLOCK_FREE && !fl__block_is_split(segment->first);
}

/* Take an unused segment out of the cache's reach. Under `mutex`. */
static void detach(fl__cache *cache, fl__segment *segment) {
    fl__bins_remove(&segment->home->bins[segment->pool], segment->first);
    segment->first->state = FL__BLOCK_LEAVING;
    fl__list_remove(&segment->node);
    fl__list_push_back(&cache->leaving, &segment->node);
}

static void restore(fl__cache *cache, fl__segment *segment) {
    segment->first->state = FL__BLOCK_FREE;
    fl__bins_insert(&segment->home->bins[segment->pool], segment->first);
    fl__list_remove(&segment->node);
    fl__list_push_back(&cache->segments, &segment->node);
}

static void forget(fl__cache *cache, fl__segment *segment) {
    fl_memory_stats *stats = &cache->stats;
    fl__stat_drop(stats->segment, segment->pool, 1);
    fl__stat_drop(stats->reserved_bytes, segment->pool, (int64_t)segment->size);
    if (segment->oversize) {
        fl__stat_drop_one(&stats->oversize_segments, 1);
    }
    stats->num_device_free++;
    fl__history_add(cache, FL_MEMORY_ACTION_SEGMENT_FREE, segment->home->stream, segment->base,
                    segment->size);
    fl__list_remove(&segment->node);
    fl__table_remove(&cache->table, segment->first);
    fl__slab_give(&cache->block_slab, segment->first);
    fl__slab_give(&cache->segment_slab, segment);
}

static fl__range range_of(const fl__cache *cache, fl__segment *segment) {
    return (fl__range){
        .base = (uintptr_t)segment->base,
        .end = (uintptr_t)segment->base + segment->size,
        .kind = FL_POINTER_DEVICE,
        .device = cache->device,
        .owner = segment,
    };
}

/* Free what is leaving; what the driver does not take back is restored. */
static fl_status free_leaving(fl__cache *cache) {
    if (fl__list_is_empty(&cache->leaving)) {
        return FL_OK;
    }
    fl_status status = fl__drv_device_synchronize(cache->driver, cache->device);
    while (!fl__list_is_empty(&cache->leaving)) {
        fl__segment *segment = segment_at(cache->leaving.next);
        if (!status) {
            fl__range range = range_of(cache, segment);
            fl__pointers_remove(range.base);
            fl_trace(FL_TRACE_MEMORY, "device %d: give back %zu bytes at %p", cache->device,
                     segment->size, (void *)segment->base);
            status = fl__drv_mem_free(cache->driver, cache->device, segment->base);
            if (status) {
                /* Cannot fail: the room of the one just removed is still there. */
                (void)fl__pointers_add(&range);
            }
        }
        fl__lock(&cache->mutex);
        if (status) {
            restore(cache, segment);
        } else {
            forget(cache, segment);
        }
        fl__unlock(&cache->mutex);
    }
    return status;
}

/* Wait until no block waits for an event any more. */
static fl_status wait_events(fl__cache *cache) {
    fl__lock(&cache->mutex);
    cache->stats.num_sync_all_streams++;
    fl__waits_poll(&cache->waits);
    uint64_t epoch;
    uint64_t devices = fl__waits_mark(&cache->waits, &epoch);
    fl__unlock(&cache->mutex);
    if (!devices) {
        return FL_OK;
    }
    FL_TRY(fl__drv_device_synchronize(cache->driver, cache->device));
    fl__lock(&cache->mutex);
    fl__waits_finish(&cache->waits, devices, epoch);
    fl__unlock(&cache->mutex);
    return FL_OK;
}

static fl_status release_all(fl__cache *cache) {
    FL_TRY(wait_events(cache));
    fl__lock(&cache->mutex);
    fl__list *next;
    for (fl__list *node = cache->segments.next; node != &cache->segments; node = next) {
        next = node->next;
        if (is_unused(segment_at(node))) {
            detach(cache, segment_at(node));
        }
    }
    fl__unlock(&cache->mutex);
    return free_leaving(cache);
}

/* The unused large segment of this home that satisfies `size` best: the smallest that is large
 * enough, or else the largest of at least max_split_size. Under `mutex`. */
static fl__segment *oversize_candidate(fl__cache *cache, const fl__home *home, size_t size,
                                       bool *out_enough) {
    fl__segment *enough = NULL, *largest = NULL;
    for (fl__list *node = cache->segments.next; node != &cache->segments; node = node->next) {
        fl__segment *segment = segment_at(node);
        if (segment->home != home || segment->pool != FL_POOL_LARGE || !is_unused(segment) ||
            segment->size < cache->settings.max_split_size) {
            continue;
        }
        if (segment->size >= size && (!enough || segment->size < enough->size)) {
            enough = segment;
        }
        if (!largest || segment->size > largest->size) {
            largest = segment;
        }
    }
    *out_enough = enough != NULL;
    return enough ? enough : largest;
}

/* With a bound on splitting, large cached blocks serve nobody but their like: give back as many as
 * the request needs. Sets whether enough was given back. */
static fl_status release_oversize(fl__cache *cache, const fl__home *home, size_t size,
                                  bool *out_enough) {
    *out_enough = false;
    fl__lock(&cache->mutex);
    if (cache->settings.max_split_size == SIZE_MAX) {
        fl__unlock(&cache->mutex);
        return FL_OK;
    }
    size_t released = 0;
    while (!*out_enough) {
        fl__segment *segment = oversize_candidate(cache, home, size, out_enough);
        if (!segment) {
            break;
        }
        released += segment->size;
        *out_enough = *out_enough || released >= size;
        detach(cache, segment);
    }
    fl__unlock(&cache->mutex);
    return free_leaving(cache);
}

/* Give back unused large segments, those unused longest first, until the reserved memory is below
 * the threshold. */
static fl_status collect_garbage(fl__cache *cache) {
    fl__lock(&cache->mutex);
    double threshold = cache->settings.garbage_collection_threshold;
    int64_t reserved = cache->stats.reserved_bytes[FL_POOL_ALL].current;
    int64_t excess = 0;
    if (threshold > 0 && cache->limit != UINT64_MAX) {
        excess = reserved - (int64_t)(threshold * (double)cache->limit);
    }
    while (excess > 0) {
        uint64_t ages = 0, count = 0;
        for (fl__list *node = cache->segments.next; node != &cache->segments; node = node->next) {
            fl__segment *segment = segment_at(node);
            if (segment->pool == FL_POOL_LARGE && is_unused(segment)) {
                ages += cache->tick - segment->first->freed_tick;
                count++;
            }
        }
        if (count == 0) {
            break;
        }
        /* Something is at least as old as the average, so each round gives back something. */
        fl__list *next;
        for (fl__list *node = cache->segments.next; node != &cache->segments && excess > 0;
             node = next) {
            next = node->next;
            fl__segment *segment = segment_at(node);
            if (segment->pool == FL_POOL_LARGE && is_unused(segment) &&
                (cache->tick - segment->first->freed_tick) * count >= ages) {
                excess -= (int64_t)segment->size;
                detach(cache, segment);
            }
        }
    }
    fl__unlock(&cache->mutex);
    return free_leaving(cache);
}

fl_status fl_memory_empty_cache(fl_device device) {
    if (fl_device_in_bad_fork()) {
        return fl_fail(FL_BAD_FORK, "emptying the device cache: this process was forked after the "
                                    "device had been used");
    }
    if (device != -1) {
        FL_TRY(fl_device_check(device));
    }
    fl_device end = fl__cache_top();
    fl_status result = FL_OK;
    for (fl_device each = 0; each < end; each++) {
        fl__cache *cache = fl__cache_peek(each);
        if (!cache || (device != -1 && device != each)) {
            continue;
        }
        fl__lock(&cache->slow);
        fl_status status = release_all(cache);
        fl__unlock(&cache->slow);
        result = result ? result : status;
    }
    return result;
}

/* --- fetching ----------------------------------------------------------------------------------
 */

static size_t segment_bytes(const fl_memory_settings *settings, size_t size) {
    if (size <= FL__SMALL_SIZE) {
        return FL__SMALL_SEGMENT;
    }
    if (size < FL__MEDIUM_SIZE) {
        return settings->large_segment_size;
    }
    return (size + FL__SEGMENT_UNIT - 1) / FL__SEGMENT_UNIT * FL__SEGMENT_UNIT;
}

/* Nodes that a new segment needs; taken before the driver is asked. */
typedef struct fresh {
    void *segment, *first, *rest;
} fresh;

static fl_status take_nodes(fl__cache *cache, fresh *nodes) {
    *nodes = (fresh){NULL, NULL, NULL};
    FL_TRY(fl__table_reserve(&cache->table, 2));
    FL_TRY(fl__slab_take(&cache->segment_slab, &nodes->segment));
    FL_TRY(fl__slab_take(&cache->block_slab, &nodes->first));
    return fl__slab_take(&cache->block_slab, &nodes->rest);
}

static void give_nodes(fl__cache *cache, const fresh *nodes) {
    if (nodes->segment) {
        fl__slab_give(&cache->segment_slab, nodes->segment);
    }
    if (nodes->first) {
        fl__slab_give(&cache->block_slab, nodes->first);
    }
    if (nodes->rest) {
        fl__slab_give(&cache->block_slab, nodes->rest);
    }
}

/* The new segment becomes part of the cache, its block goes to the caller. Under `mutex`. */
static fl__block *install(fl__cache *cache, const fresh *nodes, size_t size, size_t requested) {
    fl__segment *segment = nodes->segment;
    fl__block *block = segment->first;
    fl_memory_stats *stats = &cache->stats;
    uintptr_t base = (uintptr_t)segment->base;
    if (base < cache->lowest) {
        __atomic_store_n(&cache->lowest, base, __ATOMIC_RELAXED);
    }
    if (base + segment->size > cache->highest) {
        __atomic_store_n(&cache->highest, base + segment->size, __ATOMIC_RELAXED);
    }
    fl__list_push_back(&cache->segments, &segment->node);
    fl__table_insert(&cache->table, block);
    segment->oversize = segment->size >= cache->settings.max_split_size;
    fl__stat_add(stats->segment, segment->pool, 1);
    fl__stat_add(stats->reserved_bytes, segment->pool, (int64_t)segment->size);
    if (segment->oversize) {
        fl__stat_add_one(&stats->oversize_segments, 1);
    }
    stats->num_device_alloc++;
    fl__history_add(cache, FL_MEMORY_ACTION_SEGMENT_ALLOC, segment->home->stream, segment->base,
                    segment->size);
    if (fl__cache_should_split(cache, block, size)) {
        fl__cache_claim(cache, block, size, requested, nodes->rest);
    } else {
        fl__slab_give(&cache->block_slab, nodes->rest);
        fl__cache_claim(cache, block, size, requested, NULL);
    }
    FL_ASSERT_WALK(fl__cache_is_sound(cache));
    return block;
}

/* Ask the driver for a segment. FL_OUT_OF_MEMORY also where the fraction does not allow it. */
static fl_status fetch(fl__cache *cache, fl__home *home, size_t size, size_t requested,
                       fl__block **out_block) {
    fresh nodes = {NULL, NULL, NULL};
    fl__lock(&cache->mutex);
    size_t bytes = segment_bytes(&cache->settings, size);
    uint64_t reserved = (uint64_t)cache->stats.reserved_bytes[FL_POOL_ALL].current;
    fl_status status;
    if (bytes > cache->limit || reserved > cache->limit - bytes) {
        status = fl_fail(FL_OUT_OF_MEMORY, "the limit of this process would be passed");
    } else {
        status = take_nodes(cache, &nodes);
    }
    fl__unlock(&cache->mutex);

    void *base = NULL;
    if (!status) {
        status = fl__drv_mem_alloc(cache->driver, cache->device, bytes, &base);
    }
    if (!status) {
        fl__segment *segment = nodes.segment;
        fl__block *first = nodes.first;
        *segment = (fl__segment){
            .base = base,
            .size = bytes,
            .first = first,
            .home = home,
            .pool = size <= FL__SMALL_SIZE ? FL_POOL_SMALL : FL_POOL_LARGE,
        };
        fl__list_init(&segment->node);
        *first = (fl__block){
            .ptr = base,
            .size = bytes,
            .segment = segment,
            .state = FL__BLOCK_LEAVING,
        };
        fl__range range = range_of(cache, segment);
        status = fl__pointers_add(&range);
        if (status) {
            (void)fl__drv_mem_free(cache->driver, cache->device, base);
        }
    }
    fl__lock(&cache->mutex);
    if (status) {
        give_nodes(cache, &nodes);
    } else {
        *out_block = install(cache, &nodes, size, requested);
    }
    fl__unlock(&cache->mutex);
    if (!status) {
        fl_trace(FL_TRACE_MEMORY, "device %d: fetched %zu bytes at %p", cache->device, bytes, base);
    }
    return status;
}

/* --- running out -------------------------------------------------------------------------------
 */

/* "1.50 GiB" */
static const char *human(uint64_t bytes, char text[32]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

/* Count the failure and say where the memory is. */
static fl_status out_of_memory(fl__cache *cache, size_t requested, fl_stream stream) {
    char cause[256];
    (void)snprintf(cause, sizeof(cause), "%s", fl_last_message());
    uint64_t free_bytes = 0, total = cache->total, said_total;
    bool free_known =
        fl__drv_mem_info(cache->driver, cache->device, &free_bytes, &said_total) == FL_OK;

    fl__lock(&cache->mutex);
    cache->stats.num_ooms++;
    fl__history_add(cache, FL_MEMORY_ACTION_OOM, stream, (void *)(uintptr_t)free_bytes, requested);
    uint64_t allocated = (uint64_t)cache->stats.allocated_bytes[FL_POOL_ALL].current;
    uint64_t reserved = (uint64_t)cache->stats.reserved_bytes[FL_POOL_ALL].current;
    uint64_t limit = cache->limit;
    double fraction = cache->fraction;
    fl__unlock(&cache->mutex);

    char asked_t[32], free_t[32], total_t[32], reserved_t[32], allocated_t[32], unused_t[32];
    char device_text[160] = "", limit_text[200] = "", hint[200] = "";
    if (free_known) {
        (void)snprintf(device_text, sizeof(device_text),
                       "The device has %s in total, of which %s are free. ", human(total, total_t),
                       human(free_bytes, free_t));
    }
    if (limit != UINT64_MAX) {
        char limit_t[32];
        (void)snprintf(limit_text, sizeof(limit_text),
                       "Its limit is %s (fraction %.3g, see set_per_process_memory_fraction). ",
                       human(limit, limit_t), fraction);
    }
    (void)snprintf(hint, sizeof(hint),
                   "torch.flagos.memory_summary() and memory_snapshot() tell what holds it. ");
    if (reserved - allocated >= requested) {
        (void)snprintf(hint, sizeof(hint),
                       "Much of it is reserved but unused, in pieces that do not fit: "
                       "PYTORCH_ALLOC_CONF=max_split_size_mb:<n> may help. ");
    }
    return fl_fail(FL_OUT_OF_MEMORY,
                   "flagos out of memory. Tried to allocate %s on flagos:%d. %sThis process holds "
                   "%s there: %s allocated, %s reserved but unused. %s%s(%s)",
                   human(requested, asked_t), cache->device, device_text,
                   human(reserved, reserved_t), human(allocated, allocated_t),
                   human(reserved - allocated, unused_t), limit_text, hint, cause);
}

fl_status fl__cache_grow(fl__cache *cache, fl__home *home, size_t size, size_t requested,
                         fl__block **out_block) {
    FL_TRY(collect_garbage(cache));
    fl_status status = fetch(cache, home, size, requested, out_block);
    if (status == FL_OUT_OF_MEMORY) {
        bool enough;
        FL_TRY(release_oversize(cache, home, size, &enough));
        if (enough) {
            status = fetch(cache, home, size, requested, out_block);
        }
    }
    if (status == FL_OUT_OF_MEMORY) {
        FL_TRY(release_all(cache));
        fl__lock(&cache->mutex);
        cache->stats.num_alloc_retries++;
        /* The wait may have freed a piece that fits although its segment cannot be given back. */
        status = fl__cache_take(cache, home, size, requested, out_block);
        fl__unlock(&cache->mutex);
        if (!status && !*out_block) {
            status = fetch(cache, home, size, requested, out_block);
        }
    }
    if (status == FL_OUT_OF_MEMORY) {
        status = out_of_memory(cache, requested, home->stream);
    }
    return status;
}

/* --- fraction ----------------------------------------------------------------------------------
 */

void fl__cache_set_fraction(fl__cache *cache, double fraction) {
    cache->fraction = fraction;
    cache->limit = (uint64_t)(fraction * (double)cache->total);
}

fl_status fl_memory_set_fraction(fl_device device, double fraction) {
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    if (!(fraction > 0.0 && fraction <= 1.0)) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "a fraction of the device's memory lies above 0 and at most at 1, not %g",
                       fraction);
    }
    fl__cache *cache;
    FL_TRY(fl__cache_get(device, driver, &cache));
    if (cache->total == 0) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "device %d does not say how much memory it has, so that a fraction of it "
                       "means nothing",
                       device);
    }
    fl__lock(&cache->mutex);
    fl__cache_set_fraction(cache, fraction);
    fl__unlock(&cache->mutex);
    return FL_OK;
}

fl_status fl_memory_get_fraction(fl_device device, double *out_fraction) {
    fl__cache *cache;
    FL_TRY(fl__cache_look(&device, &cache));
    *out_fraction = 1.0;
    if (cache) {
        fl__lock(&cache->mutex);
        *out_fraction = cache->fraction;
        fl__unlock(&cache->mutex);
    }
    return FL_OK;
}
