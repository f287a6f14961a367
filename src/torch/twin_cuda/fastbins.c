/*
 * fastbins.c: see fastbins.h. A hash table finds a block by its address, bins of one size each hold
 * those that are kept, the last one freed on top: its memory is the likeliest to be in the device's
 * cache. One lock guards all of it. It is held for a few dozen nanoseconds, in which no other is
 * taken and nothing waits, and so it spins.
 */
#include "fastbins.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRAIN = 512, /* Bytes; PyTorch's CUDA allocator rounds to multiples of it. */
    SMALL_BINS = FL__FASTBINS_SMALL / GRAIN + 1, /* One for each number of grains. */
    LARGE_BINS = 64,                             /* Of several sizes each. */
    BINS = SMALL_BINS + LARGE_BINS,
    BLOCKS_AT_ONCE = 256,
    FIRST_SLOTS = 1024,
};

/* The freed blocks of one stream. */
typedef struct lane lane;

/* A block of the allocator behind, in the program's hands or kept. */
typedef struct block {
    struct block *next; /* In its bin, or in the list of unused ones. */
    void *pointer;
    lane *lane;              /* NULL: never kept. */
    size_t bytes;            /* Of it, at least as many as were requested. */
    size_t requested;        /* By who holds it. */
    size_t requested_behind; /* When it was asked of the allocator. */
    int device;
    bool kept;
} block;

struct lane {
    uint64_t stream;
    block *bins[BINS];
};

typedef struct device_state {
    fl__fastbins_stats stats;
    /* By holders of blocks, than when the allocator was asked for them. */
    int64_t requested_more[FL__POOLS];
    int paused;
    int lanes_used;
    lane *lanes[FL__FASTBINS_LANES];
} device_state;

typedef struct chunk {
    struct chunk *next;
    block blocks[BLOCKS_AT_ONCE];
} chunk;

struct fl__fastbins {
    bool locked;   /* Atomic; guards all of it. */
    block **slots; /* Open addressing, half full at most. */
    size_t mask;
    size_t used;
    block *unused;
    chunk *chunks;
    device_state devices[FL__FASTBINS_DEVICES];
};

/* Of what each block goes through: a call costs as much as the few instructions that it makes, and
 * lies in a line of the instruction cache of its own. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* --- the lock --------------------------------------------------------------------------------- */

enum { SPINS = 200 }; /* Afterwards whoever holds it has most likely lost its processor. */

static void spin(fl__fastbins *bins) {
    for (int spins = 0; __atomic_exchange_n(&bins->locked, true, __ATOMIC_ACQUIRE); spins++) {
        while (__atomic_load_n(&bins->locked, __ATOMIC_RELAXED)) {
            if (spins++ >= SPINS) {
                (void)sched_yield();
            }
        }
    }
}

static ALWAYS_INLINE void lock(fl__fastbins *bins) {
    if (__atomic_exchange_n(&bins->locked, true, __ATOMIC_ACQUIRE)) {
        spin(bins);
    }
}

static ALWAYS_INLINE void unlock(fl__fastbins *bins) {
    __atomic_store_n(&bins->locked, false, __ATOMIC_RELEASE);
}

/* --- sums ------------------------------------------------------------------------------------ */

static fl__fastbins_pool pool_of(size_t bytes) {
    return bytes <= FL__FASTBINS_SMALL ? FL__POOL_SMALL : FL__POOL_LARGE;
}

static size_t grains(size_t bytes) {
    return (bytes + GRAIN - 1) / GRAIN;
}

static ALWAYS_INLINE void add(fl__fastbins_sums sums, fl__fastbins_pool pool, int64_t blocks,
                              int64_t bytes, int64_t requested) {
    const int64_t more[FL__SUMS] = {blocks, bytes, requested};
    for (int sum = 0; sum < FL__SUMS; sum++) {
        sums[FL__POOL_ALL][sum] += more[sum];
        sums[pool][sum] += more[sum];
    }
}

static ALWAYS_INLINE void raise_peaks(fl__fastbins_stats *stats, fl__fastbins_pool pool) {
    for (int sum = 0; sum < FL__SUMS; sum++) {
        if (stats->peak[pool][sum] < stats->current[pool][sum]) {
            stats->peak[pool][sum] = stats->current[pool][sum];
        }
    }
}

static ALWAYS_INLINE void begin_use(fl__fastbins_stats *stats, const block *b) {
    const fl__fastbins_pool pool = pool_of(b->bytes);
    add(stats->current, pool, 1, (int64_t)b->bytes, (int64_t)b->requested);
    raise_peaks(stats, FL__POOL_ALL);
    raise_peaks(stats, pool);
}

