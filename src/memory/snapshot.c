/*
 * snapshot.c: a picture of all segments and blocks, taken at one moment and shown afterwards.
 *
 * Knows the structures, changes nothing.
 */
#include "memory/block.h"

#include <stdlib.h>

typedef struct picture {
    fl_segment_info *segments;
    fl_block_info *blocks;
    size_t segment_count;
} picture;

static int compare_segments(const void *left, const void *right) {
    uintptr_t a = (uintptr_t)((const fl_segment_info *)left)->address;
    uintptr_t b = (uintptr_t)((const fl_segment_info *)right)->address;
    return (a > b) - (a < b);
}

static void describe(const fl__segment *segment, fl_segment_info *info, fl_block_info *blocks) {
    *info = (fl_segment_info){
        .stream = segment->home->stream,
        .address = segment->base,
        .total_size = segment->size,
        .is_large = segment->pool == FL_POOL_LARGE,
        .blocks = blocks,
    };
    for (const fl__block *block = segment->first; block; block = block->next) {
        bool active = block->state == FL__BLOCK_IN_USE || block->state == FL__BLOCK_WAITING;
        blocks[info->block_count++] = (fl_block_info){
            .address = block->ptr,
            .size = block->size,
            .requested_size = block->requested,
            .state = active ? (fl_block_state)block->state : FL_BLOCK_FREE,
        };
        info->allocated_size += block->state == FL__BLOCK_IN_USE ? block->size : 0;
        info->active_size += active ? block->size : 0;
        info->requested_size += block->requested;
    }
}

static void count_list(const fl__list *list, size_t *segments, size_t *blocks) {
    for (const fl__list *node = list->next; node != list; node = node->next) {
        ++*segments;
        const fl__segment *segment = FL__LIST_ENTRY(node, fl__segment, node);
        for (const fl__block *block = segment->first; block; block = block->next) {
            ++*blocks;
        }
    }
}

static void describe_list(const fl__list *list, fl_device device, picture *out, size_t *blocks) {
    for (const fl__list *node = list->next; node != list; node = node->next) {
        fl_segment_info *info = &out->segments[out->segment_count++];
        describe(FL__LIST_ENTRY(node, fl__segment, node), info, out->blocks + *blocks);
        info->device = device;
        *blocks += info->block_count;
    }
}

static fl_status take_picture(fl__cache *cache, picture *out) {
    *out = (picture){NULL, NULL, 0};
    size_t segments = 0, blocks = 0;
    fl__lock(&cache->mutex);
    count_list(&cache->segments, &segments, &blocks);
    count_list(&cache->leaving, &segments, &blocks);
    out->segments = malloc((segments + 1) * sizeof(*out->segments));
    out->blocks = malloc((blocks + 1) * sizeof(*out->blocks));
    bool have = out->segments && out->blocks;
    if (have) {
        blocks = 0;
        describe_list(&cache->segments, cache->device, out, &blocks);
        describe_list(&cache->leaving, cache->device, out, &blocks);
    }
    fl__unlock(&cache->mutex);
    if (!have) {
        free(out->segments);
        free(out->blocks);
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for a snapshot of %zu blocks", blocks);
    }
    qsort(out->segments, out->segment_count, sizeof(*out->segments), compare_segments);
    return FL_OK;
}

fl_status fl_memory_snapshot(fl_device device,
                             void (*visit)(void *user, const fl_segment_info *segment),
                             void *user) {
    fl__cache *cache = NULL;
    if (device != -1) {
        FL_TRY(fl__cache_look(&device, &cache));
    }
    fl_device end = device == -1 ? fl__cache_top() : device + 1;
    for (fl_device each = device == -1 ? 0 : device; each < end; each++) {
        cache = fl__cache_peek(each);
        if (!cache) {
            continue;
        }
        picture shown;
        FL_TRY(take_picture(cache, &shown));
        for (size_t i = 0; i < shown.segment_count; i++) {
            visit(user, &shown.segments[i]);
        }
        free(shown.segments);
        free(shown.blocks);
    }
    return FL_OK;
}
