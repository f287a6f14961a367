/*
 * stats.c: counting, in PyTorch's sense of each number.
 *
 * Knows numbers only; the cache says when and how much.
 */
#include "memory/block.h"

#include "runtime/device.h"

#include <string.h>

/* Every fl_stat of the struct, one after another. */
static void each_stat(fl_memory_stats *stats, void (*change)(fl_stat *stat)) {
    fl_stat *const arrays[] = {
        stats->allocation,      stats->segment,
        stats->active,          stats->inactive_split,
        stats->allocated_bytes, stats->reserved_bytes,
        stats->active_bytes,    stats->inactive_split_bytes,
        stats->requested_bytes,
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        for (int pool = 0; pool < FL_POOL_COUNT; pool++) {
            change(&arrays[i][pool]);
        }
    }
    change(&stats->oversize_allocations);
    change(&stats->oversize_segments);
}

static void reset_peak(fl_stat *stat) {
    stat->peak = stat->current;
}

static void reset_accumulated(fl_stat *stat) {
    stat->allocated = 0;
    stat->freed = 0;
}

static int64_t max_split_size_shown(const fl_memory_settings *settings) {
    return settings->max_split_size > (size_t)INT64_MAX ? -1 : (int64_t)settings->max_split_size;
}

fl_status fl_memory_get_stats(fl_device device, fl_memory_stats *out_stats) {
    fl__cache *cache;
    FL_TRY(fl__cache_look(&device, &cache));
    if (!cache) {
        fl_memory_settings settings;
        fl_memory_get_settings(&settings);
        memset(out_stats, 0, sizeof(*out_stats));
        out_stats->max_split_size = max_split_size_shown(&settings);
        return FL_OK;
    }
    fl__lock(&cache->mutex);
    *out_stats = cache->stats;
    out_stats->max_split_size = max_split_size_shown(&cache->settings);
    fl__unlock(&cache->mutex);
    return FL_OK;
}

fl_status fl_memory_reset_peak_stats(fl_device device) {
    fl__cache *cache;
    FL_TRY(fl__cache_look(&device, &cache));
    if (cache) {
        fl__lock(&cache->mutex);
        each_stat(&cache->stats, reset_peak);
        fl__unlock(&cache->mutex);
    }
    return FL_OK;
}

fl_status fl_memory_reset_accumulated_stats(fl_device device) {
    fl__cache *cache;
    FL_TRY(fl__cache_look(&device, &cache));
    if (cache) {
        fl__lock(&cache->mutex);
        each_stat(&cache->stats, reset_accumulated);
        cache->stats.num_alloc_retries = 0;
        cache->stats.num_ooms = 0;
        cache->stats.num_sync_all_streams = 0;
        cache->stats.num_device_alloc = 0;
        cache->stats.num_device_free = 0;
        fl__unlock(&cache->mutex);
    }
    return FL_OK;
}
