/* test_fastbins.c: kept blocks, against a plain model of an allocator behind: an array of the
 * blocks that it has given out, and their sums, which are compared after each call. */
#include "torch/twin_cuda/fastbins.h"

#include <pthread.h>
#include <string.h>

#include "harness.h"

enum { GRAIN = 512, MIB = 1 << 20, STEP = 64 * GRAIN /* Between large sizes of one bin. */ };
enum { DEVICES = 2, ROOM = FL__FASTBINS_MOST + 64 };

/* --- the model of an allocator behind --------------------------------------------------------- */

typedef struct model_block {
    enum { GONE, HELD, KEPT } whose;
    int device;
    uint64_t stream;
    size_t bytes, asked, requested; /* Of it, of the allocator, by who holds it; kept: as asked. */
    bool entered, shared;           /* Shared: recorded for another stream. */
    uint64_t kept_at;               /* Higher: later. */
} model_block;

typedef struct model_device {
    fl__fastbins_sums behind, held, kept, peak, hits; /* Behind: held and kept, as asked for. */
    int pauses;
} model_device;

static fl__fastbins *bins;
static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER; /* For the tests with threads. */
static model_block model[ROOM];
static model_device devices[DEVICES];
static size_t model_end;    /* Blocks from here on were never given out. */
static size_t first_gone;   /* No block before it is gone. */
static uint64_t kept_count; /* For kept_at. */

/* So that addresses meet in a hash table; it is its own inverse. */
static size_t scatter(size_t index) {
    return index ^ (index % 64 * (index % 64) % 509 * 64);
}

static void *address_of(size_t index) {
    return (void *)((uintptr_t)0x7f5000000000 + scatter(index) * GRAIN);
}

static model_block *block_at(const void *pointer) {
    const size_t index = scatter(((uintptr_t)pointer - (uintptr_t)address_of(0)) / GRAIN);
    CHECK(index < ROOM && pointer == address_of(index));
    return &model[index];
}

