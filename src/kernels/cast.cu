/*
 * cast.cu: elements of one dtype into elements of another, layouts free.
 *
 * Bound by memory. Pairs that models use have a kernel each, which moves neighbours at once where
 * both sides are contiguous and aligned; all other pairs share one kernel that looks at both dtypes
 * for each element. The arithmetic is that of the host, from the same header.
 */
#include "fl/types.h"
#include "kernels/cast.h"
#include "kernels/names.h"
#include "kernels/vec.cuh"

/* --- pairs -------------------------------------------------------------------------------------
 */

/* What FL__READ_LIST and FL__WRITE_LIST say of a dtype, for templates: a type that stands for it.
 */
#define DEFINE_DTYPE(dtype, storage, kind, value)             \
    struct as_##dtype {                                       \
        typedef storage type;                                 \
        typedef fl__wide_##kind wide;                         \
        static __device__ __forceinline__ wide read(type s) { \
            return value;                                     \
        }                                                     \
    };
FL__READ_LIST(DEFINE_DTYPE)

#define DEFINE_WRITE(dtype, K, storage, value)                                           \
    __device__ __forceinline__ void write(as_##dtype, fl__wide_##K v, storage *stored) { \
        *stored = value;                                                                 \
    }
#define DEFINE_WRITES(name, ctype) FL__WRITE_LIST(DEFINE_WRITE, name)
FL__WIDE_LIST(DEFINE_WRITES)

template <typename S, typename D>
__device__ __forceinline__ void cast_one(const char *src, char *dst) {
    typename D::type stored;
    write(D(), S::read(*(const typename S::type *)src), &stored);
    *(typename D::type *)dst = stored;
}

/* Neighbours; a thread at the end takes what is left one by one. */
template <typename S, typename D, int items>
__device__ void cast_runs(const fl__copy_args &args) {
    typedef fl__run<typename S::type, items> src_run;
    typedef fl__run<typename D::type, items> dst_run;
    uint32_t first = (blockIdx.x * FL__BLOCK_THREADS + threadIdx.x) * items;
    const char *src = args.src + (int64_t)first * sizeof(typename S::type);
    char *dst = args.dst + (int64_t)first * sizeof(typename D::type);
    if (first + items <= args.count) {
        src_run in = *(const src_run *)src;
        dst_run out;
#pragma unroll
        for (int i = 0; i < items; i++) {
            write(D(), S::read(in.element[i]), &out.element[i]);
        }
        *(dst_run *)dst = out;
        return;
    }
    for (uint32_t i = first; i < args.count; i++) {
        cast_one<S, D>(src, dst);
        src += sizeof(typename S::type);
        dst += sizeof(typename D::type);
    }
}

template <typename S, typename D>
__device__ void cast(const fl__copy_args &args) {
    constexpr int items = FL__CAST_ITEMS(sizeof(typename S::type), sizeof(typename D::type));
    bool runs = args.ndim == 1 && args.src_stride[0] == sizeof(typename S::type) &&
                args.dst_stride[0] == sizeof(typename D::type) &&
                (uint64_t)args.src % alignof(fl__run<typename S::type, items>) == 0 &&
                (uint64_t)args.dst % alignof(fl__run<typename D::type, items>) == 0;
    if (runs) {
        cast_runs<S, D, items>(args);
        return;
    }
#pragma unroll
    for (int i = 0; i < items; i++) {
        uint32_t number = fl__item(i, items);
        if (number < args.count) {
            int64_t to, from;
            fl__offsets(number, args, 0, &to, &from);
            cast_one<S, D>(args.src + from, args.dst + to);
        }
    }
}

#define DEFINE_CAST(src, dst)                                            \
    FL__KERNEL fl_cast_##src##_##dst(FL__ARGUMENT(fl__copy_args) args) { \
        cast<as_##src, as_##dst>(args);                                  \
    }
FL__CAST_LIST(DEFINE_CAST)

/* --- any pair ----------------------------------------------------------------------------------
 */

/* A value of any dtype without loss: integers keep their bits, all else is exact as doubles. */
struct any_value {
    enum { INTEGER, UNSIGNED, FLOATS } kind;
    uint64_t bits;
    fl__pair64 number;
};

__device__ __forceinline__ void keep(int64_t v, any_value *out) {
    out->kind = any_value::INTEGER;
    out->bits = (uint64_t)v;
}
__device__ __forceinline__ void keep(int32_t v, any_value *out) {
    keep((int64_t)v, out);
}
__device__ __forceinline__ void keep(uint64_t v, any_value *out) {
    out->kind = any_value::UNSIGNED;
    out->bits = v;
}
__device__ __forceinline__ void keep_number(fl__pair64 number, any_value *out) {
    out->kind = any_value::FLOATS;
    out->number = number;
}
__device__ __forceinline__ void keep(float v, any_value *out) {
    keep_number(fl__doubles_F(v), out);
}
__device__ __forceinline__ void keep(double v, any_value *out) {
    keep_number(fl__doubles_D(v), out);
}
__device__ __forceinline__ void keep(fl__pair32 v, any_value *out) {
    keep_number(fl__doubles_CF(v), out);
}
__device__ __forceinline__ void keep(fl__pair64 v, any_value *out) {
    keep_number(v, out);
}

__device__ any_value read_any(int32_t dtype, const char *src) {
    any_value value;
    value.kind = any_value::INTEGER;
    value.bits = 0;
    switch (dtype) {
#define READ_ANY(name, storage, wide_kind, expression)        \
    case FL_DTYPE_##name:                                     \
        keep(as_##name::read(*(const storage *)src), &value); \
        break;
        FL__READ_LIST(READ_ANY)
    }
    return value;
}

template <typename D>
__device__ __forceinline__ void write_any(const any_value &value, char *dst) {
    typename D::type stored;
    if (value.kind == any_value::INTEGER) {
        write(D(), (int64_t)value.bits, &stored);
    } else if (value.kind == any_value::UNSIGNED) {
        write(D(), value.bits, &stored);
    } else {
        write(D(), value.number, &stored);
    }
    *(typename D::type *)dst = stored;
}

FL__KERNEL fl_cast_any(FL__ARGUMENT(fl__copy_args) args) {
    for (int i = 0; i < FL__THREAD_ITEMS; i++) {
        uint32_t number = fl__item(i);
        if (number >= args.count) {
            return;
        }
        int64_t to, from;
        fl__offsets(number, args, 0, &to, &from);
        any_value value = read_any(args.src_dtype, args.src + from);
        char *dst = args.dst + to;
        switch (args.dst_dtype) {
#define WRITE_ANY(name, bytes, code, bits) \
    case FL_DTYPE_##name:                  \
        write_any<as_##name>(value, dst);  \
        break;
            FL_DTYPE_LIST(WRITE_ANY)
        }
    }
}
