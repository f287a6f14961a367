/*
 * stress_cache.c: threads that allocate, share, free, empty and ask at once.
 *
 * stress_cache [threads [rounds [seed]]], 4 threads of 20,000 rounds without arguments. Each thread
 * owns the blocks that it allocates and marks them from the device's side, so that two owners of
 * one block would be seen. With TORCH_FL_DEBUG=3 every operation walks all structures; the thread
 * sanitizer watches the rest.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "fl/debug.h"
#include "fl/memory.h"
#include "fl/pinned.h"

enum { HELD = 40, STREAMS = 3, DEVICES = 2, MARK = 64 };

static fl_stream streams[DEVICES][STREAMS];
static int rounds = 20000;
static uint64_t first_seed = 1;

#define MUST(call)                                                            \
    do {                                                                      \
        fl_status must_status = (call);                                       \
        if (must_status) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
                    fl_status_name(must_status), fl_last_message());          \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

typedef struct held {
    char *ptr;
    size_t bytes;
    fl_device device;
    fl_stream stream;
    unsigned char mark;
    bool is_pinned;
} held;

static void *stream_of(fl_device device, fl_stream stream) {
    fl_native_stream native;
    MUST(fl_stream_native(device, stream, &native));
    return native;
}

/* The first bytes of a block get its owner's mark, in the order of the block's stream. */
static void mark_block(held *block) {
    size_t bytes = block->bytes < MARK ? block->bytes : MARK;
    if (block->is_pinned) {
        memset(block->ptr, block->mark, bytes);
        return;
    }
    MUST(fl__drv_fill(fl_platform_driver(), block->device, block->ptr, block->mark, bytes,
                      stream_of(block->device, block->stream)));
}

static void check_mark(const held *block) {
    unsigned char seen[MARK];
    size_t bytes = block->bytes < MARK ? block->bytes : MARK;
    if (block->is_pinned) {
        memcpy(seen, block->ptr, bytes);
    } else {
        MUST(fl__drv_copy(fl_platform_driver(), block->device, seen, block->ptr, bytes,
                          FL_COPY_DEVICE_TO_HOST, stream_of(block->device, block->stream)));
        MUST(fl_stream_synchronize(block->device, block->stream));
    }
    for (size_t i = 0; i < bytes; i++) {
        if (seen[i] != block->mark) {
            fprintf(stderr, "a block of %zu bytes at %p has two owners: %d instead of %d\n",
                    block->bytes, (void *)block->ptr, seen[i], block->mark);
            exit(1);
        }
    }
}

/* Another stream of the device reads the block, in order behind its own. */
static void share(const held *block, uint64_t *seed) {
    fl_stream other = streams[block->device][next_random(seed) % STREAMS];
    if (block->is_pinned) {
        MUST(fl_pinned_record_stream(block->ptr, block->device, other));
        return;
    }
    fl_event *event;
    MUST(fl_event_create(block->device, 0, &event));
    MUST(fl_event_record(event, block->device, block->stream));
    MUST(fl_event_block(event, block->device, other));
    fl_event_destroy(event);
    MUST(fl_memory_record_stream(block->ptr, other));
}

static void take(held *block, uint64_t *seed, unsigned char mark) {
    *block = (held){.mark = mark};
    block->device = (fl_device)(next_random(seed) % DEVICES);
    block->stream = streams[block->device][next_random(seed) % STREAMS];
    block->is_pinned = next_random(seed) % 5 == 0;
    block->bytes = 1 + next_random(seed) % ((size_t)1 << (4 + next_random(seed) % 19));
    void *ptr;
    if (block->is_pinned) {
        MUST(fl_pinned_alloc(block->bytes, &ptr));
    } else {
        fl_status status = fl_memory_alloc(block->device, block->bytes, block->stream, &ptr);
        if (status == FL_OUT_OF_MEMORY) {
            block->ptr = NULL;
            return;
        }
        MUST(status);
    }
    block->ptr = ptr;
    mark_block(block);
}

static void give(held *block) {
    if (block->is_pinned) {
        fl_pinned_free(block->ptr);
    } else {
        fl_memory_free(block->ptr);
    }
    block->ptr = NULL;
}

