/*
 * malloc_source.c: malloc as a source, out of a library: what alloc.c and replay.c can be compared
 * with on any machine. It caches nothing, so its peaks are what is live. One thread at a time
 * counts.
 */
#include "source.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static source_peaks peaks;
static uint64_t live;

static void prepare(int streams) {
    (void)streams;
}

static void *take(size_t bytes, int stream) {
    (void)stream;
    void *ptr = malloc(bytes ? bytes : 1);
    if (!ptr) {
        abort();
    }
    live += malloc_usable_size(ptr);
    if (live > peaks.allocated) {
        peaks.allocated = peaks.reserved = live;
    }
    peaks.segments++;
    return ptr;
}

static void give(void *ptr) {
    live -= malloc_usable_size(ptr);
    free(ptr);
}

static void record(void *ptr, int stream) {
    (void)ptr;
    (void)stream;
}

static void nothing(void) {}

static void restart(void) {
    memset(&peaks, 0, sizeof(peaks));
    peaks.allocated = peaks.reserved = live;
}

static void read_peaks(source_peaks *out) {
    *out = peaks;
}

const source *fl_bench_source(void);

const source *fl_bench_source(void) {
    static const source table = {
        .name = "malloc",
        .prepare = prepare,
        .take = take,
        .give = give,
        .record = record,
        .empty = nothing,
        .restart = restart,
        .read = read_peaks,
    };
    return &table;
}
