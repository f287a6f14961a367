/*
 * bins.c: free blocks by size.
 *
 * Finding the best fit takes two bit scans and, above 16 KiB, a short walk within one bin. Knows
 * sizes, not streams or pools.
 */
#include "memory/block.h"

#include "base/assert.h"

#include <assert.h>

#define STEPS 32u /* Bins a doubling. */
#define STEPS_LOG2 5u

/* Among blocks of one size the lowest address comes first, as in PyTorch's allocator: what is left
 * free then lies together and merges. Programs with thousands of equal free blocks would pay for
 * an exact order at each free, so only the first few are put in order. */
enum { EQUALS_LOOKED_AT = 32 };

static_assert(FL__BIN_WORDS <= 64, "one word sums up the map");

uint32_t fl__bins_index(size_t size) {
    uint64_t units = size / FL__BLOCK_UNIT;
    if (units < STEPS) {
        return (uint32_t)units;
    }
    uint32_t shift = 63u - (uint32_t)__builtin_clzll(units) - STEPS_LOG2;
    return STEPS * shift + (uint32_t)(units >> shift);
}

void fl__bins_insert(fl__bins *bins, fl__block *block) {
    uint32_t index = fl__bins_index(block->size);
    FL_ASSERT(index < FL__BIN_COUNT);
    fl__block *before = NULL;
    fl__block *after = bins->first[index];
    while (after && after->size < block->size) {
        before = after;
        after = after->bin_next;
    }
    for (int i = 0; i < EQUALS_LOOKED_AT && after && after->size == block->size &&
                    (uintptr_t)after->ptr < (uintptr_t)block->ptr;
         i++) {
        before = after;
        after = after->bin_next;
    }
    block->bin_prev = before;
    block->bin_next = after;
    if (after) {
        after->bin_prev = block;
    }
    if (before) {
        before->bin_next = block;
    } else {
        bins->first[index] = block;
        bins->map[index / 64] |= UINT64_C(1) << (index % 64);
        bins->summary |= UINT64_C(1) << (index / 64);
    }
}

void fl__bins_remove(fl__bins *bins, fl__block *block) {
    if (block->bin_next) {
        block->bin_next->bin_prev = block->bin_prev;
    }
    if (block->bin_prev) {
        block->bin_prev->bin_next = block->bin_next;
    } else {
        uint32_t index = fl__bins_index(block->size);
        FL_ASSERT(bins->first[index] == block);
        bins->first[index] = block->bin_next;
        if (!block->bin_next) {
            bins->map[index / 64] &= ~(UINT64_C(1) << (index % 64));
            if (bins->map[index / 64] == 0) {
                bins->summary &= ~(UINT64_C(1) << (index / 64));
            }
        }
    }
    block->bin_prev = NULL;
    block->bin_next = NULL;
}

/* The first bin after `index` that holds something, FL__BIN_COUNT if none does. */
static uint32_t next_filled(const fl__bins *bins, uint32_t index) {
    uint32_t word = (index + 1) / 64;
    uint32_t bit = (index + 1) % 64;
    if (word < FL__BIN_WORDS) {
        uint64_t rest = bins->map[word] & (UINT64_MAX << bit);
        if (rest) {
            return word * 64 + (uint32_t)__builtin_ctzll(rest);
        }
    }
    uint64_t words = word + 1 < 64 ? bins->summary & (UINT64_MAX << (word + 1)) : 0;
    if (!words) {
        return FL__BIN_COUNT;
    }
    word = (uint32_t)__builtin_ctzll(words);
    return word * 64 + (uint32_t)__builtin_ctzll(bins->map[word]);
}

fl__block *fl__bins_best(const fl__bins *bins, size_t size) {
    uint32_t index = fl__bins_index(size);
    for (fl__block *block = bins->first[index]; block; block = block->bin_next) {
        if (block->size >= size) {
            return block;
        }
    }
    index = next_filled(bins, index);
    return index < FL__BIN_COUNT ? bins->first[index] : NULL;
}