static void ask(uint64_t *seed, const held *block) {
    fl_memory_stats stats;
    fl_pinned_stats pinned;
    fl_pointer_info info;
    fl_device device = (fl_device)(next_random(seed) % DEVICES);
    switch (next_random(seed) % 6) {
    case 0:
        MUST(fl_memory_get_stats(device, &stats));
        break;
    case 1:
        fl_pinned_get_stats(&pinned);
        break;
    case 2:
        MUST(fl_memory_check(device));
        break;
    case 3:
        MUST(fl_memory_empty_cache(next_random(seed) % 3 == 0 ? -1 : device));
        break;
    case 4:
        MUST(fl_pinned_empty_cache());
        break;
    default:
        fl_pointer_lookup(block->ptr + block->bytes / 2, &info);
        if (info.base != block->ptr) {
            fprintf(stderr, "a live block was not found\n");
            exit(1);
        }
        break;
    }
}

static void *work(void *argument) {
    unsigned char mark = (unsigned char)(uintptr_t)argument;
    uint64_t seed = first_seed * 1000 + mark;
    held blocks[HELD];
    memset(blocks, 0, sizeof(blocks));
    for (int round = 0; round < rounds; round++) {
        held *block = &blocks[next_random(&seed) % HELD];
        if (!block->ptr) {
            take(block, &seed, mark);
            continue;
        }
        switch (next_random(&seed) % 8) {
        case 0:
            share(block, &seed);
            break;
        case 1:
            check_mark(block);
            break;
        case 2:
            if (next_random(&seed) % 20 == 0) {
                ask(&seed, block);
            }
            break;
        default:
            if (next_random(&seed) % 16 == 0) {
                check_mark(block);
            }
            give(block);
            break;
        }
    }
    for (int i = 0; i < HELD; i++) {
        if (blocks[i].ptr) {
            check_mark(&blocks[i]);
            give(&blocks[i]);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    rounds = argc > 2 ? atoi(argv[2]) : rounds;
    first_seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    const fl_platform *platform;
    MUST(fl_option_set(FL_OPT_SIM_DEVICES, "2"));
    MUST(fl_option_set(FL_OPT_SIM_MEMORY, "64M"));
    MUST(fl_platform_choose("sim", &platform));
    MUST(fl_device_init());
    for (fl_device device = 0; device < DEVICES; device++) {
        for (int i = 1; i < STREAMS; i++) {
            MUST(fl_stream_create(device, 0, &streams[device][i]));
        }
    }
    pthread_t workers[64];
    threads = threads < 1 ? 1 : threads > 64 ? 64 : threads;
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&workers[i], NULL, work, (void *)(uintptr_t)(i + 1))) {
            fprintf(stderr, "no thread\n");
            return 1;
        }
    }
    for (int i = 0; i < threads; i++) {
        (void)pthread_join(workers[i], NULL);
    }
    for (fl_device device = 0; device < DEVICES; device++) {
        MUST(fl_device_synchronize(device));
        MUST(fl_memory_empty_cache(device));
        MUST(fl_memory_check(device));
        fl_memory_stats stats;
        MUST(fl_memory_get_stats(device, &stats));
        if (stats.reserved_bytes[FL_POOL_ALL].current != 0) {
            fprintf(stderr, "device %d keeps %lld bytes\n", device,
                    (long long)stats.reserved_bytes[FL_POOL_ALL].current);
            return 1;
        }
        printf("device %d: %lld allocations, %lld segments, %lld retries, %lld out of memory\n",
               device, (long long)stats.allocation[FL_POOL_ALL].allocated,
               (long long)stats.segment[FL_POOL_ALL].allocated, (long long)stats.num_alloc_retries,
               (long long)stats.num_ooms);
    }
    MUST(fl_pinned_empty_cache());
    MUST(fl_pinned_check());
    fl_pinned_stats pinned;
    fl_pinned_get_stats(&pinned);
    if (pinned.allocations.current != 0) {
        fprintf(stderr, "pinned memory is kept\n");
        return 1;
    }
    printf("stress_cache: ok (%d threads, %d rounds, seed %llu)\n", threads, rounds,
           (unsigned long long)first_seed);
    return 0;
}
