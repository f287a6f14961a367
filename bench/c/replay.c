/*
 * replay.c: a recorded trace of allocations through the device cache, or several caches in turns.
 *
 * replay [-p platform] [-n repeats] [-c] [-s library] [-l log] trace ...
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
 * the recording's own allocator if it is known. -c walks all structures after each event. -s plays
 * it through the source of a library too (source.h), in turns, with a line of its own; -l adds a
 * line of JSON a pass, and one for the peaks, to a file. Streams are numbered from 0, the default
 * one. Memory is not touched, so `sim` may have more of it than the machine.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "source.h"

enum { SOURCES_MOST = 2 };

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

static void add(trace *all, event next) {
    if (all->count == all->room) {
        all->room = all->room ? all->room * 2 : 4096;
        all->events = realloc(all->events, all->room * sizeof(*all->events));
        if (!all->events) {
            source_die("trace", "no memory");
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
    if (used == 0 || word[used] || next.stream < 0 || next.stream >= SOURCE_STREAMS_MOST ||
        next.id > 1u << 26) {
        source_die(path, word);
    }
    return next;
}

static trace read_trace(const char *path) {
    trace all = {.streams = 1};
    char word[128], line[256];
    FILE *file = fopen(path, "r");
    if (!file) {
        source_die(path, "cannot be opened");
    }
    if (!fgets(line, sizeof(line), file) || strcmp(line, "fl-memory-trace 1\n") != 0) {
        source_die(path, "is no trace of version 1");
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

static void play(const source *from, const trace *all, void **blocks, bool check) {
    for (size_t i = 0; i < all->count; i++) {
        const event *next = &all->events[i];
        switch (next->what) {
        case 'a':
            if (blocks[next->id]) {
                source_die("a", "the id is in use");
            }
            blocks[next->id] = from->take(next->bytes, next->stream);
            break;
        case 'f':
            from->give(blocks[next->id]);
            blocks[next->id] = NULL;
            break;
        case 'r':
            from->record(blocks[next->id], next->stream);
            break;
        default:
            from->empty();
            break;
        }
        if (check && from->check) {
            from->check();
        }
    }
    for (uint32_t id = 0; id < all->ids; id++) {
        if (blocks[id]) {
            from->give(blocks[id]);
            blocks[id] = NULL;
        }
    }
}

/* What the passes of one source showed. */
typedef struct result {
    double first, best; /* nanoseconds a pass; 0: there was none */
} result;

static void report(const char *path, const trace *all, const source *from, const result *shown,
                   FILE *log) {
    source_peaks peaks;
    from->read(&peaks);
    if (from->check) {
        from->check();
    }
    double reserved = (double)peaks.reserved, allocated = (double)peaks.allocated;
    printf("%s: %s: %zu events, peak allocated %.1f MiB, peak reserved %.1f MiB, ratio %.4f, "
           "%lld segments, %lld retries, first pass %.0f ns an event",
           path, from->name, all->count, allocated / 1048576, reserved / 1048576,
           allocated > 0 ? reserved / allocated : 1.0, (long long)peaks.segments,
           (long long)peaks.retries, shown->first / (double)all->count);
    if (shown->best > 0) {
        printf(", later %.0f", shown->best / (double)all->count);
    }
    if (all->recorded_reserved) {
        printf(", reserved %.4f of the recording's", reserved / (double)all->recorded_reserved);
    }
    printf("\n");
    if (log) {
        fprintf(log,
                "{\"trace\": \"%s\", \"source\": \"%s\", \"allocated\": %llu, "
                "\"reserved\": %llu, \"segments\": %lld, \"retries\": %lld}\n",
                path, from->name, (unsigned long long)peaks.allocated,
                (unsigned long long)peaks.reserved, (long long)peaks.segments,
                (long long)peaks.retries);
    }
}

static void replay(const char *path, const source *const *sources, int count, int repeats,
                   bool check, FILE *log) {
    trace all = read_trace(path);
    result shown[SOURCES_MOST] = {{0}};
    void **blocks = calloc(all.ids + 1, sizeof(*blocks));
    if (!blocks) {
        source_die(path, "no memory");
    }
    for (int s = 0; s < count; s++) {
        sources[s]->prepare(all.streams);
        sources[s]->empty();
        sources[s]->restart();
    }
    for (int pass = 0; pass < repeats; pass++) {
        for (int turn = 0; turn < count; turn++) {
            int s = (turn + pass) % count;
            double spent = now_ns();
            play(sources[s], &all, blocks, check);
            spent = now_ns() - spent;
            if (pass == 0) {
                shown[s].first = spent;
            } else if (pass == 1 || spent < shown[s].best) {
                shown[s].best = spent;
            }
            if (log) {
                fprintf(log,
                        "{\"trace\": \"%s\", \"source\": \"%s\", \"pass\": %d, "
                        "\"ns\": %.2f}\n",
                        path, sources[s]->name, pass, spent / (double)all.count);
            }
        }
    }
    for (int s = 0; s < count; s++) {
        report(path, &all, sources[s], &shown[s], log);
    }
    free(blocks);
    free(all.events);
}

int main(int argc, char **argv) {
    const char *platform = "sim", *library = NULL;
    FILE *log = NULL;
    int repeats = 5;
    bool check = false;
    for (int option; (option = getopt(argc, argv, "p:n:cs:l:")) != -1;) {
        switch (option) {
        case 'p':
            platform = optarg;
            break;
        case 'n':
            repeats = atoi(optarg);
            break;
        case 'c':
            check = true;
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
            source_die("usage", "see the top of replay.c");
        }
    }
    if (optind >= argc || repeats < 1) {
        source_die("usage",
                   "replay [-p platform] [-n repeats] [-c] [-s library] [-l log] trace ...");
    }
    const source *sources[SOURCES_MOST];
    int count = 0;
    /* First of all, so that a runtime that both need is the library's. */
    const source *other = library ? source_open(library) : NULL;
    sources[count++] = source_ours(platform);
    if (other) {
        sources[count++] = other;
    }
    for (int i = optind; i < argc; i++) {
        replay(argv[i], sources, count, repeats, check, log);
    }
    if (log) {
        (void)fclose(log);
    }
    return 0;
}
