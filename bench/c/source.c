/*
 * source.c: the core's device cache as a source, and sources out of libraries. Must not know what
 * is measured.
 */
#include "source.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fl/debug.h"
#include "fl/memory.h"

static fl_stream streams[SOURCE_STREAMS_MOST];

void source_die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void must(fl_status status, const char *what) {
    if (status) {
        source_die(what, fl_last_message());
    }
}

/* --- the core's --------------------------------------------------------------------------------
 */

static void ours_prepare(int count) {
    for (int i = 1; i < count; i++) {
        if (!streams[i]) {
            must(fl_stream_create(0, 0, &streams[i]), "creating a stream");
        }
    }
}

static void *ours_take(size_t bytes, int stream) {
    void *ptr = NULL;
    must(fl_memory_alloc(0, bytes, streams[stream], &ptr), "allocating");
    return ptr;
}

static void ours_record(void *ptr, int stream) {
    must(fl_memory_record_stream(ptr, streams[stream]), "recording a stream");
}

static void ours_empty(void) {
    must(fl_memory_empty_cache(0), "emptying the cache");
}

static void ours_restart(void) {
    must(fl_memory_reset_peak_stats(0), "resetting peaks");
    must(fl_memory_reset_accumulated_stats(0), "resetting counters");
}

static void ours_read(source_peaks *out) {
    fl_memory_stats stats;
    must(fl_memory_get_stats(0, &stats), "reading statistics");
    *out = (source_peaks){
        .allocated = (uint64_t)stats.allocated_bytes[FL_POOL_ALL].peak,
        .reserved = (uint64_t)stats.reserved_bytes[FL_POOL_ALL].peak,
        .segments = stats.num_device_alloc,
        .retries = stats.num_alloc_retries,
    };
}

static void ours_check(void) {
    must(fl_memory_check(0), "walking the cache");
}

static const source ours = {
    .name = "device cache",
    .prepare = ours_prepare,
    .take = ours_take,
    .give = fl_memory_free,
    .record = ours_record,
    .empty = ours_empty,
    .restart = ours_restart,
    .read = ours_read,
    .check = ours_check,
};

const source *source_ours(const char *name) {
    const fl_platform *platform;
    /* Memory is not touched, so simulated devices may have more of it than the machine. */
    if (strcmp(name, "sim") == 0 && !fl_option_is_set(FL_OPT_SIM_MEMORY)) {
        must(fl_option_set(FL_OPT_SIM_MEMORY, "192G"), "option");
    }
    must(fl_platform_choose(name, &platform), "platform");
    must(fl_device_init(), "platform");
    return &ours;
}

/* --- another's ---------------------------------------------------------------------------------
 */

const source *source_open(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    source_entry *entry = NULL;
    if (!library) {
        source_die(path, dlerror());
    }
    void *symbol = dlsym(library, SOURCE_ENTRY);
    if (!symbol) {
        source_die(path, "has no " SOURCE_ENTRY);
    }
    memcpy(&entry, &symbol, sizeof(entry)); /* C has no cast from an object to a function. */
    return entry();
}
