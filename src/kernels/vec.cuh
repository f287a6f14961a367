/*
 * vec.cuh: the 128-bit element, and index arithmetic for strided views. Knows no operation.
 */
#ifndef FL_KERNELS_VEC_CUH
#define FL_KERNELS_VEC_CUH

#include "kernels/args.h"
#include "kernels/vendor.h"

/* What one load or store moves at most. */
struct alignas(16) fl__vec16 {
    uint32_t word[4];
};

/* A few neighbouring elements, moved with as few loads as their alignment allows. */
template <typename T, int count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) fl__run {
    T element[count];
};

__device__ __forceinline__ uint32_t fl__quotient(uint32_t number, const fl__divider &by) {
    return (__umulhi(number, by.multiplier) + number) >> by.shift;
}

/* Bytes from the first element to the one of that number, for a view with `ndim` dimensions. */
__device__ __forceinline__ int64_t fl__offset(uint32_t number, int32_t ndim,
                                              const fl__divider *shape, const int64_t *stride) {
    int64_t offset = 0;
#pragma unroll 1
    for (int32_t dim = 0; dim < ndim - 1; dim++) {
        uint32_t rest = fl__quotient(number, shape[dim]);
        offset += (int64_t)(number - rest * shape[dim].divisor) * stride[dim];
        number = rest;
    }
    return ndim ? offset + (int64_t)number * stride[ndim - 1] : 0;
}

/* The same for two views of one shape, dividing once. Starts at dimension `first`. */
__device__ __forceinline__ void fl__offsets(uint32_t number, const fl__copy_args &args,
                                            int32_t first, int64_t *dst, int64_t *src) {
    int64_t to = 0, from = 0;
#pragma unroll 1
    for (int32_t dim = first; dim < args.ndim - 1; dim++) {
        uint32_t rest = fl__quotient(number, args.shape[dim]);
        uint32_t index = number - rest * args.shape[dim].divisor;
        to += (int64_t)index * args.dst_stride[dim];
        from += (int64_t)index * args.src_stride[dim];
        number = rest;
    }
    if (first < args.ndim) {
        to += (int64_t)number * args.dst_stride[args.ndim - 1];
        from += (int64_t)number * args.src_stride[args.ndim - 1];
    }
    *dst = to;
    *src = from;
}

/* The number of a thread's i-th element: neighbours in a warp take neighbouring elements. */
__device__ __forceinline__ uint32_t fl__item(int i, int items = FL__THREAD_ITEMS) {
    return blockIdx.x * (FL__BLOCK_THREADS * items) + i * FL__BLOCK_THREADS + threadIdx.x;
}

#endif
