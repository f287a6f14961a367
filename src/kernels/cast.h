/*
 * cast.h: what each dtype is read into and written from, for the host and for devices.
 *
 * Every dtype is read into the narrowest of eight wide types that holds all its values, so that
 * a cast rounds exactly where PyTorch rounds; a device turns 32 bits into a float four times as
 * fast as 64. Knows dtypes and their storage, not loops.
 */
#ifndef FL_KERNELS_CAST_H
#define FL_KERNELS_CAST_H

#include "kernels/convert.h"

typedef struct fl__pair32 {
    float re, im;
} fl__pair32;

typedef struct fl__pair64 {
    double re, im;
} fl__pair64;

typedef struct fl__half_pair {
    uint16_t re, im;
} fl__half_pair;

/* name, C type */
#define FL__WIDE_LIST(X) \
    X(B, int16_t)        \
    X(S, int32_t)        \
    X(I, int64_t)        \
    X(U, uint64_t)       \
    X(F, float)          \
    X(D, double)         \
    X(CF, fl__pair32)    \
    X(CD, fl__pair64)

#define FL__WIDE_TYPE(name, ctype) typedef ctype fl__wide_##name;
FL__WIDE_LIST(FL__WIDE_TYPE)
#undef FL__WIDE_TYPE

FL__BOTH fl__pair32 fl__pair32_of(float re, float im) {
    fl__pair32 pair;
    pair.re = re;
    pair.im = im;
    return pair;
}

FL__BOTH fl__pair64 fl__pair64_of(double re, double im) {
    fl__pair64 pair;
    pair.re = re;
    pair.im = im;
    return pair;
}

/* --- each wide type as integer bits, as truth, and as floats of both widths ---------------------
 */

#define FL__OF_INTEGER(K)                                 \
    FL__BOTH uint64_t fl__bits_##K(fl__wide_##K v) {      \
        return (uint64_t)v;                               \
    }                                                     \
    FL__BOTH bool fl__true_##K(fl__wide_##K v) {          \
        return v != 0;                                    \
    }                                                     \
    FL__BOTH fl__pair32 fl__floats_##K(fl__wide_##K v) {  \
        return fl__pair32_of((float)v, 0.0f);             \
    }                                                     \
    FL__BOTH fl__pair64 fl__doubles_##K(fl__wide_##K v) { \
        return fl__pair64_of((double)v, 0.0);             \
    }
FL__OF_INTEGER(B)
FL__OF_INTEGER(S)
FL__OF_INTEGER(I)
FL__OF_INTEGER(U)
#undef FL__OF_INTEGER

FL__BOTH uint64_t fl__bits_F(float v) {
    return fl__to_integer((double)v);
}
FL__BOTH uint64_t fl__bits_D(double v) {
    return fl__to_integer(v);
}
FL__BOTH uint64_t fl__bits_CF(fl__pair32 v) {
    return fl__to_integer((double)v.re);
}
FL__BOTH uint64_t fl__bits_CD(fl__pair64 v) {
    return fl__to_integer(v.re);
}

FL__BOTH bool fl__true_F(float v) {
    return v != 0.0f;
}
FL__BOTH bool fl__true_D(double v) {
    return v != 0.0;
}
FL__BOTH bool fl__true_CF(fl__pair32 v) {
    return v.re != 0.0f || v.im != 0.0f;
}
FL__BOTH bool fl__true_CD(fl__pair64 v) {
    return v.re != 0.0 || v.im != 0.0;
}

FL__BOTH fl__pair32 fl__floats_F(float v) {
    return fl__pair32_of(v, 0.0f);
}
FL__BOTH fl__pair32 fl__floats_D(double v) {
    return fl__pair32_of((float)v, 0.0f);
}
FL__BOTH fl__pair32 fl__floats_CF(fl__pair32 v) {
    return v;
}
FL__BOTH fl__pair32 fl__floats_CD(fl__pair64 v) {
    return fl__pair32_of((float)v.re, (float)v.im);
}

FL__BOTH fl__pair64 fl__doubles_F(float v) {
    return fl__pair64_of((double)v, 0.0);
}
FL__BOTH fl__pair64 fl__doubles_D(double v) {
    return fl__pair64_of(v, 0.0);
}
FL__BOTH fl__pair64 fl__doubles_CF(fl__pair32 v) {
    return fl__pair64_of((double)v.re, (double)v.im);
}
FL__BOTH fl__pair64 fl__doubles_CD(fl__pair64 v) {
    return v;
}

/* --- and as halves ------------------------------------------------------------------------------
 */

#define FL__ROUND_TO_HALF(K)                         \
    FL__BOTH uint16_t fl__f16_##K(fl__wide_##K v) {  \
        return fl__to_f16(fl__floats_##K(v).re);     \
    }                                                \
    FL__BOTH uint16_t fl__bf16_##K(fl__wide_##K v) { \
        return fl__to_bf16(fl__floats_##K(v).re);    \
    }
