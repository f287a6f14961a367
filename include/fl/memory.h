/*
 * memory.h: device memory of platforms without a twin, ordered by streams.
 *
 * A block belongs to the stream it was allocated on: freeing and reusing it there needs no wait.
 * Another stream that used it must be recorded before the free. Statistics have the meaning of
 * torch.cuda's. Everything may be called from any thread; no callback runs under a lock.
 */
#ifndef FL_MEMORY_H
#define FL_MEMORY_H

#include "fl/stream.h"

FL_EXTERN_C_BEGIN

/* `bytes` 0 gives NULL. On FL_OUT_OF_MEMORY the message holds what was asked, free, total,
 * allocated and reserved, and which option may help; nothing has changed. */
FL_API fl_status fl_memory_alloc(fl_device device, size_t bytes, fl_stream stream, void **out_ptr);

/* NULL is allowed. Never fails: a pointer that is not ours is ignored in release and asserted on in
 * debug builds. Safe at exit, when the driver may be gone. */
FL_API void fl_memory_free(void *ptr);

/* Before the block is reused, work queued on `stream` so far (at the time of the free) must end. */
FL_API fl_status fl_memory_record_stream(void *ptr, fl_stream stream);

/* Device of a pointer inside a live block; FL_NOT_FOUND for anything else. */
FL_API fl_status fl_memory_device_of(const void *ptr, fl_device *out_device);

/* Give unused blocks back to the driver; FL_DEVICE_CURRENT is not accepted, -1 means all devices.
 */
FL_API fl_status fl_memory_empty_cache(fl_device device);

typedef struct fl_stat {
    int64_t current, peak, allocated, freed; /* The four leaves of torch.cuda's statistics tree. */
} fl_stat;

/* Index of the pool dimension. */
enum { FL_POOL_ALL, FL_POOL_SMALL, FL_POOL_LARGE, FL_POOL_COUNT };

typedef struct fl_memory_stats {
    fl_stat allocation[FL_POOL_COUNT];      /* number of live blocks asked for by users */
    fl_stat segment[FL_POOL_COUNT];         /* number of blocks taken from the driver */
    fl_stat active[FL_POOL_COUNT];          /* live or waiting for events */
    fl_stat inactive_split[FL_POOL_COUNT];  /* free pieces of a split segment */
    fl_stat allocated_bytes[FL_POOL_COUNT]; /* rounded size of live blocks */
    fl_stat reserved_bytes[FL_POOL_COUNT];  /* taken from the driver */
    fl_stat active_bytes[FL_POOL_COUNT];
    fl_stat inactive_split_bytes[FL_POOL_COUNT];
    fl_stat requested_bytes[FL_POOL_COUNT]; /* as users asked, not rounded */
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size; /* bytes; -1: no limit */
    fl_stat oversize_allocations, oversize_segments;
} fl_memory_stats;

FL_API fl_status fl_memory_get_stats(fl_device device, fl_memory_stats *out_stats);
FL_API fl_status fl_memory_reset_peak_stats(fl_device device);
FL_API fl_status fl_memory_reset_accumulated_stats(fl_device device);

/* Upper bound as a share of the device's memory, 0 < fraction <= 1. */
FL_API fl_status fl_memory_set_fraction(fl_device device, double fraction);
FL_API fl_status fl_memory_get_fraction(fl_device device, double *out_fraction);

FL_EXTERN_C_END
#endif
