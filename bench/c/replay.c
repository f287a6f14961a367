/*
 * replay.c: a recorded trace of allocations through the device cache.
 *
 * replay [-p platform] [-n repeats] [-c] trace ...
 *
 * A trace is text, made by trace.py from a recording of a real model: a first line, then lines that
 * begin with # and say something about it, then words, as many a line as one likes:
 *
 *     fl-memory-trace 1
 *     # recorded_reserved <bytes>     the peak of the allocator it was recorded on
 *     a<id>:<bytes>[:<stream>]        allocate; ids are numbers, used again after a free
 *     f<id>                           free
 *     r<id>:<stream>                  another stream uses the block
 *     e                               empty the cache
 *
 * Prints the peaks, their ratio (1 is no fragmentation), the time an event takes, and the peak of
 * the recording's own allocator if it is known. -c walks all structures after each event. Streams
 * are numbered from 0, the default one. Memory is not touched, so `sim` may have more of it than
 * the machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fl/debug.h"
#include "fl/memory.h"

enum { STREAMS_MOST = 64 };

typedef struct event {
    char what; /* a, f, r, e */
    uint32_t id;
    int32_t stream;
    uint64_t bytes;
} event;

typedef struct trace {
    event *events;
    size_t count, room;
    uint32_t ids; /* One more than the largest. */
    int32_t streams;
    uint64_t recorded_reserved; /* 0: unknown. */
} trace;

static fl_stream streams[STREAMS_MOST];

static void die(const char *what, const char *why) {
    fprintf(stderr, "replay: %s: %s\n", what, why);
    exit(1);
}

static void must(fl_status status, const char *what) {
    if (status) {
        die(what, fl_last_message());
    }
}

static void add(trace *all, event next) {
    if (all->count == all->room) {
        all->room = all->room ? all->room * 2 : 4096;
        all->events = realloc(all->events, all->room * sizeof(*all->events));
        if (!all->events) {
            die("trace", "no memory");
        }
    }
    all->events[all->count++] = next;
    all->ids = next.id >= all->ids ? next.id + 1 : all->ids;
    all->streams = next.stream >= all->streams ? next.stream + 1 : all->streams;
}

static event parse_word(const char *path, const char *word) {
    event next = {.what = word[0]};
    unsigned long long bytes = 0;
    int used = 0;
    switch (word[0]) {
    case 'a':
        if (sscanf(word, "a%u:%llu%n", &next.id, &bytes, &used) == 2 && word[used] == ':') {
            int more = 0;
            used += sscanf(word + used, ":%d%n", &next.stream, &more) == 1 ? more : 0;
        }
        break;
    case 'f':
        (void)sscanf(word, "f%u%n", &next.id, &used);
        break;
    case 'r':
        (void)sscanf(word, "r%u:%d%n", &next.id, &next.stream, &used);
        break;
    case 'e':
        used = 1;
        break;
    default:
        break;
    }
    next.bytes = bytes;
    if (used == 0 || word[used] || next.stream < 0 || next.stream >= STREAMS_MOST ||
        next.id > 1u << 26) {
        die(path, word);
    }
    return next;
}

static trace read_trace(const char *path) {
    trace all = {.streams = 1};
    char word[128], line[256];
    FILE *file = fopen(path, "r");
    if (!file) {
        die(path, "cannot be opened");
    }
    if (!fgets(line, sizeof(line), file) || strcmp(line, "fl-memory-trace 1\n") != 0) {
        die(path, "is no trace of version 1");
    }
    while (fscanf(file, "%127s", word) == 1) {
        unsigned long long bytes = 0;
        if (word[0] != '#') {
            add(&all, parse_word(path, word));
        } else if (fgets(line, sizeof(line), file) &&
                   sscanf(line, " recorded_reserved %llu", &bytes) == 1) {
            all.recorded_reserved = bytes;
        }
    }
    (void)fclose(file);
    return all;
}

