/*
 * names.h: every device function once: device.c makes the table of names, the .cu files the
 * functions. The grammar is in docs/kernels.md.
 */
#ifndef FL_KERNELS_NAMES_H
#define FL_KERNELS_NAMES_H

/* bytes, type that holds an element while it is moved */
#define FL__ELEMENT_LIST(X) \
    X(1, uint8_t)           \
    X(2, uint16_t)          \
    X(4, uint32_t)          \
    X(8, uint64_t)          \
    X(16, fl__vec16)

/* Casts that are worth a kernel of their own: source, destination. Everything else goes through
 * fl_cast_any, which looks at both dtypes for each element. */
#define FL__CAST_LIST(X) \
    X(F32, F16)          \
    X(F32, BF16)         \
    X(F16, F32)          \
    X(BF16, F32)         \
    X(F16, BF16)         \
    X(BF16, F16)         \
    X(F32, F64)          \
    X(F64, F32)          \
    X(I64, I32)          \
    X(I32, I64)          \
    X(I64, F32)          \
    X(I32, F32)          \
    X(F32, I64)          \
    X(F32, I32)          \
    X(U8, F32)           \
    X(U8, F16)           \
    X(U8, BF16)          \
    X(BOOL, F32)         \
    X(BOOL, I64)         \
    X(I64, BOOL)         \
    X(F32, F8E4M3FN)     \
    X(BF16, F8E4M3FN)    \
    X(F8E4M3FN, F32)     \
    X(F8E4M3FN, BF16)

#endif