static ALWAYS_INLINE void end_use(fl__fastbins_stats *stats, const block *b) {
    add(stats->current, pool_of(b->bytes), -1, -(int64_t)b->bytes, -(int64_t)b->requested);
}

static ALWAYS_INLINE void count_kept(fl__fastbins_stats *stats, const block *b, int64_t sign) {
    add(stats->kept, pool_of(b->bytes), sign, sign * (int64_t)b->bytes,
        sign * (int64_t)b->requested_behind);
}

/* The holder asked for more or fewer bytes than the allocator was asked for. */
static ALWAYS_INLINE void count_more(device_state *device, const block *b, int64_t sign) {
    const int64_t more = sign * ((int64_t)b->requested - (int64_t)b->requested_behind);
    device->requested_more[FL__POOL_ALL] += more;
    device->requested_more[pool_of(b->bytes)] += more;
}

static void follow(device_state *device, const fl__fastbins_sums behind) {
    fl__fastbins_stats *const stats = &device->stats;
    for (int pool = 0; pool < FL__POOLS; pool++) {
        for (int sum = 0; sum < FL__SUMS; sum++) {
            stats->current[pool][sum] = behind[pool][sum] - stats->kept[pool][sum];
        }
        stats->current[pool][FL__SUM_REQUESTED] += device->requested_more[pool];
        raise_peaks(stats, (fl__fastbins_pool)pool);
    }
}

/* --- blocks by their addresses --------------------------------------------------------------- */

static size_t slot_of(const fl__fastbins *bins, const void *pointer) {
    const uint64_t key = (uint64_t)(uintptr_t)pointer / GRAIN;
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 24) & bins->mask;
}

/* Where it is, or the free slot where it would be. */
static size_t find(const fl__fastbins *bins, const void *pointer) {
    size_t slot = slot_of(bins, pointer);
    while (bins->slots[slot] && bins->slots[slot]->pointer != pointer) {
        slot = (slot + 1) & bins->mask;
    }
    return slot;
}

/* NULL if the block is not known. */
static block *look_up(const fl__fastbins *bins, const void *pointer) {
    return bins->slots ? bins->slots[find(bins, pointer)] : NULL;
}

static bool grow(fl__fastbins *bins) {
    if (bins->slots && (bins->used + 1) * 2 <= bins->mask + 1) {
        return true;
    }
    const size_t room = bins->slots ? (bins->mask + 1) * 2 : FIRST_SLOTS;
    block **const slots = calloc(room, sizeof *slots);
    if (!slots) {
        return false;
    }
    block **const before = bins->slots;
    const size_t count_before = before ? bins->mask + 1 : 0;
    bins->slots = slots;
    bins->mask = room - 1;
    for (size_t slot = 0; slot < count_before; slot++) {
        if (before[slot]) {
            slots[find(bins, before[slot]->pointer)] = before[slot];
        }
    }
    free(before);
    return true;
}

/* Take a block out of the table; it may be used for another one afterwards. */
static void forget(fl__fastbins *bins, block *b) {
    size_t hole = find(bins, b->pointer);
    for (size_t slot = (hole + 1) & bins->mask; bins->slots[slot]; slot = (slot + 1) & bins->mask) {
        /* One that would be looked for at the hole or before it moves there. */
        const size_t home = slot_of(bins, bins->slots[slot]->pointer);
        if (((slot - home) & bins->mask) >= ((slot - hole) & bins->mask)) {
            bins->slots[hole] = bins->slots[slot];
            hole = slot;
        }
    }
    bins->slots[hole] = NULL;
    bins->used--;
    b->next = bins->unused;
    bins->unused = b;
}

static block *new_block(fl__fastbins *bins) {
    if (!bins->unused) {
        chunk *const more = calloc(1, sizeof *more);
        if (!more) {
            return NULL;
        }
        more->next = bins->chunks;
        bins->chunks = more;
        for (int i = 0; i < BLOCKS_AT_ONCE; i++) {
            more->blocks[i].next = bins->unused;
            bins->unused = &more->blocks[i];
        }
    }
    block *const b = bins->unused;
    bins->unused = b->next;
    return b;
}

/* --- bins ------------------------------------------------------------------------------------ */

/* A block serves what rounds to as much as the allocator was asked for: so it has the size that the
 * allocator would give. */