FL__ROUND_TO_HALF(S)
FL__ROUND_TO_HALF(I)
FL__ROUND_TO_HALF(U)
FL__ROUND_TO_HALF(F)
FL__ROUND_TO_HALF(D)
FL__ROUND_TO_HALF(CF)
FL__ROUND_TO_HALF(CD)
#undef FL__ROUND_TO_HALF

/* Both formats keep the eight bits of a byte: nothing is rounded, which on a device is what a cast
 * of bytes would wait for. */
FL__BOTH uint16_t fl__f16_B(int16_t v) {
    uint32_t bits = fl__bits_of((float)v);
    uint32_t magnitude = ((bits & 0x7FFFFFFFu) >> 13) - ((127u - 15u) << 10);
    return (uint16_t)(v ? ((bits >> 16) & 0x8000u) | magnitude : 0u);
}
FL__BOTH uint16_t fl__bf16_B(int16_t v) {
    return (uint16_t)(fl__bits_of((float)v) >> 16);
}

FL__BOTH fl__pair32 fl__from_halves(fl__half_pair halves) {
    return fl__pair32_of(fl__from_f16(halves.re), fl__from_f16(halves.im));
}

FL__BOTH fl__half_pair fl__to_halves(fl__pair32 pair) {
    fl__half_pair halves;
    halves.re = fl__to_f16(pair.re);
    halves.im = fl__to_f16(pair.im);
    return halves;
}

/* --- the lists ---------------------------------------------------------------------------------
 */

/* dtype, storage type, wide type, wide value of the stored `s` */
#define FL__READ_LIST(X)                              \
    X(U8, uint8_t, B, s)                              \
    X(I8, int8_t, B, s)                               \
    X(I16, int16_t, S, s)                             \
    X(I32, int32_t, I, s)                             \
    X(I64, int64_t, I, s)                             \
    X(F16, uint16_t, F, fl__from_f16(s))              \
    X(F32, float, F, s)                               \
    X(F64, double, D, s)                              \
    X(C32, fl__half_pair, CF, fl__from_halves(s))     \
    X(C64, fl__pair32, CF, s)                         \
    X(C128, fl__pair64, CD, s)                        \
    X(BOOL, uint8_t, B, s != 0)                       \
    X(BF16, uint16_t, F, fl__from_bf16(s))            \
    X(U16, uint16_t, S, s)                            \
    X(U32, uint32_t, U, s)                            \
    X(U64, uint64_t, U, s)                            \
    X(F8E4M3FN, uint8_t, F, fl__from_f8e4m3fn(s))     \
    X(F8E4M3FNUZ, uint8_t, F, fl__from_f8e4m3fnuz(s)) \
    X(F8E5M2, uint8_t, F, fl__from_f8e5m2(s))         \
    X(F8E5M2FNUZ, uint8_t, F, fl__from_f8e5m2fnuz(s))

/* dtype, K, storage type, stored value of the wide value `v` of the wide type K */
#define FL__WRITE_LIST(X, K)                                           \
    X(U8, K, uint8_t, (uint8_t)fl__bits_##K(v))                        \
    X(I8, K, int8_t, (int8_t)(uint8_t)fl__bits_##K(v))                 \
    X(I16, K, int16_t, (int16_t)(uint16_t)fl__bits_##K(v))             \
    X(I32, K, int32_t, (int32_t)(uint32_t)fl__bits_##K(v))             \
    X(I64, K, int64_t, (int64_t)fl__bits_##K(v))                       \
    X(F16, K, uint16_t, fl__f16_##K(v))                                \
    X(F32, K, float, fl__floats_##K(v).re)                             \
    X(F64, K, double, fl__doubles_##K(v).re)                           \
    X(C32, K, fl__half_pair, fl__to_halves(fl__floats_##K(v)))         \
    X(C64, K, fl__pair32, fl__floats_##K(v))                           \
    X(C128, K, fl__pair64, fl__doubles_##K(v))                         \
    X(BOOL, K, uint8_t, fl__true_##K(v))                               \
    X(BF16, K, uint16_t, fl__bf16_##K(v))                              \
    X(U16, K, uint16_t, (uint16_t)fl__bits_##K(v))                     \
    X(U32, K, uint32_t, (uint32_t)fl__bits_##K(v))                     \
    X(U64, K, uint64_t, fl__bits_##K(v))                               \
    X(F8E4M3FN, K, uint8_t, fl__to_f8e4m3fn(fl__floats_##K(v).re))     \
    X(F8E4M3FNUZ, K, uint8_t, fl__to_f8e4m3fnuz(fl__floats_##K(v).re)) \
    X(F8E5M2, K, uint8_t, fl__to_f8e5m2(fl__floats_##K(v).re))         \
    X(F8E5M2FNUZ, K, uint8_t, fl__to_f8e5m2fnuz(fl__floats_##K(v).re))

#endif
