/* test_cache.c: the device cache on the simulated device. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "driver/sim.h"
#include "fl/debug.h"
#include "fl/memory.h"
#include "harness.h"
#include "memory/block.h"
#include "rig.h"

#define MIB ((size_t)1 << 20)

static fl_memory_stats stats_of(fl_device device) {
    fl_memory_stats stats;
    CHECK_OK(fl_memory_check(device));
    CHECK_OK(fl_memory_get_stats(device, &stats));
    return stats;
}

static void *alloc(size_t bytes, fl_stream stream) {
    void *ptr = NULL;
    CHECK_OK(fl_memory_alloc(0, bytes, stream, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

static fl_stream new_stream(fl_device device) {
    fl_stream stream;
    CHECK_OK(fl_stream_create(device, 0, &stream));
    return stream;
}

/* --- sizes, pools, splitting ------------------------------------------------------------------ */

TEST(cache, sizes_round_to_512_bytes_and_segments_have_torchs_sizes) {
    rig_sim(NULL, NULL);
    static const struct {
        size_t asked, rounded, segment;
    } cases[] = {
        {1, 512, 2 * MIB},
        {512, 512, 2 * MIB},
        {513, 1024, 2 * MIB},
        {MIB, MIB, 2 * MIB},
        {MIB + 1, MIB + 512, 20 * MIB},
        {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
        {10 * MIB - 1, 10 * MIB, 10 * MIB}, /* it is the rounded size that counts */
        {10 * MIB, 10 * MIB, 10 * MIB},
        {11 * MIB + 1, 12 * MIB, 12 * MIB}, /* 11 MiB + 512 fills its segment: not split */
        {33 * MIB, 33 * MIB, 34 * MIB},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_note("asked for %zu", cases[i].asked);
        void *ptr = alloc(cases[i].asked, 0);
        fl_memory_stats stats = stats_of(0);
        CHECK_UINT(stats.requested_bytes[FL_POOL_ALL].current, cases[i].asked);
        CHECK_UINT(stats.reserved_bytes[FL_POOL_ALL].current, cases[i].segment);
        int pool = cases[i].asked <= MIB ? FL_POOL_SMALL : FL_POOL_LARGE;
        CHECK_UINT(stats.reserved_bytes[pool].current, cases[i].segment);
        size_t rest = cases[i].segment - cases[i].rounded;
        size_t held =
            rest > MIB || (pool == FL_POOL_SMALL && rest) ? cases[i].rounded : cases[i].segment;
        CHECK_UINT(stats.allocated_bytes[FL_POOL_ALL].current, held);
        fl_memory_free(ptr);
        CHECK_OK(fl_memory_empty_cache(-1));
        CHECK_INT(stats_of(0).reserved_bytes[FL_POOL_ALL].current, 0);
    }
}

TEST(cache, nothing_is_allocated_for_0_bytes) {
    rig_sim(NULL, NULL);
    void *ptr = &ptr;
    CHECK_OK(fl_memory_alloc(0, 0, 0, &ptr));
    CHECK_POINTER(ptr, NULL);
    fl_memory_free(NULL);
    CHECK_OK(fl_memory_record_stream(NULL, 0));
    CHECK_INT(stats_of(0).allocation[FL_POOL_ALL].allocated, 0);
}

TEST(cache, blocks_are_split_reused_and_merged) {
    rig_sim(NULL, NULL);
    char *a = alloc(4096, 0), *b = alloc(4096, 0), *c = alloc(4096, 0);
    CHECK_POINTER(b, a + 4096);
    CHECK_POINTER(c, b + 4096);
    CHECK_INT(stats_of(0).segment[FL_POOL_SMALL].current, 1);
    CHECK_INT(stats_of(0).inactive_split[FL_POOL_ALL].current, 1);
    CHECK_UINT(stats_of(0).inactive_split_bytes[FL_POOL_ALL].current, 2 * MIB - 3 * 4096);

    fl_memory_free(b);
    CHECK_INT(stats_of(0).inactive_split[FL_POOL_ALL].current, 2);
    CHECK_POINTER(alloc(4096, 0), b); /* the best fit, not the large rest */
    fl_memory_free(b);
    CHECK_POINTER(alloc(2048, 0), b);
    fl_memory_free(b);

    fl_memory_free(a); /* merges with b */
    CHECK_POINTER(alloc(8192, 0), a);
    fl_memory_free(a);
    fl_memory_free(c); /* merges to both sides: the segment is whole again */
    CHECK_INT(stats_of(0).inactive_split[FL_POOL_ALL].current, 0);
    CHECK_INT(stats_of(0).active[FL_POOL_ALL].current, 0);
    CHECK_UINT(stats_of(0).reserved_bytes[FL_POOL_ALL].current, 2 * MIB);
    CHECK_OK(fl_memory_empty_cache(0));
    CHECK_INT(stats_of(0).num_device_free, 1);
}

typedef struct fit {
    size_t want, best;
    void *at; /* Where a free block of the best size is. */
} fit;

static void find_fit(void *user, const fl_segment_info *segment) {
    fit *found = user;
    for (uint32_t i = 0; i < segment->block_count; i++) {
        const fl_block_info *block = &segment->blocks[i];
        if (block->state == FL_BLOCK_FREE && block->size >= found->want &&
            block->size < found->best) {
            found->best = block->size;
        }
    }
}

static void find_place(void *user, const fl_segment_info *segment) {
    fit *found = user;
    for (uint32_t i = 0; i < segment->block_count; i++) {
        if (segment->blocks[i].address == found->at) {
            found->want = segment->blocks[i].state == FL_BLOCK_FREE ? segment->blocks[i].size : 0;
        }
    }
}

TEST(cache, the_smallest_free_block_that_is_large_enough_is_taken) {
    rig_sim(NULL, "512M");
    enum { COUNT = 200 };
    static void *blocks[COUNT];
    uint64_t seed = 7;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = alloc(512 * (1 + test_random(&seed) % 600), 0);
        (void)alloc(512, 0); /* keeps most neighbours from merging */
    }
    for (int i = 0; i < COUNT; i++) {
        fl_memory_free(blocks[i]);
    }
    for (int round = 0; round < 300; round++) {
        fit wanted = {.want = 512 * (1 + test_random(&seed) % 600), .best = SIZE_MAX};
        CHECK_OK(fl_memory_snapshot(0, find_fit, &wanted));
        void *got = alloc(wanted.want, 0);
        fl_memory_free(got); /* merges back to what it was cut from */
        fit place = {.at = got};
        CHECK_OK(fl_memory_snapshot(0, find_place, &place));
        if (wanted.best != SIZE_MAX) {
            CHECK_UINT(place.want, wanted.best);
        }
        CHECK_OK(fl_memory_check(0));
    }
}