static block **bin_of(lane *lane, size_t bytes) {
    const size_t count = grains(bytes);
    return &lane->bins[count < SMALL_BINS ? count : SMALL_BINS + count % LARGE_BINS];
}

static lane *find_lane(const device_state *device, uint64_t stream) {
    for (int i = 0; i < device->lanes_used; i++) {
        if (device->lanes[i]->stream == stream) {
            return device->lanes[i];
        }
    }
    return NULL;
}

static lane *lane_for(device_state *device, uint64_t stream) {
    lane *found = find_lane(device, stream);
    if (!found && device->lanes_used < FL__FASTBINS_LANES) {
        found = calloc(1, sizeof *found);
        if (found) {
            found->stream = stream;
            device->lanes[device->lanes_used++] = found;
        }
    }
    return found;
}

/* Somebody gave a block back to the allocator without a word to us. */
static void give_up(fl__fastbins *bins, block *b) {
    device_state *const state = &bins->devices[b->device];
    if (b->kept) {
        block **place = bin_of(b->lane, b->requested_behind);
        while (*place != b) {
            place = &(*place)->next;
        }
        *place = b->next;
        count_kept(&state->stats, b, -1);
    } else {
        count_more(state, b, -1);
    }
    forget(bins, b);
}

/* --- the interface --------------------------------------------------------------------------- */

fl__fastbins *fl__fastbins_create(void) {
    return calloc(1, sizeof(fl__fastbins));
}

void fl__fastbins_destroy(fl__fastbins *bins) {
    for (int i = 0; i < FL__FASTBINS_DEVICES; i++) {
        for (int j = 0; j < bins->devices[i].lanes_used; j++) {
            free(bins->devices[i].lanes[j]);
        }
    }
    while (bins->chunks) {
        chunk *const next = bins->chunks->next;
        free(bins->chunks);
        bins->chunks = next;
    }
    free(bins->slots);
    free(bins);
}

void *fl__fastbins_take(fl__fastbins *bins, int device, uint64_t stream, size_t bytes,
                        bool *large_wait) {
    device_state *const state = &bins->devices[device];
    void *pointer = NULL;
    lock(bins);
    *large_wait = state->stats.kept[FL__POOL_LARGE][FL__SUM_BLOCKS] != 0;
    const bool may_be_there = pool_of(bytes) == FL__POOL_SMALL || *large_wait;
    lane *const lane = may_be_there && !state->paused ? find_lane(state, stream) : NULL;
    if (lane) {
        block **place = bin_of(lane, bytes);
        while (*place && grains((*place)->requested_behind) != grains(bytes)) {
            place = &(*place)->next; /* Only among large ones. */
        }
        block *const b = *place;
        if (b) {
            *place = b->next;
            b->kept = false;
            count_kept(&state->stats, b, -1);
            b->requested = bytes;
            count_more(state, b, 1);
            begin_use(&state->stats, b);
            add(state->stats.hits, pool_of(b->bytes), 1, (int64_t)b->bytes, (int64_t)bytes);
            pointer = b->pointer;
        }
    }
    unlock(bins);
    return pointer;
}

bool fl__fastbins_enter(fl__fastbins *bins, int device, uint64_t stream, size_t bytes,
                        void *pointer, const fl__fastbins_sums *behind) {
    device_state *const state = &bins->devices[device];
    fl__fastbins_stats *const stats = &state->stats;
    lock(bins);
    size_t size = grains(bytes) * GRAIN;
    if (pool_of(bytes) == FL__POOL_LARGE) {
        /* The allocator rounds as it likes: the block is what there is more than before. */
        const int64_t before = stats->current[FL__POOL_LARGE][FL__SUM_BYTES] +
                               stats->kept[FL__POOL_LARGE][FL__SUM_BYTES];
        const int64_t more = (*behind)[FL__POOL_LARGE][FL__SUM_BYTES] - before;
        size = more > (int64_t)size ? (size_t)more : size;
    }
    const bool has_room = !state->paused && grow(bins);
    size_t slot = bins->slots ? find(bins, pointer) : 0;
    if (bins->slots && bins->slots[slot]) { /* Freed past us, or it would not be there to give. */
        give_up(bins, bins->slots[slot]);
        if (!behind) {
            unlock(bins); /* Only the allocator knows what is in use now. */
            return false;
        }
        slot = find(bins, pointer);
    }
    block *const b = has_room ? new_block(bins) : NULL;
    if (b) {
        *b = (block){.pointer = pointer,
                     .lane = lane_for(state, stream),
                     .bytes = size,
                     .requested = bytes,
                     .requested_behind = bytes,
                     .device = device};
        bins->slots[slot] = b;
        bins->used++;
    }
    if (behind) {
        follow(state, *behind);
    } else if (b) {
        begin_use(stats, b);
    }
    unlock(bins);
    return b != NULL;
}

