/*
 * block.h: what the device cache is made of; private to src/memory.
 *
 * Sentences that hold whenever a cache's mutex is free (check.c walks this list):
 *   1. The blocks of a segment tile it without a gap, in the order of their addresses, and the
 *      first one starts where the segment starts.
 *   2. Two free neighbours never touch: they have been merged.
 *   3. A free block is in exactly one bin of its segment's home, the bin of its size; a bin is
 *      sorted by size, and its bit is set exactly if it holds something.
 *   4. Every block is in the table under its address, and nothing else is.
 *   5. A block waits exactly as long as events of other streams are pending for it, and the queues
 *      of the waits hold as many events as all blocks wait for.
 *   6. A leaving block fills its segment: it is on its way back to the driver.
 *   7. reserved = sum of segments; allocated = blocks in use; active = in use or waiting;
 *      inactive split = free blocks that do not fill their segment. In bytes and in number.
 *
 * A block's states and the functions on the arrows:
 *
 *            fl__cache_take                     fl_memory_free, no uses
 *     FREE ------------------> IN_USE ------------------------------------> FREE
 *      |  ^                      |  fl_memory_free, uses            ^
 *      |  | reclaim failed       +----------------> WAITING --------+
 *      v  |                                            fl__cache_waited
 *    LEAVING --> given back to the driver (reclaim.c)
 *
 * Locks, in the order in which they are taken: `slow` (one thread a device talks to the driver
 * about memory), the pointer registry's, `mutex` (everything else in the cache). No allocation or
 * free of the driver and no callback happens under `mutex`; recording and querying events does.
 * Metadata is never kept in device memory: the host may be unable to read it.
 */
#ifndef FL_MEMORY_BLOCK_H
#define FL_MEMORY_BLOCK_H

#include "base/list.h"
#include "base/slab.h"
#include "base/thread.h"
#include "driver/call.h"
#include "fl/memory.h"
#include "memory/waits.h"

#define FL__MIB ((size_t)1 << 20)
#define FL__BLOCK_UNIT ((size_t)512)          /* Sizes are multiples of this. */
#define FL__SMALL_SIZE FL__MIB                /* Requests up to this live in the small pool. */
#define FL__SMALL_SEGMENT (2 * FL__MIB)       /* Segments of the small pool. */
#define FL__MEDIUM_SIZE (10 * FL__MIB)        /* Requests below share large segments. */
#define FL__SEGMENT_UNIT (2 * FL__MIB)        /* Larger segments are multiples of this. */
#define FL__LARGEST_REQUEST ((size_t)1 << 46) /* More than any device has; keeps sums exact. */

/* Free blocks by size. Up to 31 units a bin holds one size; above, each doubling has 32 bins, so
 * that the sizes of one bin differ by 1/32 at most. */
#define FL__BIN_COUNT 1120
#define FL__BIN_WORDS ((FL__BIN_COUNT + 63) / 64)

typedef struct fl__block fl__block;
typedef struct fl__segment fl__segment;
typedef struct fl__home fl__home;

typedef enum fl__block_state {
    FL__BLOCK_FREE = FL_BLOCK_FREE,
    FL__BLOCK_IN_USE = FL_BLOCK_IN_USE,
    FL__BLOCK_WAITING = FL_BLOCK_WAITING,
    FL__BLOCK_LEAVING,
} fl__block_state;

struct fl__block {
    char *ptr;
    size_t size;            /* Bytes, a multiple of FL__BLOCK_UNIT. */
    size_t requested;       /* Bytes as the user asked; 0 while free or leaving. */
    fl__block *prev, *next; /* Neighbours by address, NULL at the ends of the segment. */
    fl__block *bin_prev, *bin_next;
    fl__segment *segment;
    fl__waiter waiter;   /* Streams that used it besides its own. */
    uint64_t freed_tick; /* The cache's tick when it became free. */
    fl__block_state state;
    bool oversize; /* Counted as an oversize allocation when it was handed out. */
};