static size_t rounded(size_t bytes) {
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

static fl__fastbins_pool pool_of(size_t bytes) {
    return bytes <= MIB ? FL__POOL_SMALL : FL__POOL_LARGE;
}

static void count(fl__fastbins_sums sums, size_t bytes, size_t requested, int sign) {
    const int64_t more[FL__SUMS] = {sign, sign * (int64_t)bytes, sign * (int64_t)requested};
    for (int sum = 0; sum < FL__SUMS; sum++) {
        sums[FL__POOL_ALL][sum] += more[sum];
        sums[pool_of(bytes)][sum] += more[sum];
    }
}

static void move_to(model_block *b, unsigned whose, size_t requested) {
    model_device *const device = &devices[b->device];
    for (int sign = -1; sign <= 1; sign += 2) { /* Out of the sums before, into those after. */
        if (b->whose != GONE) {
            count(device->behind, b->bytes, b->asked, sign);
            count(b->whose == HELD ? device->held : device->kept, b->bytes, b->requested, sign);
        }
        b->whose = whose;
        b->requested = requested;
    }
}

/* The block at the lowest free address, `extra` bytes larger than it need be. */
static void *ask_behind(int device, uint64_t stream, size_t bytes, size_t extra) {
    (void)pthread_mutex_lock(&model_lock);
    while (first_gone < model_end && model[first_gone].whose != GONE) {
        first_gone++;
    }
    CHECK(first_gone < ROOM);
    model_end += first_gone == model_end;
    void *const pointer = address_of(first_gone);
    model_block *const b = block_at(pointer);
    *b = (model_block){GONE, device, stream, rounded(bytes) + extra, bytes, 0, false, false, 0};
    move_to(b, HELD, bytes);
    (void)pthread_mutex_unlock(&model_lock);
    return pointer;
}

static void free_behind(void *pointer) {
    (void)pthread_mutex_lock(&model_lock);
    model_block *const b = block_at(pointer);
    const size_t index = (size_t)(b - model);
    CHECK(b->whose != GONE);
    move_to(b, GONE, 0);
    first_gone = index < first_gone ? index : first_gone;
    (void)pthread_mutex_unlock(&model_lock);
}

/* --- calls, each compared with the model ------------------------------------------------------ */

static fl__fastbins_stats stats_of(int device) {
    fl__fastbins_stats stats;
    fl__fastbins_get_stats(bins, device, &stats);
    return stats;
}

static void check_stats(int device) {
    model_device *const wanted = &devices[device];
    const fl__fastbins_stats stats = stats_of(device);
    for (int i = 0; i < FL__POOLS * FL__SUMS; i++) {
        const int pool = i / FL__SUMS, sum = i % FL__SUMS;
        const int64_t held = wanted->held[pool][sum];
        int64_t *const peak = &wanted->peak[pool][sum];
        *peak = held > *peak ? held : *peak;
        CHECK_INT(stats.current[pool][sum], held);
        CHECK_INT(stats.peak[pool][sum], *peak);
        CHECK_INT(stats.kept[pool][sum], wanted->kept[pool][sum]);
        CHECK_INT(stats.hits[pool][sum], wanted->hits[pool][sum]);
    }
}

static void observe(int device) {
    fl__fastbins_observe(bins, device, devices[device].behind);
    check_stats(device);
}

static bool enter(void *pointer, bool tell_behind) {
    model_block *const b = block_at(pointer);
    const fl__fastbins_sums *const behind = &devices[b->device].behind;
    b->entered = fl__fastbins_enter(bins, b->device, b->stream, b->asked, pointer,
                                    tell_behind || b->asked > MIB ? behind : NULL);
    if (!b->entered && !tell_behind) {
        observe(b->device);
    }
    check_stats(b->device);
    return b->entered;
}

/* A block of the allocator behind, entered. */
static void *fresh(int device, uint64_t stream, size_t bytes) {
    void *const pointer = ask_behind(device, stream, bytes, 0);
    CHECK(enter(pointer, false));
    return pointer;
}

static fl__fastbins_answer give_if(bool may_keep, void *pointer) {
    int out_device = -1;
    const fl__fastbins_answer answer = fl__fastbins_give(bins, pointer, may_keep, &out_device);
    model_block *const b = block_at(pointer);
    CHECK_INT(b->whose, HELD);
    if (answer == FL__FASTBINS_KEPT) {
        move_to(b, KEPT, b->asked);
        b->kept_at = ++kept_count;
    } else {
        free_behind(pointer);
    }
    CHECK(answer != FL__FASTBINS_DRAIN || out_device == b->device);
    if (answer == FL__FASTBINS_UNKNOWN) {
        observe(b->device);
    }
    check_stats(b->device);
    return answer;
}

static fl__fastbins_answer give(void *pointer) {
    return give_if(true, pointer);
}

/* Gives what is not in the program's hands. */
static fl__fastbins_answer give_none(void *pointer) {
    return fl__fastbins_give(bins, pointer, true, &(int){0});
}

static void *take(int device, uint64_t stream, size_t bytes) {
    const bool large_wait = devices[device].kept[FL__POOL_LARGE][FL__SUM_BLOCKS] != 0;
    bool told = !large_wait;
    void *const pointer = fl__fastbins_take(bins, device, stream, bytes, &told);
    if (pointer) {
        model_block *const b = block_at(pointer);
        CHECK(b->whose == KEPT && b->device == device && b->stream == stream && b->bytes >= bytes);
        move_to(b, HELD, bytes);
        count(devices[device].hits, b->bytes, bytes, 1);
    }
    CHECK(told == large_wait);
    check_stats(device);
    return pointer;
}

/* What it takes out was kept, of the device and of the pool, and goes back. How many they were. */
static size_t drain(int device, fl__fastbins_pool pool, size_t room) {
    size_t all = 0;
    for (size_t drained = 1; drained != 0; all += drained) {
        void *out[64] = {NULL};
        drained = fl__fastbins_drain(bins, device, pool, out, room);
        CHECK(drained <= room && room < 64 && out[drained] == NULL);
        for (size_t i = 0; i < drained; i++) {
            const model_block *const b = block_at(out[i]);
            CHECK(b->whose == KEPT && b->device == device);
            CHECK(pool == FL__POOL_ALL || pool_of(b->bytes) == pool);
            free_behind(out[i]);
        }
        check_stats(device);
    }
    return all;
}

static void set_up(void) {
    bins = fl__fastbins_create();
    CHECK(bins != NULL);
}

/* Everything goes back; then nothing is left. */
static void tear_down(void) {
    for (size_t i = 0; i < model_end; i++) {
        CHECK(model[i].whose != HELD || give(address_of(i)) != FL__FASTBINS_UNKNOWN);
    }
    for (int device = 0; device < DEVICES; device++) {
        drain(device, FL__POOL_ALL, 60);
        CHECK_INT(devices[device].behind[FL__POOL_ALL][FL__SUM_BLOCKS], 0);
        CHECK_INT(stats_of(device).current[FL__POOL_ALL][FL__SUM_BYTES], 0);
    }
    fl__fastbins_destroy(bins);
}

/* --- one behaviour each ----------------------------------------------------------------------- */

TEST(fastbins, a_freed_block_serves_what_rounds_to_as_much) {
    /* As entered, two that it serves, two that it does not. */
    static const size_t cases[][5] = {
        {1, 512, 2, 513, 1024},
        {1000, 513, 1024, 512, 1025},
        {MIB, MIB - 511, MIB, MIB + 1, MIB - 512},
        {MIB + 1, MIB + 512, MIB + 2, MIB, MIB + 513},
        {2 * MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + STEP, 2 * MIB - STEP},
        {300 * MIB + 5, 300 * MIB + 1, 300 * MIB + 512, 300 * MIB, 3000 * (size_t)MIB + 5},
    };
    set_up();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *const block = fresh(0, 7, cases[i][0]);
        CHECK_POINTER(take(0, 7, cases[i][0]), NULL); /* It is not free. */
        CHECK_INT(give(block), FL__FASTBINS_KEPT);
        for (int served = 1; served <= 2; served++) {
            const size_t bytes = cases[i][served];
            CHECK(!take(0, 7, cases[i][3]) && !take(0, 7, cases[i][4]) && !take(0, 7, SIZE_MAX));
            CHECK(!take(0, 8, bytes) && !take(1, 7, bytes));
            CHECK_INT(give_none(block), FL__FASTBINS_FREED); /* It is free already. */
            CHECK_POINTER(take(0, 7, bytes), block);
            CHECK_POINTER(take(0, 7, bytes), NULL);
            CHECK_INT(give(block), FL__FASTBINS_KEPT);
        }
        CHECK_UINT(drain(0, FL__POOL_ALL, 5), 1);
    }
    tear_down();
}