static double now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void play(const trace *all, void **blocks, bool check) {
    for (size_t i = 0; i < all->count; i++) {
        const event *next = &all->events[i];
        switch (next->what) {
        case 'a':
            if (blocks[next->id]) {
                die("a", "the id is in use");
            }
            must(fl_memory_alloc(0, next->bytes, streams[next->stream], &blocks[next->id]), "a");
            break;
        case 'f':
            fl_memory_free(blocks[next->id]);
            blocks[next->id] = NULL;
            break;
        case 'r':
            must(fl_memory_record_stream(blocks[next->id], streams[next->stream]), "r");
            break;
        default:
            must(fl_memory_empty_cache(0), "e");
            break;
        }
        if (check) {
            must(fl_memory_check(0), "check");
        }
    }
    for (uint32_t id = 0; id < all->ids; id++) {
        fl_memory_free(blocks[id]);
        blocks[id] = NULL;
    }
}

static void replay(const char *path, int repeats, bool check) {
    trace all = read_trace(path);
    for (int32_t i = 1; i < all.streams; i++) {
        if (!streams[i]) {
            must(fl_stream_create(0, 0, &streams[i]), "stream");
        }
    }
    void **blocks = calloc(all.ids + 1, sizeof(*blocks));
    if (!blocks) {
        die(path, "no memory");
    }
    must(fl_memory_empty_cache(0), "e");
    must(fl_memory_reset_peak_stats(0), "reset");
    must(fl_memory_reset_accumulated_stats(0), "reset");
    double first = now_ns();
    play(&all, blocks, check);
    first = now_ns() - first;
    double best = 1e300;
    for (int i = 1; i < repeats; i++) {
        double start = now_ns();
        play(&all, blocks, check);
        double spent = now_ns() - start;
        best = spent < best ? spent : best;
    }
    fl_memory_stats stats;
    must(fl_memory_get_stats(0, &stats), "stats");
    must(fl_memory_check(0), "check");
    double reserved = (double)stats.reserved_bytes[FL_POOL_ALL].peak;
    double allocated = (double)stats.allocated_bytes[FL_POOL_ALL].peak;
    printf("%s: %zu events, peak allocated %.1f MiB, peak reserved %.1f MiB, ratio %.4f, "
           "%lld segments, %lld retries, first pass %.0f ns an event",
           path, all.count, allocated / 1048576, reserved / 1048576,
           allocated > 0 ? reserved / allocated : 1.0, (long long)stats.num_device_alloc,
           (long long)stats.num_alloc_retries, first / (double)all.count);
    if (repeats > 1) {
        printf(", later %.0f", best / (double)all.count);
    }
    if (all.recorded_reserved) {
        printf(", reserved %.4f of the recording's", reserved / (double)all.recorded_reserved);
    }
    printf("\n");
    free(blocks);
    free(all.events);
}

int main(int argc, char **argv) {
    const char *name = "sim";
    int repeats = 5, first = 1;
    bool check = false;
    while (first < argc && argv[first][0] == '-') {
        const char *value = first + 1 < argc ? argv[first + 1] : "";
        switch (argv[first][1]) {
        case 'p':
            name = value;
            break;
        case 'n':
            repeats = atoi(value);
            break;
        case 'c':
            check = true;
            first--;
            break;
        default:
            die(argv[first], "is no option; see the top of replay.c");
        }
        first += 2;
    }
    if (first >= argc) {
        die("usage", "replay [-p platform] [-n repeats] [-c] trace ...");
    }
    const fl_platform *platform;
    if (strcmp(name, "sim") == 0 && !fl_option_is_set(FL_OPT_SIM_MEMORY)) {
        must(fl_option_set(FL_OPT_SIM_MEMORY, "192G"), "option");
    }
    must(fl_platform_choose(name, &platform), "platform");
    must(fl_device_init(), "platform");
    for (int i = first; i < argc; i++) {
        replay(argv[i], repeats, check);
    }
    return 0;
}
