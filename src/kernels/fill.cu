/*
 * fill.cu: one value into every element.
 *
 * Bound by memory: only stores. Contiguous runs arrive as 16-byte elements.
 */
#include "kernels/names.h"
#include "kernels/vec.cuh"

template <typename T>
__device__ T element_of(const fl__fill_args &args) {
    union {
        uint64_t all[2];
        T element;
    } value;
    value.all[0] = args.element[0];
    value.all[1] = args.element[1];
    return value.element;
}

template <typename T>
__device__ void fill_strided(const fl__fill_args &args) {
    T value = element_of<T>(args);
#pragma unroll
    for (int i = 0; i < FL__THREAD_ITEMS; i++) {
        uint32_t number = fl__item(i);
        if (number < args.count) {
            *(T *)(args.dst + fl__offset(number, args.ndim, args.shape, args.dst_stride)) = value;
        }
    }
}

#define DEFINE_FILL(bytes, type)                                            \
    FL__KERNEL fl_fill_strided_u##bytes(FL__ARGUMENT(fl__fill_args) args) { \
        fill_strided<type>(args);                                           \
    }
FL__ELEMENT_LIST(DEFINE_FILL)

FL__KERNEL fl_fill_u16(FL__ARGUMENT(fl__fill_args) args) {
    fl__vec16 value = element_of<fl__vec16>(args);
    fl__vec16 *dst = (fl__vec16 *)args.dst;
#pragma unroll
    for (int i = 0; i < FL__THREAD_ITEMS; i++) {
        uint32_t number = fl__item(i);
        if (number < args.count) {
            dst[number] = value;
        }
    }
}
