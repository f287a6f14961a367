/*
 * copy_strided.cu: elements of one size from one layout into another.
 *
 * Bound by memory. The launcher has already merged dimensions and made elements as wide as both
 * layouts allow, so contiguous runs arrive here as 16-byte elements. What cannot be coalesced on
 * both sides because the innermost dimensions differ is turned in shared memory.
 */
#include "kernels/names.h"
#include "kernels/vec.cuh"

/* Each thread has all its loads under way before its first store. */
template <typename T>
__device__ void copy_strided(const fl__copy_args &args) {
    T value[FL__THREAD_ITEMS];
    int64_t to[FL__THREAD_ITEMS];
#pragma unroll
    for (int i = 0; i < FL__THREAD_ITEMS; i++) {
        uint32_t number = fl__item(i);
        if (number < args.count) {
            int64_t from;
            fl__offsets(number, args, 0, &to[i], &from);
            value[i] = *(const T *)(args.src + from);
        }
    }
#pragma unroll
    for (int i = 0; i < FL__THREAD_ITEMS; i++) {
        if (fl__item(i) < args.count) {
            *(T *)(args.dst + to[i]) = value[i];
        }
    }
}

/* A block reads a square along the source's rows and writes it along the destination's. Rows of the
 * square are an odd number of words apart, so that columns meet no bank twice. */
template <typename T>
__device__ void copy_tile(const fl__tile_args &args) {
    constexpr uint32_t edge = FL__TILE_OF(sizeof(T));
    constexpr uint32_t pad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    __shared__ T square[edge][edge + pad];

    const fl__copy_args &copy = args.copy;
    uint32_t number = blockIdx.x;
    uint32_t start_0 = number % args.tiles_0 * edge;
    number /= args.tiles_0;
    uint32_t start_1 = number % args.tiles_1 * edge;
    number /= args.tiles_1;
    int64_t to, from;
    fl__offsets(number, copy, 2, &to, &from);
    uint32_t size_0 = copy.shape[0].divisor - start_0, size_1 = copy.shape[1].divisor - start_1;
    to += (int64_t)start_0 * copy.dst_stride[0] + (int64_t)start_1 * copy.dst_stride[1];
    from += (int64_t)start_0 * copy.src_stride[0] + (int64_t)start_1 * copy.src_stride[1];

    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
#pragma unroll
    for (uint32_t i = 0; i < edge; i += FL__TILE_ROWS) {
#pragma unroll
        for (uint32_t j = 0; j < edge; j += 32) {
            if (row + i < size_0 && lane + j < size_1) {
                square[row + i][lane + j] =
                    *(const T *)(copy.src + from + (int64_t)(row + i) * copy.src_stride[0] +
                                 (int64_t)(lane + j) * copy.src_stride[1]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < edge; i += FL__TILE_ROWS) {
#pragma unroll
        for (uint32_t j = 0; j < edge; j += 32) {
            if (lane + j < size_0 && row + i < size_1) {
                *(T *)(copy.dst + to + (int64_t)(lane + j) * copy.dst_stride[0] +
                       (int64_t)(row + i) * copy.dst_stride[1]) = square[lane + j][row + i];
            }
        }
    }
}

#define DEFINE_COPY(bytes, type)                                            \
    FL__KERNEL fl_copy_strided_u##bytes(FL__ARGUMENT(fl__copy_args) args) { \
        copy_strided<type>(args);                                           \
    }                                                                       \
    FL__KERNEL fl_copy_tile_u##bytes(FL__ARGUMENT(fl__tile_args) args) {    \
        copy_tile<type>(args);                                              \
    }
FL__ELEMENT_LIST(DEFINE_COPY)