TEST(cache, among_equal_free_blocks_the_lowest_is_taken) {
    enum { BLOCKS = 9 };
    static const int orders[][3] = {{1, 3, 5}, {5, 3, 1}, {3, 5, 1}, {5, 1, 3}};
    rig_sim(NULL, NULL);
    char *all[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        all[i] = alloc(4096, 0);
    }
    for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++) {
        for (int i = 0; i < 3; i++) {
            fl_memory_free(all[orders[o][i]]);
        }
        for (int i = 1; i <= 5; i += 2) {
            CHECK_POINTER(alloc(4096, 0), all[i]);
        }
    }
}

TEST(cache, thousands_of_blocks_are_found_again) {
    rig_sim("2", NULL);
    enum { COUNT = 5000 };
    static void *blocks[COUNT];
    uint64_t seed = 21;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            if (!blocks[i]) {
                blocks[i] = alloc(1 + test_random(&seed) % 3000, 0);
            }
        }
        for (int i = 0; i < COUNT; i++) {
            fl_pointer_info info;
            fl_pointer_lookup((char *)blocks[i] + 300, &info);
            CHECK(info.base == blocks[i] || info.size < 300 || info.kind != FL_POINTER_DEVICE);
            if (test_random(&seed) % 2) {
                fl_memory_free(blocks[i]);
                blocks[i] = NULL;
            }
        }
        CHECK_OK(fl_memory_check(0));
    }
    for (int i = 0; i < COUNT; i++) {
        fl_memory_free(blocks[i]);
    }
    CHECK_INT(stats_of(0).allocation[FL_POOL_ALL].current, 0);
    CHECK_OK(fl_memory_empty_cache(0));
    CHECK_INT(stats_of(0).segment[FL_POOL_ALL].current, 0);
}

TEST(cache, bins_cover_every_size_in_order) {
    uint32_t before = 0;
    for (size_t units = 1; units < (size_t)1 << 38; units += 1 + units / 97) {
        uint32_t index = fl__bins_index(units * FL__BLOCK_UNIT);
        CHECK(index >= before && index < FL__BIN_COUNT);
        before = index;
    }
    CHECK(fl__bins_index(FL__LARGEST_REQUEST) < FL__BIN_COUNT);
}

/* --- streams ---------------------------------------------------------------------------------- */

TEST(cache, a_stream_reuses_only_its_own_blocks) {
    rig_sim(NULL, NULL);
    fl_stream other = new_stream(0);
    void *a = alloc(4096, 0);
    fl_memory_free(a);
    void *b = alloc(4096, other);
    CHECK(a != b);
    CHECK_POINTER(alloc(4096, 0), a);
    CHECK_INT(stats_of(0).segment[FL_POOL_ALL].current, 2);
    fl_pointer_info info;
    fl_pointer_lookup(b, &info);
    CHECK_INT(info.stream, other);
}

