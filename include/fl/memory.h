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

/* --- settings ----------------------------------------------------------------------------------
 */

/* Intervals of roundup_power2_divisions: sizes below 2 MiB, then one for each doubling, the last
 * one for 32 GiB and all above. */
#define FL_MEMORY_ROUNDUP_INTERVALS 16

/* What PYTORCH_ALLOC_CONF says; sizes are bytes. One set for all devices. */
typedef struct fl_memory_settings {
    size_t max_split_size;               /* SIZE_MAX: every block may be split */
    size_t max_non_split_rounding;       /* how much too large an unsplittable block may be */
    size_t large_segment_size;           /* medium requests share segments of this size */
    double garbage_collection_threshold; /* 0: off; else a share of the fraction limit */
    uint32_t roundup_power2_divisions[FL_MEMORY_ROUNDUP_INTERVALS]; /* 0: off */
    double per_process_memory_fraction; /* 0: not said; else as fl_memory_set_fraction */
    char ignored[256]; /* keys that PyTorch knows and nothing here can serve, comma separated */
} fl_memory_settings;

/* Read settings in the grammar of PYTORCH_ALLOC_CONF ("key:value,key:[a:b,c:d]") and put them in
 * force for later allocations. Keys that are not named go back to their defaults. A key that
 * PyTorch does not know, or a wrong value, is FL_INVALID_ARGUMENT and changes nothing; a key that
 * it knows and this allocator cannot serve is listed in `ignored`. The first allocation reads the
 * option of that name unless this was called before. */
FL_API fl_status fl_memory_configure(const char *settings);
FL_API void fl_memory_get_settings(fl_memory_settings *out_settings);

/* --- what is where ------------------------------------------------------------------------------
 */

typedef enum fl_pointer_kind {
    FL_POINTER_UNKNOWN = 0, /* Not memory of this library: pageable host memory, or foreign. */
    FL_POINTER_DEVICE,
    FL_POINTER_PINNED,
} fl_pointer_kind;

typedef struct fl_pointer_info {
    fl_pointer_kind kind;
    fl_device device; /* Of device memory; -1 otherwise. */
    void *base;       /* Start of the live block that holds the pointer; NULL if unknown. */
    size_t size;      /* Bytes of that block, rounding included. */
    fl_stream stream; /* The block's own stream; 0 for pinned memory. */
} fl_pointer_info;

/* Interior pointers count. Answers for live blocks only. Never fails. */
FL_API void fl_pointer_lookup(const void *ptr, fl_pointer_info *out_info);

typedef enum fl_block_state {
    FL_BLOCK_FREE = 0,    /* torch: inactive */
    FL_BLOCK_IN_USE = 1,  /* torch: active_allocated */
    FL_BLOCK_WAITING = 2, /* torch: active_awaiting_free, until events of other streams have run */
} fl_block_state;

typedef struct fl_block_info {
    void *address;
    size_t size;
    size_t requested_size; /* 0 for a free block */
    fl_block_state state;
} fl_block_info;

typedef struct fl_segment_info {
    fl_device device;
    fl_stream stream;
    void *address;
    size_t total_size, allocated_size, active_size, requested_size;
    bool is_large; /* of the large pool */
    uint32_t block_count;
    const fl_block_info *blocks; /* in the order of their addresses; valid during the visit */
} fl_segment_info;

/* One call of `visit` a segment, ordered by address; -1 stands for every device. The picture was
 * taken before the first visit and no lock is held during it. */
FL_API fl_status fl_memory_snapshot(fl_device device,
                                    void (*visit)(void *user, const fl_segment_info *segment),
                                    void *user);

/* --- history ------------------------------------------------------------------------------------
 */

/* word in torch's traces */
#define FL_MEMORY_ACTION_LIST(X)        \
    X(ALLOC, "alloc")                   \
    X(FREE_REQUESTED, "free_requested") \
    X(FREE_COMPLETED, "free_completed") \
    X(SEGMENT_ALLOC, "segment_alloc")   \
    X(SEGMENT_FREE, "segment_free")     \
    X(OOM, "oom")                       \
    X(RECORD_STREAM, "record_stream") /* Ours: lets a replay tell who shared a block. */

typedef enum fl_memory_action {
#define FL_MEMORY_ACTION_ENUM(name, word) FL_MEMORY_ACTION_##name,
    FL_MEMORY_ACTION_LIST(FL_MEMORY_ACTION_ENUM)
#undef FL_MEMORY_ACTION_ENUM
        FL_MEMORY_ACTION_COUNT
} fl_memory_action;

FL_API const char *fl_memory_action_word(fl_memory_action action);

typedef struct fl_memory_event {
    fl_memory_action action;
    fl_device device;
    fl_stream stream; /* The block's, or the recorded one. */
    uint64_t address; /* Of OOM: free bytes that the driver reported. */
    uint64_t size;    /* Bytes: as asked for ALLOC, OOM and frees; whole segments otherwise. */
    uint64_t time_ns; /* CLOCK_REALTIME. */
} fl_memory_event;

/* Keep the last `max_entries` events of each device from now on, forgetting older ones; 0 stops and
 * gives the memory back. */
FL_API fl_status fl_memory_history_enable(size_t max_entries);
/* Oldest first; no lock is held during a visit. -1 stands for every device, one after another. */
FL_API fl_status fl_memory_history(fl_device device,
                                   void (*visit)(void *user, const fl_memory_event *event),
                                   void *user);

/* --- checks -------------------------------------------------------------------------------------
 */

/* Fill freed blocks with 0xFF (a NaN in every floating dtype), in stream order, so that a use after
 * free shows. Also on with the option that the documentation names. */
FL_API void fl_memory_set_poison(bool on);

/* Walk every structure and compare it with the statistics: FL_INTERNAL names the first sentence of
 * src/memory/block.h that does not hold. */
FL_API fl_status fl_memory_check(fl_device device);

FL_EXTERN_C_END
#endif