/* Small ones, and large ones of one bin. */
TEST(fastbins, the_last_one_freed_of_a_size_comes_first) {
    enum { SIZES = 5, EACH = 3 };
    static const size_t first[] = {512, 4 * MIB}, more[] = {512, STEP};
    set_up();
    for (size_t large = 0; large < 2; large++) {
        const size_t count = SIZES * EACH, start = large * count;
        for (size_t i = 0; i < count; i++) {
            CHECK(fresh(0, 1, first[large] + i % SIZES * more[large]) == address_of(start + i));
        }
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(give(address_of(start + i)), FL__FASTBINS_KEPT);
        }
        CHECK_POINTER(take(0, 1, first[large] + SIZES * more[large]), NULL);
        for (size_t i = 0; i < count; i++) {
            static const size_t order[SIZES] = {2, 4, 0, 1, 3}; /* From the middle, the ends. */
            const size_t size = order[i % SIZES], nth = EACH - 1 - i / SIZES;
            CHECK_POINTER(take(0, 1, first[large] + size * more[large] - 100),
                          address_of(start + nth * SIZES + size));
        }
    }
    tear_down();
}

TEST(fastbins, a_block_larger_than_asked_for_is_given_back) {
    static const size_t extra[] = {GRAIN, STEP, MIB};
    set_up();
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        void *const block = ask_behind(0, 0, 3 * MIB - 5, extra[i]);
        CHECK(enter(block, true)); /* All of it is in use. */
        CHECK_INT(give(block), FL__FASTBINS_FREE);
        CHECK(!take(0, 0, 3 * MIB) && !take(0, 0, 3 * MIB + extra[i]));
        CHECK_INT(give_none(block), FL__FASTBINS_UNKNOWN);
    }
    void *const block = fresh(0, 0, 3 * MIB - 5);
    CHECK_INT(give(block), FL__FASTBINS_KEPT);
    CHECK_POINTER(take(0, 0, 3 * MIB), block);
    CHECK_INT(give_if(false, block), FL__FASTBINS_FREE); /* So is one that may not be kept. */
    CHECK_POINTER(take(0, 0, 3 * MIB), NULL);
    tear_down();
}