TEST(cache, a_recorded_stream_delays_the_reuse) {
    rig_sim(NULL, NULL);
    fl_stream other = new_stream(0), third = new_stream(0);
    void *a = alloc(4096, 0);
    CHECK_OK(fl_memory_record_stream((char *)a + 100, other)); /* inside counts */
    CHECK_OK(fl_memory_record_stream(a, other));
    CHECK_OK(fl_memory_record_stream(a, third));
    CHECK_OK(fl_memory_record_stream(a, 0)); /* its own: nothing to wait for */
    rig_block(0, other);
    fl_memory_free(a);
    fl_memory_stats stats = stats_of(0);
    CHECK_INT(stats.allocation[FL_POOL_ALL].current, 0);
    CHECK_INT(stats.active[FL_POOL_ALL].current, 1);
    CHECK_INT(stats.active_bytes[FL_POOL_ALL].current, 4096);
    CHECK_INT(stats.requested_bytes[FL_POOL_ALL].current, 4096);
    void *b = alloc(4096, 0);
    CHECK(b != a);
    rig_release();
    CHECK_OK(fl_device_synchronize(0));
    void *c = alloc(4096, 0);
    CHECK_POINTER(c, a);
    CHECK_INT(stats_of(0).active[FL_POOL_ALL].current, 2);
    fl_memory_free(b);
    fl_memory_free(c);
    CHECK_STATUS(fl_memory_record_stream(a, other), FL_NOT_FOUND);
    CHECK_STATUS(fl_memory_record_stream(&stats, other), FL_NOT_FOUND);
}

TEST(cache, waiting_blocks_are_waited_for_before_memory_runs_out) {
    rig_sim("1", "64M");
    fl_stream other = new_stream(0);
    void *a = alloc(40 * MIB, 0);
    CHECK_OK(fl_memory_record_stream(a, other));
    rig_block(0, other);
    fl_memory_free(a);
    /* Only giving the 40 MiB back can serve this; the release comes from another thread. */
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, (void *(*)(void *))(void *)rig_release, NULL), 0);
    void *b = alloc(50 * MIB, 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    fl_memory_stats stats = stats_of(0);
    CHECK_INT(stats.num_alloc_retries, 1);
    CHECK_INT(stats.num_sync_all_streams, 1);
    CHECK_INT(stats.num_ooms, 0);
    CHECK_UINT(stats.reserved_bytes[FL_POOL_ALL].current, 50 * MIB);
    fl_memory_free(b);
}

/* --- running out ------------------------------------------------------------------------------ */

TEST(cache, out_of_memory_says_where_it_is_and_changes_nothing) {
    rig_sim("1", "64M");
    void *piece = alloc(3 * MIB, 0);
    void *a = alloc(30 * MIB, 0);
    fl_memory_stats before = stats_of(0);
    void *ptr = &ptr;
    CHECK_STATUS(fl_memory_alloc(0, 40 * MIB, 0, &ptr), FL_OUT_OF_MEMORY);
    CHECK_POINTER(ptr, &ptr);
    const char *message = fl_last_message();
    CHECK_CONTAINS(message, " out of memory. ");
    CHECK_CONTAINS(message, "Tried to allocate 40.00 MiB on flagos:0");
    CHECK_CONTAINS(message, "64.00 MiB in total, of which 14.00 MiB are free");
    CHECK_CONTAINS(message, "holds 50.00 MiB there: 33.00 MiB allocated");
    CHECK_CONTAINS(message, "17.00 MiB reserved but unused");
    fl_memory_stats after = stats_of(0);
    CHECK_INT(after.num_ooms, 1);
    CHECK_INT(after.num_alloc_retries, 1);
    after.num_ooms = before.num_ooms;
    after.num_alloc_retries = before.num_alloc_retries;
    after.num_sync_all_streams = before.num_sync_all_streams;
    CHECK_BYTES(&after, &before, sizeof(before));

    /* What is unused in one piece is given back and serves the next one. */
    fl_memory_free(a);
    ptr = alloc(40 * MIB, 0);
    fl_memory_free(ptr);
    fl_memory_free(piece);
    CHECK_STATUS(fl_memory_alloc(0, SIZE_MAX / 2, 0, &ptr), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), " out of memory. ");
}

TEST(cache, much_unused_memory_in_pieces_is_hinted_at) {
    rig_sim("1", "64M");
    void *pieces[6];
    for (int i = 0; i < 6; i++) {
        pieces[i] = alloc(9 * MIB, 0); /* two a segment */
    }
    for (int i = 0; i < 6; i += 2) {
        fl_memory_free(pieces[i]);
    }
    void *ptr;
    CHECK_STATUS(fl_memory_alloc(0, 12 * MIB, 0, &ptr), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "max_split_size_mb");
    CHECK_OK(fl_memory_check(0));
}