fl__fastbins_answer fl__fastbins_give(fl__fastbins *bins, void *pointer, bool may_keep,
                                      int *out_device) {
    fl__fastbins_answer answer = FL__FASTBINS_UNKNOWN;
    lock(bins);
    block *const b = look_up(bins, pointer);
    if (b && b->kept) {
        answer = FL__FASTBINS_FREED;
    } else if (b) {
        device_state *const state = &bins->devices[b->device];
        end_use(&state->stats, b);
        count_more(state, b, -1);
        answer = FL__FASTBINS_FREE;
        /* Of a block that is larger than what it was asked for the allocator makes better use. */
        if (may_keep && b->lane && !state->paused &&
            b->bytes == grains(b->requested_behind) * GRAIN) {
            *out_device = b->device;
            answer = state->stats.kept[FL__POOL_ALL][FL__SUM_BLOCKS] < FL__FASTBINS_MOST
                         ? FL__FASTBINS_KEPT
                         : FL__FASTBINS_DRAIN;
        }
        if (answer == FL__FASTBINS_KEPT) {
            block **const bin = bin_of(b->lane, b->requested_behind);
            b->next = *bin;
            *bin = b;
            b->kept = true;
            count_kept(&state->stats, b, 1);
        } else {
            forget(bins, b);
        }
    }
    unlock(bins);
    return answer;
}

void fl__fastbins_record(fl__fastbins *bins, const void *pointer, uint64_t stream) {
    lock(bins);
    block *const b = look_up(bins, pointer);
    if (b && b->lane && b->lane->stream != stream) {
        b->lane = NULL;
    }
    unlock(bins);
}

size_t fl__fastbins_drain(fl__fastbins *bins, int device, fl__fastbins_pool pool, void **out,
                          size_t room) {
    device_state *const state = &bins->devices[device];
    const int64_t *const kept = state->stats.kept[pool];
    const int first = pool == FL__POOL_LARGE ? SMALL_BINS : 0;
    const int end = pool == FL__POOL_SMALL ? SMALL_BINS : BINS;
    size_t taken = 0;
    lock(bins);
    for (int i = 0; i < state->lanes_used; i++) {
        for (int bin = first; bin < end && taken < room && kept[FL__SUM_BLOCKS] != 0; bin++) {
            for (block *b; taken < room && (b = state->lanes[i]->bins[bin]) != NULL; taken++) {
                state->lanes[i]->bins[bin] = b->next;
                count_kept(&state->stats, b, -1);
                out[taken] = b->pointer;
                forget(bins, b);
            }
        }
    }
    unlock(bins);
    return taken;
}

void fl__fastbins_pause(fl__fastbins *bins, int device) {
    lock(bins);
    bins->devices[device].paused++;
    unlock(bins);
}

void fl__fastbins_resume(fl__fastbins *bins, int device) {
    lock(bins);
    bins->devices[device].paused -= bins->devices[device].paused > 0;
    unlock(bins);
}

void fl__fastbins_observe(fl__fastbins *bins, int device, const fl__fastbins_sums behind) {
    lock(bins);
    follow(&bins->devices[device], behind);
    unlock(bins);
}

void fl__fastbins_begin(fl__fastbins *bins, int device, const fl__fastbins_sums current,
                        const fl__fastbins_sums peak) {
    lock(bins);
    memcpy(bins->devices[device].stats.peak, peak, sizeof(fl__fastbins_sums));
    follow(&bins->devices[device], current);
    unlock(bins);
}

void fl__fastbins_get_stats(fl__fastbins *bins, int device, fl__fastbins_stats *out) {
    lock(bins);
    *out = bins->devices[device].stats;
    unlock(bins);
}

void fl__fastbins_reset_peaks(fl__fastbins *bins, int device) {
    lock(bins);
    fl__fastbins_stats *const stats = &bins->devices[device].stats;
    memcpy(stats->peak, stats->current, sizeof stats->peak);
    unlock(bins);
}

void fl__fastbins_reset_hits(fl__fastbins *bins, int device) {
    device_state *const state = &bins->devices[device];
    lock(bins);
    memset(state->stats.hits, 0, sizeof state->stats.hits);
    memcpy(state->stats.requested_more, state->requested_more, sizeof state->requested_more);
    unlock(bins);
}
