/*
 * copy_strided.cu: elements of one size from one layout into another.
 *
 * Bound by memory. The launcher has already merged dimensions and made elements as wide as both
 * layouts allow, so contiguous runs arrive here as 16-byte elements. What cannot be coalesced on
 * both sides because the innermost dimensions differ is copy_tile.cu's.
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

#define DEFINE_COPY(bytes, type)                                            \
    FL__KERNEL fl_copy_strided_u##bytes(FL__ARGUMENT(fl__copy_args) args) { \
        copy_strided<type>(args);                                           \
    }
FL__ELEMENT_LIST(DEFINE_COPY)