TEST(cache, a_fraction_bounds_what_is_reserved) {
    rig_sim("2", "100M");
    double fraction = 0;
    CHECK_OK(fl_memory_get_fraction(0, &fraction));
    CHECK(fraction == 1.0);
    CHECK_STATUS(fl_memory_set_fraction(0, 0.0), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_memory_set_fraction(0, 1.01), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_memory_set_fraction(2, 0.5), FL_OUT_OF_RANGE);
    CHECK_OK(fl_memory_set_fraction(0, 0.25));
    CHECK_OK(fl_memory_get_fraction(0, &fraction));
    CHECK(fraction == 0.25);
    void *a = alloc(20 * MIB, 0), *b;
    CHECK_STATUS(fl_memory_alloc(0, 10 * MIB, 0, &b), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "limit is 25.00 MiB (fraction 0.25");
    fl_memory_free(a);
    a = alloc(22 * MIB, 0); /* the cached 20 MiB are given back for it */
    CHECK_OK(fl_memory_alloc(1, 80 * MIB, 0, &b));
    fl_memory_free(a);
    fl_memory_free(b);
    CHECK_OK(fl_memory_check(1));
}

TEST(cache, a_driver_that_knows_no_total_has_no_fraction) {
    static fl_driver blind;
    blind = *fl__sim_driver();
    rig_sim(NULL, NULL);
    fl__cache *cache;
    CHECK_OK(fl__cache_get(0, &blind, &cache));
    cache->total = 0;
    CHECK_STATUS(fl_memory_set_fraction(0, 0.5), FL_NOT_SUPPORTED);
}

/* --- settings --------------------------------------------------------------------------------- */

