/*
 * args.h: what the launchers in device.c and the device code in the .cu files agree on.
 *
 * Structs are passed by value as the one argument of a kernel, so both compilers must lay them out
 * alike: members are ordered by size and padded by hand.
 */
#ifndef FL_KERNELS_ARGS_H
#define FL_KERNELS_ARGS_H

#include <stdint.h>

/* Dimensions that a kernel walks; views with more, after collapsing, take several launches. */
#define FL__ARGS_DIMS 12

/* Threads of a block, and elements (or vectors) that one thread of a linear kernel moves. */
#define FL__BLOCK_THREADS 256
#define FL__THREAD_ITEMS 4
/* The same for a cast: at least 8 bytes on the side with the smaller elements. */
#define FL__CAST_ITEMS(one_bytes, other_bytes) ((one_bytes) == 1 || (other_bytes) == 1 ? 8 : 4)
/* What a block of the tiled copy turns, in elements along the destination's rows and along the
 * source's: 256 bytes or more of each, as far as shared memory allows. */
#define FL__TILE_FROM(element_bytes) ((element_bytes) == 16 ? 32 : (element_bytes) > 2 ? 64 : 128)
#define FL__TILE_TO(element_bytes) ((element_bytes) == 4 ? 128 : FL__TILE_FROM(element_bytes))
#define FL__TILE_ROWS 8 /* FL__BLOCK_THREADS / 32, which is a warp. */

/* Division of a number below 2^31 by a constant: (n * multiplier >> 32) + n >> shift. */
typedef struct fl__divider {
    uint32_t divisor, multiplier, shift;
} fl__divider;

/* Dimension 0 is the innermost here. Strides are bytes. */
typedef struct fl__copy_args {
    char *dst;
    const char *src;
    int64_t dst_stride[FL__ARGS_DIMS];
    int64_t src_stride[FL__ARGS_DIMS];
    fl__divider shape[FL__ARGS_DIMS];
    uint32_t count; /* Elements. */
    int32_t ndim;
    int32_t dst_dtype, src_dtype; /* fl_dtype; casts only. */
} fl__copy_args;

/* The tiled copy: dimension 0 is the destination's innermost, dimension 1 the source's. */
typedef struct fl__tile_args {
    fl__copy_args copy;
    uint32_t tiles_0, tiles_1; /* Tiles along the first two dimensions. */
} fl__tile_args;

typedef struct fl__fill_args {
    char *dst;
    int64_t dst_stride[FL__ARGS_DIMS];
    fl__divider shape[FL__ARGS_DIMS];
    uint64_t element[2]; /* The first bytes of it; repeated to 16 bytes for vectors. */
    uint32_t count;      /* Elements or vectors. */
    int32_t ndim;
} fl__fill_args;

#endif
