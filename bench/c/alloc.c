/*
 * alloc.c: what allocating and freeing device memory costs.
 *
 * alloc [platform [pairs]]: platform `cpu` unless one is named, a million pairs a case. Prints
 * processor nanoseconds a pair of alloc and free, the best of five rounds, beside malloc and free
 * of the same sizes. Memory is not touched.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fl/debug.h"
#include "fl/memory.h"
#include "fl/pinned.h"

enum { ROUNDS = 5, LIVE = 256, THREADS_MOST = 16 };

static long pairs = 1000000;

#define MUST(call)                                                              \
    do {                                                                        \
        fl_status must_status = (call);                                         \
        if (must_status) {                                                      \
            fprintf(stderr, "%s: %s: %s\n", #call, fl_status_name(must_status), \
                    fl_last_message());                                         \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* Time of the processor, so that neighbours on the machine count less; for threads it is of all. */
static double now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The memory under test. */
typedef struct source {
    const char *name;
    void *(*take)(size_t bytes);
    void (*give)(void *ptr);
} source;

static void *take_device(size_t bytes) {
    void *ptr;
    MUST(fl_memory_alloc(0, bytes, 0, &ptr));
    return ptr;
}

static void *take_pinned(size_t bytes) {
    void *ptr;
    MUST(fl_pinned_alloc(bytes, &ptr));
    return ptr;
}

static const source sources[] = {
    {"device cache", take_device, fl_memory_free},
    {"pinned cache", take_pinned, fl_pinned_free},
    {"malloc", malloc, free},
};

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* --- cases: nanoseconds a pair -----------------------------------------------------------------
 */

/* One block again and again: the temporary of an operator. */
static double same_size(const source *from, size_t bytes) {
    double start = now_ns();
    for (long i = 0; i < pairs; i++) {
        from->give(from->take(bytes));
    }
    return (now_ns() - start) / (double)pairs;
}

static double small(const source *from) {
    return same_size(from, 4096);
}

static double large(const source *from) {
    return same_size(from, (size_t)24 << 20);
}

/* Many live blocks of mixed sizes, replaced in random order: splitting and merging all the time. */
static double mixed(const source *from) {
    static void *live[LIVE];
    static size_t sizes[1024];
    uint64_t seed = 42;
    for (int i = 0; i < 1024; i++) {
        size_t most = (size_t)1 << (9 + next_random(&seed) % 15);
        sizes[i] = 1 + next_random(&seed) % most;
    }
    for (int i = 0; i < LIVE; i++) {
        live[i] = from->take(sizes[i]);
    }
    double start = now_ns();
    for (long i = 0; i < pairs; i++) {
        int at = (int)(next_random(&seed) % LIVE);
        from->give(live[at]);
        live[at] = from->take(sizes[i & 1023]);
    }
    double spent = now_ns() - start;
    for (int i = 0; i < LIVE; i++) {
        from->give(live[i]);
    }
    return spent / (double)pairs;
}

/* A forward pass and its backward: a stack of 64 blocks that grows and shrinks. */
static double stack(const source *from) {
    void *live[64];
    double start = now_ns();
    for (long i = 0; i < pairs / 64; i++) {
        for (int j = 0; j < 64; j++) {
            live[j] = from->take((size_t)(1 + j) * 1000);
        }
        for (int j = 63; j >= 0; j--) {
            from->give(live[j]);
        }
    }
    return (now_ns() - start) / (double)(pairs / 64 * 64);
}

typedef struct crowd {
    const source *from;
    pthread_t thread;
} crowd;

static void *run_small(void *argument) {
    (void)small(((crowd *)argument)->from);
    return NULL;
}

/* Four threads at once; nanoseconds a pair of all of them together. */
static double threads(const source *from) {
    crowd all[4];
    double start = now_ns();
    for (int i = 0; i < 4; i++) {
        all[i].from = from;
        if (pthread_create(&all[i].thread, NULL, run_small, &all[i])) {
            exit(1);
        }
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(all[i].thread, NULL);
    }
    return (now_ns() - start) / (double)(4 * pairs);
}

static const struct {
    const char *name;
    double (*run)(const source *from);
} cases[] = {
    {"4 KiB, one at a time", small},  {"24 MiB, one at a time", large},
    {"mixed sizes, 256 live", mixed}, {"stack of 64", stack},
    {"4 KiB, four threads", threads},
};

int main(int argc, char **argv) {
    const fl_platform *platform;
    pairs = argc > 2 ? atol(argv[2]) : pairs;
    MUST(fl_platform_choose(argc > 1 ? argv[1] : "cpu", &platform));
    MUST(fl_device_init());
    printf("platform %s, %ld pairs, best of %d rounds; ns a pair of alloc and free\n",
           platform->name, pairs, ROUNDS);
    printf("%-24s", "");
    for (size_t s = 0; s < sizeof(sources) / sizeof(sources[0]); s++) {
        printf("%14s", sources[s].name);
    }
    printf("\n");
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        printf("%-24s", cases[c].name);
        for (size_t s = 0; s < sizeof(sources) / sizeof(sources[0]); s++) {
            double best = 1e300;
            for (int round = 0; round < ROUNDS; round++) {
                double spent = cases[c].run(&sources[s]);
                best = spent < best ? spent : best;
            }
            printf("%14.1f", best);
        }
        printf("\n");
    }
    return 0;
}