TEST(cache, settings_are_read_in_torchs_grammar) {
    rig_sim(NULL, NULL);
    fl_memory_settings settings;
    fl_memory_get_settings(&settings);
    CHECK(settings.max_split_size == SIZE_MAX && settings.large_segment_size == 20 * MIB);
    CHECK_OK(fl_memory_configure(" max_split_size_mb : 100 ,max_non_split_rounding_mb:30,"
                                 "large_segment_size_mb:40, garbage_collection_threshold:0.75,"
                                 "roundup_power2_divisions:[64:8,256:4,1024:4,>:1],"
                                 "per_process_memory_fraction:0.5,"
                                 "backend:native,expandable_segments:True,"
                                 "pinned_use_background_threads:False"));
    fl_memory_get_settings(&settings);
    CHECK_UINT(settings.max_split_size, 100 * MIB);
    CHECK_UINT(settings.max_non_split_rounding, 30 * MIB);
    CHECK_UINT(settings.large_segment_size, 40 * MIB);
    CHECK(settings.garbage_collection_threshold == 0.75);
    CHECK(settings.per_process_memory_fraction == 0.5);
    static const uint32_t divisions[] = {8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 1, 1, 1, 1, 1, 1};
    CHECK_BYTES(settings.roundup_power2_divisions, divisions, sizeof(divisions));
    CHECK_STRING(settings.ignored, "backend,expandable_segments,pinned_use_background_threads");
    CHECK_OK(fl_memory_configure("max_split_size_mb:20,max_non_split_rounding_mb:20"));
    CHECK_OK(fl_memory_configure("roundup_power2_divisions:4,expandable_segments:False"));
    fl_memory_get_settings(&settings);
    CHECK_UINT(settings.roundup_power2_divisions[15], 4);
    CHECK_STRING(settings.ignored, "");
    CHECK(settings.max_split_size == SIZE_MAX);

    static const char *const wrong[] = {
        "max_split_size:100",
        "max_split_size_mb:19",
        "max_non_split_rounding_mb:19",
        "max_split_size_mb:x",
        "max_split_size_mb:",
        "max_split_size_mb",
        "max_split_size_mb:99999999999999999999",
        "large_segment_size_mb:19",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:0.5x",
        "per_process_memory_fraction:1.5",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[64:8",
        "roundup_power2_divisions:[65:8]",
        "roundup_power2_divisions:[64 8]",
        "expandable_segments:maybe",
        "max_split_size_mb:100 max_non_split_rounding_mb:30",
        ":",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        test_note("%s", wrong[i]);
        CHECK_STATUS(fl_memory_configure(wrong[i]), FL_INVALID_ARGUMENT);
        CHECK_CONTAINS(fl_last_message(), "PYTORCH_ALLOC_CONF");
    }
    fl_memory_get_settings(&settings);
    CHECK_UINT(settings.roundup_power2_divisions[15], 4);
}

TEST(cache, the_option_is_read_at_the_first_allocation) {
    CHECK_OK(fl_option_set(FL_OPT_ALLOC_CONF, "max_split_size_mb:64"));
    rig_sim(NULL, NULL);
    CHECK_INT(stats_of(0).max_split_size, 64 * (int64_t)MIB);
    fl_memory_free(alloc(100, 0));
    CHECK_INT(stats_of(0).max_split_size, 64 * (int64_t)MIB);
}

TEST(cache, a_wrong_option_fails_the_first_allocation) {
    CHECK_OK(fl_option_set(FL_OPT_ALLOC_CONF, "no_such_key:1"));
    rig_sim(NULL, NULL);
    void *ptr;
    CHECK_STATUS(fl_memory_alloc(0, 100, 0, &ptr), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "unrecognized key 'no_such_key'");
    CHECK_OK(fl_memory_configure(""));
    fl_memory_free(alloc(100, 0));
}

TEST(cache, power_of_two_divisions_round_up) {
    rig_sim(NULL, NULL);
    CHECK_OK(fl_memory_configure("roundup_power2_divisions:4"));
    static const size_t cases[][2] = {
        {1200, 1536}, /* too small for divisions of 512 bytes: plain rounding */
        {2048, 2048}, {2100, 2560}, {4097, 5120}, {MIB + 1, MIB + MIB / 4}, {7 * MIB, 7 * MIB},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_note("%zu", cases[i][0]);
        fl_pointer_info info;
        void *ptr = alloc(cases[i][0], 0);
        fl_pointer_lookup(ptr, &info);
        CHECK_UINT(info.size, cases[i][1]);
        fl_memory_free(ptr);
    }
}

TEST(cache, blocks_above_max_split_size_serve_their_like_only) {
    rig_sim("1", "130M");
    CHECK_OK(fl_memory_configure("max_split_size_mb:25"));
    void *first = alloc(12 * MIB, 0);
    void *large = alloc(60 * MIB, 0);
    fl_memory_stats stats = stats_of(0);
    CHECK_INT(stats.oversize_allocations.current, 1);
    CHECK_INT(stats.oversize_segments.current, 1);
    fl_memory_free(large);
    CHECK_INT(stats_of(0).oversize_allocations.current, 0);
    void *small = alloc(11 * MIB, 0); /* would be cut from the 60 MiB otherwise */
    CHECK_UINT(stats_of(0).reserved_bytes[FL_POOL_ALL].current, 84 * MIB);
    fl_memory_free(small);
    CHECK_OK(fl_memory_empty_cache(0));
    large = alloc(60 * MIB, 0);
    fl_memory_free(large);
    void *middle = alloc(30 * MIB, 0); /* 60 is more than 20 too large */
    CHECK_UINT(stats_of(0).reserved_bytes[FL_POOL_ALL].current, 102 * MIB);
    CHECK_POINTER(alloc(45 * MIB, 0), large); /* whole, not split */
    CHECK_UINT(stats_of(0).allocated_bytes[FL_POOL_ALL].current, (12 + 30 + 60) * MIB);
    fl_memory_free(large);
    fl_memory_free(middle);
    /* The driver has 28 MiB left; the 60 alone are not enough, with the 30 they are. */
    int64_t freed = stats_of(0).num_device_free;
    void *huge = alloc(80 * MIB, 0);
    stats = stats_of(0);
    CHECK_INT(stats.num_alloc_retries, 0);
    CHECK_INT(stats.num_device_free, freed + 2);
    CHECK_UINT(stats.reserved_bytes[FL_POOL_ALL].current, 92 * MIB);
    /* One that is large enough alone is given back alone. */
    fl_memory_free(huge);
    middle = alloc(36 * MIB, 0);
    fl_memory_free(middle);
    huge = alloc(34 * MIB, 0);
    CHECK_POINTER(huge, middle);
    fl_memory_free(huge);
    fl_memory_free(first);
}

TEST(cache, garbage_is_collected_oldest_first) {
    rig_sim("1", "400M");
    CHECK_OK(fl_memory_configure("garbage_collection_threshold:0.5"));
    CHECK_OK(fl_memory_set_fraction(0, 0.5)); /* 200 MiB; collects above 100 */
    void *old = alloc(40 * MIB, 0), *young = alloc(50 * MIB, 0);
    fl_memory_free(old);
    for (int i = 0; i < 100; i++) {
        fl_memory_free(alloc(100, 0));
    }
    fl_memory_free(young);
    fl_memory_free(alloc(60 * MIB, 0)); /* 92 MiB reserved: nothing is collected before it */
    CHECK_INT(stats_of(0).num_device_free, 0);
    void *more = alloc(70 * MIB, 0); /* 152: the oldest goes, which is not enough, then the next */
    fl_memory_stats stats = stats_of(0);
    CHECK_INT(stats.num_device_free, 2);
    CHECK_UINT(stats.reserved_bytes[FL_POOL_LARGE].current, (60 + 70) * MIB);
    CHECK_INT(stats.num_alloc_retries, 0);
    fl_memory_free(more);
}

/* --- statistics ------------------------------------------------------------------------------- */

TEST(cache, peaks_and_totals_are_reset_as_torch_does) {
    rig_sim(NULL, NULL);
    void *a = alloc(4096, 0), *b = alloc(8192, 0);
    fl_memory_free(b);
    fl_stat bytes = stats_of(0).allocated_bytes[FL_POOL_ALL];
    CHECK_INT(bytes.current, 4096);
    CHECK_INT(bytes.peak, 12288);
    CHECK_INT(bytes.allocated, 12288);
    CHECK_INT(bytes.freed, 8192);
    CHECK_OK(fl_memory_reset_peak_stats(0));
    bytes = stats_of(0).allocated_bytes[FL_POOL_ALL];
    CHECK_INT(bytes.current, 4096);
    CHECK_INT(bytes.peak, 4096);
    CHECK_INT(bytes.allocated, 12288);
    CHECK_OK(fl_memory_reset_accumulated_stats(0));
    bytes = stats_of(0).allocated_bytes[FL_POOL_ALL];
    CHECK_INT(bytes.current, 4096);
    CHECK_INT(bytes.allocated, 0);
    CHECK_INT(bytes.freed, 0);
    CHECK_INT(stats_of(0).num_device_alloc, 0);
    fl_memory_free(a);
    CHECK_INT(stats_of(0).allocated_bytes[FL_POOL_ALL].freed, 4096);
    CHECK_INT(stats_of(0).allocated_bytes[FL_POOL_LARGE].allocated, 0);
}

TEST(cache, questions_before_the_first_allocation_have_answers) {
    rig_sim("2", NULL);
    CHECK_INT(stats_of(1).allocation[FL_POOL_ALL].current, 0);
    CHECK_INT(stats_of(FL_DEVICE_CURRENT).max_split_size, -1);
    CHECK_OK(fl_memory_reset_peak_stats(1));
    CHECK_OK(fl_memory_reset_accumulated_stats(1));
    CHECK_OK(fl_memory_empty_cache(-1));
    fl_memory_stats stats;
    CHECK_STATUS(fl_memory_get_stats(2, &stats), FL_OUT_OF_RANGE);
    CHECK_STATUS(fl_memory_empty_cache(2), FL_OUT_OF_RANGE);
}

/* --- lookups, snapshot, history --------------------------------------------------------------- */

TEST(cache, pointers_are_found_inside_live_blocks_only) {
    rig_sim("2", NULL);
    char *a = alloc(4096, 0);
    void *other;
    CHECK_OK(fl_memory_alloc(1, 1000, 0, &other));
    fl_device device = -1;
    CHECK_OK(fl_memory_device_of(a + 4095, &device));
    CHECK_INT(device, 0);
    CHECK_OK(fl_memory_device_of(other, &device));
    CHECK_INT(device, 1);
    CHECK_STATUS(fl_memory_device_of(a + 4096, &device), FL_NOT_FOUND);
    CHECK_STATUS(fl_memory_device_of(&device, &device), FL_NOT_FOUND);
    fl_pointer_info info;
    fl_pointer_lookup(a + 17, &info);
    CHECK_INT(info.kind, FL_POINTER_DEVICE);
    CHECK_POINTER(info.base, a);
    CHECK_UINT(info.size, 4096);
    fl_memory_free(a);
    fl_pointer_lookup(a + 17, &info);
    CHECK_INT(info.kind, FL_POINTER_UNKNOWN);
    CHECK_POINTER(info.base, NULL);
    fl_memory_free(other);
}

typedef struct seen {
    int segments;
    fl_segment_info last;
    fl_block_info blocks[8];
    uintptr_t address;
} seen;

static void see_segment(void *user, const fl_segment_info *segment) {
    seen *all = user;
    CHECK((uintptr_t)segment->address > all->address);
    all->address = (uintptr_t)segment->address;
    all->segments++;
    if (segment->device == 0 && !segment->is_large) {
        all->last = *segment;
        memcpy(all->blocks, segment->blocks, segment->block_count * sizeof(segment->blocks[0]));
    }
    fl_memory_stats stats; /* no lock is held */
    CHECK_OK(fl_memory_get_stats(0, &stats));
}

TEST(cache, a_snapshot_shows_every_block) {
    rig_sim(NULL, NULL);
    fl_stream other = new_stream(0);
    char *a = alloc(1000, 0), *b = alloc(4096, 0), *c = alloc(512, 0);
    void *large = alloc(3 * MIB, 0);
    rig_block(0, other);
    CHECK_OK(fl_memory_record_stream(b, other));
    fl_memory_free(b);
    seen all = {.segments = 0};
    CHECK_OK(fl_memory_snapshot(-1, see_segment, &all));
    CHECK_INT(all.segments, 2);
    CHECK_UINT(all.last.total_size, 2 * MIB);
    CHECK_UINT(all.last.allocated_size, 1024 + 512);
    CHECK_UINT(all.last.active_size, 1024 + 4096 + 512);
    CHECK_UINT(all.last.requested_size, 1000 + 4096 + 512);
    CHECK_INT(all.last.block_count, 4);
    CHECK_POINTER(all.blocks[0].address, a);
    CHECK_INT(all.blocks[0].state, FL_BLOCK_IN_USE);
    CHECK_UINT(all.blocks[0].requested_size, 1000);
    CHECK_INT(all.blocks[1].state, FL_BLOCK_WAITING);
    CHECK_POINTER(all.blocks[2].address, c);
    CHECK_INT(all.blocks[3].state, FL_BLOCK_FREE);
    CHECK_UINT(all.blocks[3].requested_size, 0);
    all = (seen){.segments = 0};
    CHECK_OK(fl_memory_snapshot(1, see_segment, &all));
    CHECK_INT(all.segments, 0);
    CHECK_STATUS(fl_memory_snapshot(9, see_segment, &all), FL_OUT_OF_RANGE);
    rig_release();
    fl_memory_free(large);
}

typedef struct story {
    char text[256];
    uint64_t time_ns;
} story;

static void tell(void *user, const fl_memory_event *event) {
    story *all = user;
    CHECK(event->time_ns >= all->time_ns);
    all->time_ns = event->time_ns;
    size_t used = strlen(all->text);
    CHECK(used + 60 < sizeof(all->text));
    (void)snprintf(all->text + used, 60, "%s %d;", fl_memory_action_word(event->action),
                   (int)event->size);
}

TEST(cache, the_history_keeps_the_last_events) {
    rig_sim("1", "64M");
    CHECK_OK(fl_memory_history_enable(100));
    void *a = alloc(1000, 0);
    CHECK_OK(fl_memory_record_stream(a, new_stream(0)));
    fl_memory_free(a);
    CHECK_OK(fl_device_synchronize(0));
    CHECK_OK(fl_memory_empty_cache(0));
    CHECK_STATUS(fl_memory_alloc(0, 100 * MIB, 0, &a), FL_OUT_OF_MEMORY);
    story all = {.text = ""};
    CHECK_OK(fl_memory_history(-1, tell, &all));
    CHECK_STRING(all.text, "segment_alloc 2097152;alloc 1000;record_stream 1000;"
                           "free_requested 1000;free_completed 1000;segment_free 2097152;"
                           "oom 104857600;");
    CHECK_OK(fl_memory_history_enable(3));
    for (int i = 1; i < 5; i++) {
        fl_memory_free(alloc((size_t)i, 0));
    }
    all = (story){.text = ""};
    CHECK_OK(fl_memory_history(0, tell, &all));
    CHECK_STRING(all.text, "alloc 4;free_requested 4;free_completed 4;");
    CHECK_OK(fl_memory_history_enable(0));
    all = (story){.text = ""};
    CHECK_OK(fl_memory_history(0, tell, &all));
    CHECK_STRING(all.text, "");
    CHECK_STRING(fl_memory_action_word(FL_MEMORY_ACTION_COUNT), "unknown");
}

/* --- poison, fork, misuse --------------------------------------------------------------------- */

TEST(cache, freed_blocks_are_poisoned_on_demand) {
    rig_sim(NULL, NULL);
    fl_memory_set_poison(true);
    unsigned char *a = alloc(1024, 0);
    fl_native_stream native;
    CHECK_OK(fl_stream_native(0, 0, &native));
    const fl_driver *driver = fl_platform_driver();
    CHECK_OK(fl__drv_fill(driver, 0, a, 7, 1024, native));
    fl_memory_free(a);
    CHECK_POINTER(alloc(1024, 0), a);
    unsigned char seen_bytes[1024], wanted[1024];
    memset(wanted, 0xFF, sizeof(wanted));
    CHECK_OK(fl__drv_copy(driver, 0, seen_bytes, a, 1024, FL_COPY_DEVICE_TO_HOST, native));
    CHECK_OK(fl_device_synchronize(0));
    CHECK_BYTES(seen_bytes, wanted, 1024);
    fl_memory_set_poison(false);
}

static void in_child(void *argument) {
    void *live = argument, *ptr;
    fl_memory_stats stats;
    fl_pointer_info info;
    CHECK_STATUS(fl_memory_alloc(0, 100, 0, &ptr), FL_BAD_FORK);
    CHECK_STATUS(fl_memory_record_stream(live, 0), FL_BAD_FORK);
    CHECK_STATUS(fl_memory_empty_cache(-1), FL_BAD_FORK);
    CHECK_STATUS(fl_memory_get_stats(0, &stats), FL_BAD_FORK);
    CHECK_STATUS(fl_memory_check(0), FL_BAD_FORK);
    fl_pointer_lookup(live, &info);
    CHECK_INT(info.kind, FL_POINTER_UNKNOWN);
    fl_memory_free(live); /* in silence */
}

TEST(cache, a_forked_child_gets_errors_even_while_locks_are_held) {
    rig_sim(NULL, NULL);
    void *ptr = alloc(1000, 0);
    fl__cache *cache = fl__cache_peek(0);
    fl__lock(&cache->mutex); /* as if another thread were inside at the fork */
    CHECK_INT(test_crash_of(in_child, ptr), 0);
    fl__unlock(&cache->mutex);
    fl_memory_free(ptr);
}

TEST(cache, a_pointer_that_is_not_ours_is_ignored_in_release) {
    rig_sim(NULL, NULL);
    int local;
    void *ptr = alloc(1000, 0);
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "0"));
    fl_memory_free(&local);
    fl_memory_free(ptr);
    fl_memory_free(ptr);
    CHECK_INT(stats_of(0).allocation[FL_POOL_ALL].current, 0);
}