/* A piece of memory as the driver gave it. The lowest block keeps its node for life, since merging
 * always keeps the lower node: `first` never changes. */
struct fl__segment {
    fl__list node; /* In the cache's `segments` or `leaving`. */
    char *base;
    size_t size;
    fl__block *first;
    fl__home *home;
    int32_t pool;  /* FL_POOL_SMALL or FL_POOL_LARGE. */
    bool oversize; /* Counted as an oversize segment when it was fetched. */
};

typedef struct fl__bins {
    uint64_t summary; /* Bit w: word w of the map is not 0. */
    uint64_t map[FL__BIN_WORDS];
    fl__block *first[FL__BIN_COUNT];
} fl__bins;

/* One stream's free blocks. Made when the stream is first seen, kept for good. */
struct fl__home {
    fl__home *next;
    fl_stream stream;
    fl__bins bins[FL_POOL_COUNT]; /* By pool; FL_POOL_ALL stays empty. */
};

/* Every block of a cache by its address: open addressing, linear probing, at most half full. */
typedef struct fl__table {
    fl__block **slots;
    size_t mask, used; /* mask + 1 slots, a power of two */
} fl__table;

typedef struct fl__history {
    fl_memory_event *events; /* NULL: off. */
    size_t room, next, used;
} fl__history;

typedef struct fl__cache {
    fl_device device;
    const fl_driver *driver;
    fl__mutex slow;
    fl__mutex mutex;
    /* Bounds of every address this cache ever had; read without a lock, widened under `mutex`. */
    uintptr_t lowest, highest;
    /* The rest is guarded by `mutex`. */
    fl__home *homes;
    fl__home *last_home; /* Of the last allocation. */
    fl__list segments;
    fl__list leaving; /* Segments on their way back; changed only by who also holds `slow`. */
    fl__waits waits;
    fl__table table;
    fl__slab block_slab, segment_slab;
    fl_memory_settings settings;
    fl_memory_stats stats;
    fl__history history;
    uint64_t tick;  /* Counts allocations; ages are differences of ticks. */
    uint64_t total; /* Bytes of the device; 0 if the driver does not say. */
    uint64_t limit; /* Bytes this cache may reserve; UINT64_MAX: no limit. */
    double fraction;
    bool poison;
} fl__cache;

/* --- bins.c ------------------------------------------------------------------------------------
 */

void fl__bins_insert(fl__bins *bins, fl__block *block);
void fl__bins_remove(fl__bins *bins, fl__block *block);
/* The smallest block of at least `size` bytes, the lowest address among equals (a few dozen are put
 * in order, see bins.c); NULL if there is none. */
fl__block *fl__bins_best(const fl__bins *bins, size_t size);
uint32_t fl__bins_index(size_t size);

/* --- table.c -----------------------------------------------------------------------------------
 */

/* Make room for `more` insertions, so that they cannot fail. */
fl_status fl__table_reserve(fl__table *table, size_t more);
void fl__table_insert(fl__table *table, fl__block *block);
void fl__table_remove(fl__table *table, const fl__block *block);
fl__block *fl__table_find(const fl__table *table, const void *ptr);

/* --- caches.c ----------------------------------------------------------------------------------
 */

/* The cache of a device, made at first need. */
fl_status fl__cache_get(fl_device device, const fl_driver *driver, fl__cache **out_cache);
/* NULL where nothing was allocated yet. */
fl__cache *fl__cache_peek(fl_device device);
/* One more than the highest index of a device with a cache. */
fl_device fl__cache_top(void);
/* For functions that ask: the cache of a device, current or by index, or NULL if it has none yet;
 * does not initialise the driver. */
fl_status fl__cache_look(fl_device *device, fl__cache **out_cache);
/* The home of a stream, made if it is new. Under `mutex`. */
fl_status fl__cache_home(fl__cache *cache, fl_stream stream, fl__home **out_home);

