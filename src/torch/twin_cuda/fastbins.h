/*
 * fastbins.h: device blocks that were freed and will soon be asked for again, kept in front of an
 * allocator whose own way of taking and giving is long. (glibc's malloc has the name for such
 * bins.)
 *
 * A kept block serves the next request of its rounded size on its stream. The allocator behind
 * believes that it is in use all the while; the sums here say what really is, with its peaks, so
 * that nobody who asks for statistics can tell. Memory is not hoarded: the caller drains when the
 * allocator has no block that will do, and the large blocks before it asks for a large one, so that
 * the allocator lays those out as it would alone. Knows addresses, sizes and streams as numbers,
 * and neither a driver nor PyTorch. Any thread may call anything.
 */
#ifndef FL_FASTBINS_H
#define FL_FASTBINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FL__FASTBINS_DEVICES = 64,
    FL__FASTBINS_SMALL = 1 << 20, /* Bytes that a small block has at most. */
    FL__FASTBINS_MOST = 32768,    /* Blocks kept of a device at most. */
    FL__FASTBINS_LANES = 8,       /* Streams of a device whose blocks are kept. */
};

/* Pools of PyTorch's statistics. */
typedef enum fl__fastbins_pool {
    FL__POOL_ALL,
    FL__POOL_SMALL,
    FL__POOL_LARGE,
    FL__POOLS,
} fl__fastbins_pool;

typedef enum fl__fastbins_sum {
    FL__SUM_BLOCKS,
    FL__SUM_BYTES,     /* As rounded. */
    FL__SUM_REQUESTED, /* Bytes, as asked for. */
    FL__SUMS,
} fl__fastbins_sum;

typedef int64_t fl__fastbins_sums[FL__POOLS][FL__SUMS];

typedef struct fl__fastbins_stats {
    fl__fastbins_sums current, peak;   /* Of what the program holds. */
    fl__fastbins_sums kept;            /* As the allocator behind was asked for them. */
    fl__fastbins_sums hits;            /* Requests that a kept block served. */
    int64_t requested_more[FL__POOLS]; /* When hits were counted from 0: by holders of blocks than
                                          of the allocator behind. */
} fl__fastbins_stats;

typedef struct fl__fastbins fl__fastbins;

/* NULL without host memory. One that serves an allocator is never destroyed, since blocks may be
 * freed after everything else of the process. */
fl__fastbins *fl__fastbins_create(void);
void fl__fastbins_destroy(fl__fastbins *bins);

/* A kept block for `bytes` (not 0) on `stream`, or NULL: ask the allocator. `large_wait` says
 * whether large blocks of the device are kept, which it is to have before a large one is asked. */
void *fl__fastbins_take(fl__fastbins *bins, int device, uint64_t stream, size_t bytes,
                        bool *large_wait);

/* The allocator gave `pointer` for `bytes`; `behind` is what it says is in use since, and may be
 * NULL for a small block, which is of its rounded size. False: blocks of this device are not kept
 * at present, or there is no host memory; it is then as unknown as one that never was entered. Or
 * `behind` is needed, because the address was that of another block until now. */
bool fl__fastbins_enter(fl__fastbins *bins, int device, uint64_t stream, size_t bytes,
                        void *pointer, const fl__fastbins_sums *behind);

typedef enum fl__fastbins_answer {
    FL__FASTBINS_KEPT,
    FL__FASTBINS_FREE,    /* The caller gives it back to the allocator. */
    FL__FASTBINS_DRAIN,   /* And what is kept of its device too, for there are too many. */
    FL__FASTBINS_FREED,   /* It had been freed before, and waits: the caller is wrong. */
    FL__FASTBINS_UNKNOWN, /* It was not entered: the caller gives it back and observes. */
} fl__fastbins_answer;

/* The program frees `pointer`, entered or not. `out_device` is set for FL__FASTBINS_DRAIN. */
fl__fastbins_answer fl__fastbins_give(fl__fastbins *bins, void *pointer, bool may_keep,
                                      int *out_device);

/* Another stream than the block's uses it besides: it will not be kept. */
void fl__fastbins_record(fl__fastbins *bins, const void *pointer, uint64_t stream);

/* Take out up to `room` kept blocks of a device, for the caller to give back; how many. */
size_t fl__fastbins_drain(fl__fastbins *bins, int device, fl__fastbins_pool pool, void **out,
                          size_t room);

/* While a device is paused more often than resumed nothing of it is taken, entered or kept. To
 * resume what is not paused does nothing. */
void fl__fastbins_pause(fl__fastbins *bins, int device);
void fl__fastbins_resume(fl__fastbins *bins, int device);

/* What the allocator says is in use, the kept blocks included. It may know of blocks that were
 * never entered; the sums here follow it. */
void fl__fastbins_observe(fl__fastbins *bins, int device, const fl__fastbins_sums behind);
/* The same before the first block, with the peaks until now. */
void fl__fastbins_begin(fl__fastbins *bins, int device, const fl__fastbins_sums current,
                        const fl__fastbins_sums peak);

void fl__fastbins_get_stats(fl__fastbins *bins, int device, fl__fastbins_stats *out);
void fl__fastbins_reset_peaks(fl__fastbins *bins, int device);
void fl__fastbins_reset_hits(fl__fastbins *bins, int device);

#ifdef __cplusplus
}
#endif

#endif