TEST(fastbins, a_block_that_another_stream_used_is_not_kept) {
    static const size_t sizes[] = {100, 2 * MIB};
    set_up();
    for (size_t i = 0; i < 2; i++) {
        void *const block = fresh(0, 5, sizes[i]);
        fl__fastbins_record(bins, block, 5);
        CHECK_INT(give(block), FL__FASTBINS_KEPT);
        CHECK_POINTER(take(0, 5, sizes[i]), block);
        fl__fastbins_record(bins, block, 6);
        fl__fastbins_record(bins, block, 5);
        CHECK_INT(give(block), FL__FASTBINS_FREE);
        CHECK(!take(0, 5, sizes[i]) && !take(0, 6, sizes[i]));
    }
    tear_down();
}

TEST(fastbins, nothing_of_a_paused_device_is_taken_entered_or_kept) {
    set_up();
    void *const kept = fresh(0, 0, 100), *const held = fresh(0, 0, 100);
    void *const elsewhere = fresh(1, 0, 100);
    CHECK_INT(give(kept), FL__FASTBINS_KEPT);
    fl__fastbins_pause(bins, 0);
    fl__fastbins_pause(bins, 0);
    CHECK_INT(give(held), FL__FASTBINS_FREE);
    CHECK_INT(give(elsewhere), FL__FASTBINS_KEPT);
    CHECK_POINTER(take(1, 0, 100), elsewhere);
    for (int pauses = 2; pauses > 0; pauses--) {
        CHECK_POINTER(take(0, 0, 100), NULL);
        void *const small = ask_behind(0, 0, 100, 0);
        CHECK(!enter(small, false));
        void *const large = ask_behind(0, 0, 2 * MIB, 0);
        CHECK(!enter(large, true)); /* The sums follow all the same. */
        CHECK_INT(give(small), FL__FASTBINS_UNKNOWN);
        CHECK_INT(give(large), FL__FASTBINS_UNKNOWN);
        fl__fastbins_resume(bins, 0);
    }
    CHECK_POINTER(take(0, 0, 100), kept);
    CHECK_INT(give(kept), FL__FASTBINS_KEPT);
    fl__fastbins_pause(bins, 0);
    CHECK_UINT(drain(0, FL__POOL_ALL, 3), 1); /* What waits can be drained all the same. */
    tear_down();
}

