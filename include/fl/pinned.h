/*
 * pinned.h: page-locked host memory, cached.
 *
 * Copies between such memory and a device run beside the host. A freed block is reused once the
 * streams that were recorded on it have passed the point of the free. Sizes are rounded up to
 * powers of two. Everything may be called from any thread.
 */
#ifndef FL_PINNED_H
#define FL_PINNED_H

#include "fl/memory.h"

FL_EXTERN_C_BEGIN

/* `bytes` 0 gives NULL. The memory is usable by copies of every device. FL_OUT_OF_MEMORY after
 * unused blocks were given back and a second try failed; nothing has changed then. */
FL_API fl_status fl_pinned_alloc(size_t bytes, void **out_ptr);

/* NULL is allowed. Never fails; a pointer that is not the start of a live block is ignored in
 * release and asserted on in debug builds. Safe at exit. */
FL_API void fl_pinned_free(void *ptr);

/* Work queued on `stream` so far (at the time of the free) must end before the block is reused.
 * `ptr` may lie inside the block. FL_NOT_FOUND for memory that is not ours. */
FL_API fl_status fl_pinned_record_stream(const void *ptr, fl_device device, fl_stream stream);

/* Inside a live block, its end excluded. */
FL_API bool fl_pinned_contains(const void *ptr);

/* Give unused blocks back to the driver. */
FL_API fl_status fl_pinned_empty_cache(void);

/* Sizes are powers of two: bucket i counts blocks of 2^i bytes. */
#define FL_PINNED_BUCKETS 64

typedef struct fl_duration_stat {
    int64_t total, max, min, count; /* microseconds, and how many */
} fl_duration_stat;

/* The fields have the names and the meaning of torch.cuda.host_memory_stats. */
typedef struct fl_pinned_stats {
    fl_stat active_requests; /* blocks in the hands of users or waiting for events */
    fl_stat active_bytes;
    fl_stat allocations; /* blocks taken from the driver */
    fl_stat allocated_bytes;
    fl_duration_stat host_alloc_time, host_free_time;
    int64_t num_host_alloc, num_host_free;
    int64_t bucket_allocation[FL_PINNED_BUCKETS];
} fl_pinned_stats;

FL_API void fl_pinned_get_stats(fl_pinned_stats *out_stats);
FL_API void fl_pinned_reset_peak_stats(void);
FL_API void fl_pinned_reset_accumulated_stats(void);

/* As fl_memory_check, for this cache. */
FL_API fl_status fl_pinned_check(void);

FL_EXTERN_C_END
#endif
