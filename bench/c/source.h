/*
 * source.h: what alloc.c and replay.c take memory from: the core, or a library that is named.
 *
 * A library answers fl_bench_source with its table, so that another allocator can be measured in
 * the same process, in turns, without this program knowing it. Must not know any allocator.
 */
#ifndef FL_BENCH_SOURCE_H
#define FL_BENCH_SOURCE_H

#include <stddef.h>
#include <stdint.h>

enum { SOURCE_STREAMS_MOST = 64 };

typedef struct source_peaks {
    uint64_t allocated, reserved; /* Bytes, the most since `restart`; rounding included. */
    int64_t segments, retries;    /* Calls for the driver's memory, and those that had to free. */
} source_peaks;

/* Device 0. A call that fails says why and ends the process. Streams are numbers below the count
 * that `prepare` was told; 0 is the default one. */
typedef struct source {
    const char *name;
    void (*prepare)(int streams);
    void *(*take)(size_t bytes, int stream);
    void (*give)(void *ptr);
    void (*record)(void *ptr, int stream); /* Another stream uses the block. */
    void (*empty)(void);                   /* Give the cache back to the driver. */
    void (*restart)(void);                 /* Count peaks from here. */
    void (*read)(source_peaks *out);
    void (*check)(void); /* Walk all structures; NULL where that cannot be asked for. */
} source;

/* What a library exports under this name. */
typedef const source *source_entry(void);
#define SOURCE_ENTRY "fl_bench_source"

/* --- of this program, not of libraries ---------------------------------------------------------
 */

/* The core's device cache, on the platform of that name, which is chosen here. */
const source *source_ours(const char *platform);
/* The table of a library; ends the process where it cannot be had. */
const source *source_open(const char *path);
void source_die(const char *what, const char *why);

#endif