TEST(fastbins, a_drained_pool_is_empty_and_the_rest_is_found) {
    enum { SIZES = 6, EACH = 1500 }; /* The even ones of each size are kept, a fifth elsewhere. */
    static const size_t sizes[] = {1, 5000, MIB, MIB + 1, 2 * MIB, 2 * MIB + STEP};
    set_up();
    for (size_t i = 0; i < SIZES * EACH; i++) {
        CHECK_POINTER(fresh(i / SIZES % 5 == 0, i / SIZES % 4, sizes[i % SIZES]), address_of(i));
    }
    for (size_t i = 0; i < SIZES * EACH; i++) {
        CHECK(i / SIZES % 2 != 0 || give(address_of(i)) == FL__FASTBINS_KEPT);
    }
    CHECK_UINT(drain(0, FL__POOL_SMALL, 0), 0);
    CHECK_UINT(drain(0, FL__POOL_SMALL, 7), EACH / 2 / 5 * 4 * 3);
    CHECK_UINT(drain(0, FL__POOL_LARGE, 1), EACH / 2 / 5 * 4 * 3);
    CHECK_UINT(drain(0, FL__POOL_ALL, 7), 0);
    check_stats(1);
    for (size_t i = 0; i < SIZES * EACH; i++) {
        if (model[i].whose == GONE) {
            CHECK_INT(give_none(address_of(i)), FL__FASTBINS_UNKNOWN);
        } else if (model[i].whose == HELD) {
            CHECK_INT(give(address_of(i)), FL__FASTBINS_KEPT);
        }
    }
    CHECK_UINT(drain(1, FL__POOL_LARGE, 13), EACH / 5 * 3);
    CHECK_UINT(drain(1, FL__POOL_ALL, 13), EACH / 5 * 3);
    tear_down();
}

TEST(fastbins, too_many_kept_blocks_ask_to_be_drained) {
    set_up();
    for (size_t i = 0; i < FL__FASTBINS_MOST + 3; i++) {
        (void)fresh(1, i % 3, 1 + i % 9000);
    }
    for (size_t i = 0; i < FL__FASTBINS_MOST; i++) {
        CHECK_INT(give(address_of(i)), FL__FASTBINS_KEPT);
    }
    CHECK_INT(give(address_of(FL__FASTBINS_MOST)), FL__FASTBINS_DRAIN); /* give() sees which. */
    CHECK_INT(give(address_of(FL__FASTBINS_MOST + 1)), FL__FASTBINS_DRAIN);
    CHECK_INT(give(fresh(0, 0, 10)), FL__FASTBINS_KEPT); /* The other device has not too many. */
    CHECK_UINT(drain(1, FL__POOL_ALL, 50), FL__FASTBINS_MOST);
    CHECK_INT(give(address_of(FL__FASTBINS_MOST + 2)), FL__FASTBINS_KEPT);
    tear_down();
}

TEST(fastbins, unknown_addresses_are_said_to_be_unknown) {
    set_up();
    CHECK_INT(give_none(address_of(1)), FL__FASTBINS_UNKNOWN);
    fl__fastbins_record(bins, address_of(1), 1);
    CHECK_POINTER(fresh(0, 0, 4096), address_of(0));
    CHECK_INT(give_none(address_of(1)), FL__FASTBINS_UNKNOWN);
    fl__fastbins_record(bins, address_of(1), 1);
    tear_down();
}

TEST(fastbins, only_so_many_streams_have_kept_blocks) {
    set_up();
    for (int device = 0; device < DEVICES; device++) {
        for (uint64_t stream = 0; stream < 20; stream++) {
            const bool kept = stream < FL__FASTBINS_LANES;
            void *const block = fresh(device, stream << 40, 100);
            CHECK_INT(give(block), kept ? FL__FASTBINS_KEPT : FL__FASTBINS_FREE);
            CHECK_POINTER(take(device, stream << 40, 100), kept ? block : NULL);
        }
    }
    tear_down();
}

/* The allocator took a block back that is known here, and gives its address out for another one,
 * which never is taken for the one before. */
TEST(fastbins, an_address_given_out_once_more_is_not_the_block_before) {
    set_up();
    for (int observed = 0; observed < 2; observed++) {
        void *const block = fresh(0, 0, 4096);
        free_behind(block);
        if (observed) {
            observe(0);
        }
        CHECK_POINTER(ask_behind(0, 1, 100, 0), block);
        const bool entered = enter(block, false);
        CHECK_INT(give(block), entered ? FL__FASTBINS_KEPT : FL__FASTBINS_UNKNOWN);
        CHECK(!take(0, 0, 4096) && !take(0, 1, 4096) && !take(0, 0, 100));
        drain(0, FL__POOL_ALL, 1);
    }
    tear_down();
}

