/*
 * check.c: the sentences of block.h, one after another, against the structures.
 *
 * Slow on purpose; runs at assert level 3 after every change, and when somebody asks.
 */
#include "memory/block.h"

#include <string.h>

/* What the statistics should say. */
typedef struct sums {
    int64_t segments[FL_POOL_COUNT], reserved[FL_POOL_COUNT];
    int64_t allocation[FL_POOL_COUNT], allocated[FL_POOL_COUNT];
    int64_t active[FL_POOL_COUNT], active_bytes[FL_POOL_COUNT];
    int64_t split[FL_POOL_COUNT], split_bytes[FL_POOL_COUNT];
    int64_t requested[FL_POOL_COUNT];
    size_t blocks, free_blocks, waiting_events;
} sums;

static fl_status broken(const char *sentence, const void *where) {
    return fl_fail(FL_INTERNAL, "the device cache is damaged at %p: %s", where, sentence);
}

static void count(int64_t sum[FL_POOL_COUNT], int32_t pool, int64_t amount) {
    sum[FL_POOL_ALL] += amount;
    sum[pool] += amount;
}

static fl_status check_block(fl__cache *cache, fl__segment *segment, const fl__block *block,
                             bool leaving, sums *sum) {
    int32_t pool = segment->pool;
    if (block->segment != segment || block->size == 0 || block->size % FL__BLOCK_UNIT != 0) {
        return broken("1: a block of another segment or of a crooked size", block);
    }
    if (block->next &&
        (block->next->ptr != block->ptr + block->size || block->next->prev != block)) {
        return broken("1: blocks do not tile their segment", block);
    }
    if (fl__table_find(&cache->table, block->ptr) != block) {
        return broken("4: a block is not in the table", block);
    }
    sum->blocks++;
    switch (block->state) {
    case FL__BLOCK_FREE:
        if (block->next && block->next->state == FL__BLOCK_FREE) {
            return broken("2: two free neighbours", block);
        }
        sum->free_blocks++;
        if (fl__block_is_split(block)) {
            count(sum->split, pool, 1);
            count(sum->split_bytes, pool, (int64_t)block->size);
        }
        break;
    case FL__BLOCK_IN_USE:
        count(sum->allocation, pool, 1);
        count(sum->allocated, pool, (int64_t)block->size);
        count(sum->active, pool, 1);
        count(sum->active_bytes, pool, (int64_t)block->size);
        break;
    case FL__BLOCK_WAITING:
        if (block->waiter.pending == 0) {
            return broken("5: a block waits for nothing", block);
        }
        count(sum->active, pool, 1);
        count(sum->active_bytes, pool, (int64_t)block->size);
        break;
    case FL__BLOCK_LEAVING:
        if (fl__block_is_split(block)) {
            return broken("6: a leaving block does not fill its segment", block);
        }
        break;
    }
    if (leaving != (block->state == FL__BLOCK_LEAVING)) {
        return broken("6: a block leaves without its segment, or the other way round", block);
    }
    sum->waiting_events += block->waiter.pending;
    count(sum->requested, pool, (int64_t)block->requested);
    return FL_OK;
}

static fl_status check_segments(fl__cache *cache, fl__list *list, bool leaving, sums *sum) {
    for (fl__list *node = list->next; node != list; node = node->next) {
        fl__segment *segment = FL__LIST_ENTRY(node, fl__segment, node);
        if (segment->first->ptr != segment->base || segment->first->prev) {
            return broken("1: the first block is not at the segment's start", segment);
        }
        size_t covered = 0;
        for (const fl__block *block = segment->first; block; block = block->next) {
            FL_TRY(check_block(cache, segment, block, leaving, sum));
            covered += block->size;
        }
        if (covered != segment->size) {
            return broken("1: blocks do not cover their segment", segment);
        }
        count(sum->segments, segment->pool, 1);
        count(sum->reserved, segment->pool, (int64_t)segment->size);
    }
    return FL_OK;
}

static fl_status check_bins(const fl__home *home, int32_t pool, size_t *found) {
    const fl__bins *bins = &home->bins[pool];
    for (uint32_t index = 0; index < FL__BIN_COUNT; index++) {
        const fl__block *block = bins->first[index];
        bool bit = (bins->map[index / 64] >> (index % 64)) & 1u;
        if (bit != (block != NULL)) {
            return broken("3: the bit of a bin is wrong", &bins->first[index]);
        }
        const fl__block *before = NULL;
        for (; block; block = block->bin_next) {
            if (block->state != FL__BLOCK_FREE || block->segment->home != home ||
                block->segment->pool != pool || fl__bins_index(block->size) != index ||
                block->bin_prev != before || (before && before->size > block->size)) {
                return broken("3: a block is in the wrong bin or place", block);
            }
            before = block;
            ++*found;
        }
    }
    for (uint32_t word = 0; word < FL__BIN_WORDS; word++) {
        if (((bins->summary >> word) & 1u) != (bins->map[word] != 0)) {
            return broken("3: the summary of the bins is wrong", bins);
        }
    }
    return FL_OK;
}

static fl_status check_homes(fl__cache *cache, const sums *sum) {
    size_t found = 0;
    for (fl__home *home = cache->homes; home; home = home->next) {
        for (int32_t pool = 0; pool < FL_POOL_COUNT; pool++) {
            FL_TRY(check_bins(home, pool, &found));
        }
    }
    if (found != sum->free_blocks) {
        return broken("3: free blocks and bins do not agree", cache);
    }
    if (fl__waits_count(&cache->waits) != sum->waiting_events) {
        return broken("5: waiting blocks and queues do not agree", cache);
    }
    return FL_OK;
}

static bool agrees(const fl_stat stat[FL_POOL_COUNT], const int64_t sum[FL_POOL_COUNT]) {
    for (int pool = 0; pool < FL_POOL_COUNT; pool++) {
        if (stat[pool].current != sum[pool] || stat[pool].peak < stat[pool].current) {
            return false;
        }
    }
    return true;
}

fl_status fl__cache_check(fl__cache *cache) {
    sums sum;
    memset(&sum, 0, sizeof(sum));
    FL_TRY(check_segments(cache, &cache->segments, false, &sum));
    FL_TRY(check_segments(cache, &cache->leaving, true, &sum));
    if (sum.blocks != cache->table.used) {
        return broken("4: the table holds more than the blocks", &cache->table);
    }
    FL_TRY(check_homes(cache, &sum));
    const fl_memory_stats *stats = &cache->stats;
    if (!agrees(stats->segment, sum.segments) || !agrees(stats->reserved_bytes, sum.reserved)) {
        return broken("7: reserved", stats);
    }
    if (!agrees(stats->allocation, sum.allocation) ||
        !agrees(stats->allocated_bytes, sum.allocated)) {
        return broken("7: allocated", stats);
    }
    if (!agrees(stats->active, sum.active) || !agrees(stats->active_bytes, sum.active_bytes) ||
        !agrees(stats->requested_bytes, sum.requested)) {
        return broken("7: active", stats);
    }
    if (!agrees(stats->inactive_split, sum.split) ||
        !agrees(stats->inactive_split_bytes, sum.split_bytes)) {
        return broken("7: inactive split", stats);
    }
    return FL_OK;
}

fl_status fl_memory_check(fl_device device) {
    fl__cache *cache;
    FL_TRY(fl__cache_look(&device, &cache));
    if (!cache) {
        return FL_OK;
    }
    fl__lock(&cache->mutex);
    fl_status status = fl__cache_check(cache);
    fl__unlock(&cache->mutex);
    return status;
}
