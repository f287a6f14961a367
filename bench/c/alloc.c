/*
 * alloc.c: what allocating and freeing device memory costs.
 *
 * alloc [-p platform] [-n pairs] [-r rounds] [-s library] [-l log]: platform `cpu` unless one is
 * named, a million pairs a case, five rounds. Prints processor nanoseconds a pair of alloc and
 * free, the best of the rounds, beside malloc and free of the same sizes; with -s beside the
 * source of that library (source.h) instead. The sources take turns in each round. -l adds a line
 * of JSON a figure to a file. Memory is not touched.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fl/debug.h"
#include "fl/pinned.h"
#include "source.h"

enum { LIVE = 256, SOURCES_MOST = 3 };

static long pairs = 1000000;
static int rounds = 5;

/* Time of the processor, so that neighbours on the machine count less; for threads it is of all. */
static double now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *take_pinned(size_t bytes, int stream) {
    void *ptr;
    (void)stream;
    if (fl_pinned_alloc(bytes, &ptr)) {
        source_die("pinned memory", fl_last_message());
    }
    return ptr;
}

static void *take_plain(size_t bytes, int stream) {
    (void)stream;
    return malloc(bytes);
}

/* Of these only the two functions that the cases call are needed. */
static const source pinned = {.name = "pinned cache", .take = take_pinned, .give = fl_pinned_free};
static const source plain = {.name = "malloc", .take = take_plain, .give = free};

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
        from->give(from->take(bytes, 0));
    }
    return (now_ns() - start) / (double)pairs;
}

static double tiny(const source *from) {
    return same_size(from, 512);
}

static double small(const source *from) {
    return same_size(from, 4096);
}

static double middle(const source *from) {
    return same_size(from, (size_t)2 << 20);
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
        live[i] = from->take(sizes[i], 0);
    }
    double start = now_ns();
    for (long i = 0; i < pairs; i++) {
        int at = (int)(next_random(&seed) % LIVE);
        from->give(live[at]);
        live[at] = from->take(sizes[i & 1023], 0);
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
            live[j] = from->take((size_t)(1 + j) * 1000, 0);
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
    {"512 B, one at a time", tiny},   {"4 KiB, one at a time", small},
    {"2 MiB, one at a time", middle}, {"24 MiB, one at a time", large},
    {"mixed sizes, 256 live", mixed}, {"stack of 64", stack},
    {"4 KiB, four threads", threads},
};

/* All rounds of one case, the sources in turns and the first one changing; the best of each. */
static void measure(size_t which, const source *const *sources, int count, FILE *log,
                    double *best) {
    for (int round = 0; round < rounds; round++) {
        for (int turn = 0; turn < count; turn++) {
            int s = (turn + round) % count;
            double spent = cases[which].run(sources[s]);
            best[s] = round == 0 || spent < best[s] ? spent : best[s];
            if (log) {
                fprintf(log,
                        "{\"case\": \"%s\", \"source\": \"%s\", \"round\": %d, \"ns\": %.2f}\n",
                        cases[which].name, sources[s]->name, round, spent);
            }
        }
    }
}

int main(int argc, char **argv) {
    const char *platform = "cpu", *library = NULL;
    FILE *log = NULL;
    for (int option; (option = getopt(argc, argv, "p:n:r:s:l:")) != -1;) {
        switch (option) {
        case 'p':
            platform = optarg;
            break;
        case 'n':
            pairs = atol(optarg);
            break;
        case 'r':
            rounds = atoi(optarg);
            break;
        case 's':
            library = optarg;
            break;
        case 'l':
            log = fopen(optarg, "a");
            if (!log) {
                source_die(optarg, "cannot be written");
            }
            break;
        default:
            source_die("usage", "see the top of alloc.c");
        }
    }
    const source *sources[SOURCES_MOST];
    int count = 0;
    /* First of all, so that a runtime that both need is the library's. */
    const source *other = library ? source_open(library) : NULL;
    sources[count++] = source_ours(platform);
    if (other) {
        sources[count++] = other;
    } else {
        sources[count++] = &pinned;
        sources[count++] = &plain;
    }
    printf("platform %s, %ld pairs, best of %d rounds; ns a pair of alloc and free\n", platform,
           pairs, rounds);
    printf("%-24s", "");
    for (int s = 0; s < count; s++) {
        printf("%14s", sources[s]->name);
    }
    printf("\n");
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        double best[SOURCES_MOST] = {0};
        measure(c, sources, count, log, best);
        printf("%-24s", cases[c].name);
        for (int s = 0; s < count; s++) {
            printf("%14.1f", best[s]);
        }
        printf("\n");
        (void)fflush(stdout);
    }
    if (log) {
        (void)fclose(log);
    }
    return 0;
}