/* --- a random program ------------------------------------------------------------------------- */

/* The last block kept for which the allocator was asked for as much. */
static void *wanted_for(int device, uint64_t stream, size_t bytes) {
    const model_block *last = NULL;
    for (size_t i = 0; i < model_end && devices[device].pauses == 0; i++) {
        const model_block *const b = &model[i];
        if (b->whose == KEPT && b->device == device && b->stream == stream &&
            rounded(b->asked) == rounded(bytes) && (!last || last->kept_at < b->kept_at)) {
            last = b;
        }
    }
    return last ? address_of((size_t)(last - model)) : NULL;
}

static void random_request(uint64_t *seed, int device) {
    static const size_t sizes[] = {
        1,   512,     513,       700,     1000,    5000,           MIB - 3,
        MIB, MIB + 1, MIB + 500, 2 * MIB, 5 * MIB, 2 * MIB + STEP, 2 * MIB + 2 * STEP};
    const size_t bytes = sizes[test_random(seed) % (sizeof sizes / sizeof sizes[0])];
    const uint64_t stream = test_random(seed) % 3, luck = test_random(seed);
    void *const kept = wanted_for(device, stream, bytes);
    CHECK_POINTER(take(device, stream, bytes), kept);
    if (!kept) {
        const size_t extra = bytes > MIB && luck % 3 == 0 ? (1 + luck / 8 % 900) * GRAIN : 0;
        void *const pointer = ask_behind(device, stream, bytes, extra);
        if (luck / 4096 % 32 == 0) {
            observe(device); /* It never is entered. */
        } else {
            CHECK_INT(enter(pointer, luck / 4 % 2), devices[device].pauses == 0);
        }
    }
}

static void random_step(uint64_t *seed, int device) {
    const uint64_t luck = test_random(seed) % 200;
    void *const any = address_of((size_t)test_random(seed) % (model_end + 1));
    model_block *const b = block_at(any);
    if (devices[device].pauses != 0 && luck % 16 == 0) {
        fl__fastbins_resume(bins, device);
        devices[device].pauses--;
    } else if (luck < 70 && devices[device].behind[FL__POOL_ALL][FL__SUM_BLOCKS] < 300) {
        random_request(seed, device);
    } else if (luck < 180 && b->whose == HELD) {
        const bool may_keep = luck < 170;
        const bool keep = may_keep && devices[b->device].pauses == 0 && !b->shared &&
                          b->bytes == rounded(b->asked);
        CHECK_INT(give_if(may_keep, any), !b->entered ? FL__FASTBINS_UNKNOWN
                                          : keep      ? FL__FASTBINS_KEPT
                                                      : FL__FASTBINS_FREE);
    } else if (luck < 188 && b->whose == HELD) {
        const uint64_t stream = luck % 2 ? b->stream : luck % 3;
        fl__fastbins_record(bins, any, stream);
        b->shared = b->shared || stream != b->stream;
    } else if (luck == 190) {
        fl__fastbins_reset_peaks(bins, device);
        memset(devices[device].peak, 0, sizeof devices[device].peak); /* Raised to what is held. */
    } else if (luck == 192) {
        fl__fastbins_pause(bins, device);
        devices[device].pauses++;
    } else if (luck == 193) {
        (void)drain(device, (fl__fastbins_pool)(test_random(seed) % FL__POOLS),
                    test_random(seed) % 16);
    } else if (luck > 195) {
        observe(device);
    }
}