/* Call `apply` for every cache while none can be made, or for none if there is none; whoever
 * changes what new caches start with does that in `change`, under the same lock. */
void fl__caches_each(void (*change)(void *user), void (*apply)(fl__cache *cache, void *user),
                     void *user);

/* --- cache.c -----------------------------------------------------------------------------------
 */

/* A cached block of at least `size` bytes of this home, split if it is much larger, now in use;
 * NULL with FL_OK if there is none. Under `mutex`. */
fl_status fl__cache_take(fl__cache *cache, fl__home *home, size_t size, size_t requested,
                         fl__block **out_block);
/* Hand out a block that is in no bin: split it, with the node `rest` for the remainder if that is
 * worth it (`rest` may be NULL where it is not), and count it. Under `mutex`. */
void fl__cache_claim(fl__cache *cache, fl__block *block, size_t size, size_t requested,
                     fl__block *rest);
/* Whether the remainder of a block of this pool would be split off. */
bool fl__cache_should_split(const fl__cache *cache, const fl__block *block, size_t size);
/* The events of a waiting block have run; what fl__waits calls. Under `mutex`. */
void fl__cache_waited(fl__waits *waits, fl__waiter *waiter);
/* Bytes a request takes. Under `mutex`. */
size_t fl__cache_round(const fl_memory_settings *settings, size_t bytes);

/* --- reclaim.c ---------------------------------------------------------------------------------
 */

/* A block of a segment that is fetched from the driver, after giving cached memory back if need be.
 * Under `slow`, not `mutex`. */
fl_status fl__cache_grow(fl__cache *cache, fl__home *home, size_t size, size_t requested,
                         fl__block **out_block);

/* Bound what may be reserved to a share of `total`, which is known. Under `mutex`. */
void fl__cache_set_fraction(fl__cache *cache, double fraction);

/* --- counting: here, because an allocation and its free do it a dozen times ----------------------
 */

static inline void fl__stat_add_one(fl_stat *stat, int64_t amount) {
    stat->current += amount;
    stat->allocated += amount;
    stat->peak = stat->current > stat->peak ? stat->current : stat->peak;
}

static inline void fl__stat_drop_one(fl_stat *stat, int64_t amount) {
    stat->current -= amount;
    stat->freed += amount;
}

/* `stat` is an array by pool: the pool and the whole change together. */
static inline void fl__stat_add(fl_stat *stat, int32_t pool, int64_t amount) {
    fl__stat_add_one(&stat[FL_POOL_ALL], amount);
    fl__stat_add_one(&stat[pool], amount);
}

static inline void fl__stat_drop(fl_stat *stat, int32_t pool, int64_t amount) {
    fl__stat_drop_one(&stat[FL_POOL_ALL], amount);
    fl__stat_drop_one(&stat[pool], amount);
}

/* --- history.c ---------------------------------------------------------------------------------
 */

void fl__history_add_slow(fl__cache *cache, fl_memory_action action, fl_stream stream,
                          uint64_t address, uint64_t size);
/* Give a new cache the length of history that is in force. */
fl_status fl__history_init(fl__cache *cache);

static inline void fl__history_add(fl__cache *cache, fl_memory_action action, fl_stream stream,
                                   const void *address, uint64_t size) {
    if (__builtin_expect(cache->history.events != NULL, 0)) {
        fl__history_add_slow(cache, action, stream, (uint64_t)(uintptr_t)address, size);
    }
}

/* --- settings.c --------------------------------------------------------------------------------
 */

/* Give a new cache the settings that are in force. */
fl_status fl__settings_init(fl__cache *cache);

/* --- check.c -----------------------------------------------------------------------------------
 */

/* Under `mutex`. */
fl_status fl__cache_check(fl__cache *cache);
static inline bool fl__cache_is_sound(fl__cache *cache) {
    return fl__cache_check(cache) == FL_OK;
}

static inline bool fl__block_is_split(const fl__block *block) {
    return block->prev || block->next;
}

#endif