static void free_what_is_not_ours(void *argument) {
    rig_sim(NULL, NULL);
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "1"));
    fl_memory_free(argument);
}

TEST(cache, a_pointer_that_is_not_ours_is_a_bug_in_debug_builds) {
    int local;
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "1"));
    if (fl_debug_level() < 1) {
        test_skip("built without assertions");
    }
    CHECK_INT(test_crash_of(free_what_is_not_ours, &local), SIGABRT);
}

TEST(cache, damage_is_found_and_named) {
    rig_sim(NULL, NULL);
    void *a = alloc(4096, 0), *b = alloc(4096, 0);
    fl__cache *cache = fl__cache_peek(0);
    fl__block *block = fl__table_find(&cache->table, a);
    CHECK(block && block->next && block->next->ptr == (char *)b);
#define DAMAGED(change, repair, words)                 \
    do {                                               \
        change;                                        \
        CHECK_STATUS(fl_memory_check(0), FL_INTERNAL); \
        CHECK_CONTAINS(fl_last_message(), words);      \
        repair;                                        \
        CHECK_OK(fl_memory_check(0));                  \
    } while (0)
    DAMAGED(block->size += 512, block->size -= 512, "1: ");
    DAMAGED(block->size += 1, block->size -= 1, "1: ");
    DAMAGED(block->segment->base++, block->segment->base--, "1: ");
    DAMAGED(block->segment->size += 512, block->segment->size -= 512, "1: ");
    DAMAGED(block->state = FL__BLOCK_WAITING, block->state = FL__BLOCK_IN_USE, "5: ");
    DAMAGED(block->state = FL__BLOCK_LEAVING, block->state = FL__BLOCK_IN_USE, "6: ");
    DAMAGED(block->state = FL__BLOCK_FREE, block->state = FL__BLOCK_IN_USE, "3: ");
    DAMAGED(block->waiter.pending++, block->waiter.pending--, "5: ");
    DAMAGED(block->requested++, block->requested--, "7: ");
    DAMAGED(cache->table.used++, cache->table.used--, "4: ");
    DAMAGED(cache->homes->bins[FL_POOL_SMALL].summary ^= 1,
            cache->homes->bins[FL_POOL_SMALL].summary ^= 1, "3: ");
    DAMAGED(cache->homes->bins[FL_POOL_SMALL].map[0] ^= 2,
            cache->homes->bins[FL_POOL_SMALL].map[0] ^= 2, "3: ");
    DAMAGED(cache->stats.reserved_bytes[0].current++, cache->stats.reserved_bytes[0].current--,
            "7: ");
    DAMAGED(cache->stats.allocation[1].current++, cache->stats.allocation[1].current--, "7: ");
    DAMAGED(cache->stats.active[2].current++, cache->stats.active[2].current--, "7: ");
    DAMAGED(cache->stats.inactive_split[0].current++, cache->stats.inactive_split[0].current--,
            "7: ");
    fl_memory_free(a);
    block->next->state = FL__BLOCK_FREE;
    CHECK_STATUS(fl_memory_check(0), FL_INTERNAL);
    CHECK_CONTAINS(fl_last_message(), "2: ");
    block->next->state = FL__BLOCK_IN_USE;
    fl_memory_free(b);
}
