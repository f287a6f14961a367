/*
 * table.c: blocks of one cache by their addresses.
 *
 * Knows the addresses of blocks only; the cache's mutex guards it. Removal moves later entries of
 * the same run back, so that there are no gravestones and runs stay short.
 */
#include "memory/block.h"

#include <stdlib.h>

/* Addresses are multiples of 256 at least; the multiplier spreads what is above that. */
static size_t slot_of(const fl__table *table, const void *ptr) {
    uint64_t key = (uint64_t)(uintptr_t)ptr >> 8;
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 24) & table->mask;
}

static void put(fl__table *table, fl__block *block) {
    size_t slot = slot_of(table, block->ptr);
    while (table->slots[slot]) {
        slot = (slot + 1) & table->mask;
    }
    table->slots[slot] = block;
}

fl_status fl__table_reserve(fl__table *table, size_t more) {
    if (table->slots && (table->used + more) * 2 <= table->mask + 1) {
        return FL_OK;
    }
    size_t room = 1024;
    while (room < (table->used + more) * 2) {
        room *= 2;
    }
    fl__table grown = {calloc(room, sizeof(fl__block *)), room - 1, table->used};
    if (!grown.slots) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for a table of %zu device blocks", room);
    }
    for (size_t slot = 0; table->slots && slot <= table->mask; slot++) {
        if (table->slots[slot]) {
            put(&grown, table->slots[slot]);
        }
    }
    free(table->slots);
    *table = grown;
    return FL_OK;
}

void fl__table_insert(fl__table *table, fl__block *block) {
    put(table, block);
    table->used++;
}

void fl__table_remove(fl__table *table, const fl__block *block) {
    size_t hole = slot_of(table, block->ptr);
    while (table->slots[hole] != block) {
        hole = (hole + 1) & table->mask;
    }
    size_t slot = hole;
    for (;;) {
        slot = (slot + 1) & table->mask;
        fl__block *other = table->slots[slot];
        if (!other) {
            break;
        }
        /* An entry may move into the hole unless its own place lies behind the hole. */
        size_t own = slot_of(table, other->ptr);
        if (((slot - own) & table->mask) >= ((slot - hole) & table->mask)) {
            table->slots[hole] = other;
            hole = slot;
        }
    }
    table->slots[hole] = NULL;
    table->used--;
}

fl__block *fl__table_find(const fl__table *table, const void *ptr) {
    if (!table->slots) {
        return NULL;
    }
    size_t slot = slot_of(table, ptr);
    while (table->slots[slot]) {
        if (table->slots[slot]->ptr == (const char *)ptr) {
            return table->slots[slot];
        }
        slot = (slot + 1) & table->mask;
    }
    return NULL;
}