TEST(fastbins, sums_and_peaks_are_those_of_a_model) {
    uint64_t seed = UINT64_C(0x2545F4914F6CDD1D);
    set_up();
    devices[1].peak[FL__POOL_ALL][FL__SUM_BYTES] = 7 * MIB;
    fl__fastbins_begin(bins, 1, devices[1].behind, devices[1].peak);
    for (int step = 0; step < 40000; step++) {
        check_stats(0);
        check_stats(1);
        random_step(&seed, (int)(test_random(&seed) % DEVICES));
    }
    fl__fastbins_reset_hits(bins, 0);
    for (int pool = 0; pool < FL__POOLS; pool++) {
        const model_device *const d = &devices[0];
        CHECK(d->hits[pool][0] > 500 && stats_of(0).hits[pool][0] == 0);
        const int64_t asked = d->behind[pool][FL__SUM_REQUESTED] - d->kept[pool][FL__SUM_REQUESTED];
        CHECK_INT(stats_of(0).requested_more[pool], d->held[pool][FL__SUM_REQUESTED] - asked);
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { THREADS = 4, IN_HAND = 16, STEPS = 20000 };

static int owners[ROOM]; /* Atomic; the number of the thread that has the block, or 0. */
/* Only the lock of the bins orders what threads do with one block. */
static void pass(const void *pointer, int from, int to) {
    int *const owner = &owners[block_at(pointer) - model];
    CHECK_INT(__atomic_exchange_n(owner, to, __ATOMIC_RELAXED), from);
}

static void *obtain(uint64_t luck) {
    const size_t bytes = 100 + luck / 4 % 4 * 70000;
    const int device = (int)(luck % DEVICES);
    const uint64_t stream = luck / 2 % 2;
    void *pointer = fl__fastbins_take(bins, device, stream, bytes, &(bool){false});
    if (!pointer) {
        pointer = ask_behind(device, stream, bytes, 0);
        (void)fl__fastbins_enter(bins, device, stream, bytes, pointer, NULL);
    }
    const model_block *const b = block_at(pointer);
    CHECK(b->device == device && b->stream == stream && b->asked == bytes);
    return pointer;
}

static void drain_shared(int device, int me) {
    void *block;
    while (fl__fastbins_drain(bins, device, FL__POOL_ALL, &block, 1) != 0) {
        pass(block, 0, me);
        pass(block, me, 0);
        free_behind(block);
    }
}

static void *run_thread(void *argument) {
    const int me = *(const int *)argument;
    uint64_t seed = (uint64_t)me * UINT64_C(0x9E3779B97F4A7C15);
    void *hand[IN_HAND] = {NULL};
    for (size_t step = 0; step < STEPS + IN_HAND; step++) {
        const uint64_t luck = test_random(&seed);
        void **const any = &hand[step < STEPS ? luck / 256 % IN_HAND : step - STEPS];
        if (*any) {
            pass(*any, me, 0);
            if (give_none(*any) != FL__FASTBINS_KEPT) {
                free_behind(*any);
            }
            *any = NULL;
        } else if (step < STEPS) {
            *any = obtain(luck);
            pass(*any, 0, me);
        }
        if (luck / 65536 % 64 == 0) {
            drain_shared((int)(luck % DEVICES), me);
        }
    }
    return NULL;
}

TEST(fastbins, no_block_is_in_the_hands_of_two_threads) {
    pthread_t threads[THREADS];
    int numbers[THREADS] = {1, 2, 3, 4};
    set_up();
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, run_thread, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    for (int device = 0; device < DEVICES; device++) {
        drain_shared(device, THREADS + 1);
        const fl__fastbins_stats stats = stats_of(device);
        for (int i = 0; i < FL__POOLS * FL__SUMS; i++) {
            CHECK_INT(stats.current[i / FL__SUMS][i % FL__SUMS], 0);
            CHECK_INT(stats.kept[i / FL__SUMS][i % FL__SUMS], 0);
            CHECK_INT(devices[device].behind[i / FL__SUMS][i % FL__SUMS], 0);
        }
        CHECK(stats.hits[FL__POOL_ALL][FL__SUM_BLOCKS] > STEPS / 10);
        CHECK(stats.peak[FL__POOL_ALL][FL__SUM_BLOCKS] <= THREADS * IN_HAND);
    }
    fl__fastbins_destroy(bins);
}
