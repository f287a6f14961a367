/*
 * convert.h: numbers between formats, bit for bit the same on the host and on devices.
 *
 * Plain C that device compilers take as well. Rounds to nearest, ties to even, as PyTorch does; a
 * NaN stays a NaN, its payload does not. Knows formats, not dtypes or memory.
 */
#ifndef FL_KERNELS_CONVERT_H
#define FL_KERNELS_CONVERT_H

#ifdef __cplusplus
#define FL__BOTH static __device__ __forceinline__
#else
#include <stdbool.h>
#include <string.h>
#define FL__BOTH static inline
#endif
#include <stdint.h>

FL__BOTH uint32_t fl__bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

FL__BOTH float fl__float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

FL__BOTH bool fl__is_nan_bits(uint32_t bits) {
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

/* The magnitude of a finite float in a format with `mantissa` bits and that exponent bias, as if
 * the format had no largest exponent: callers look for overflow. */
FL__BOTH uint32_t fl__small_encode(uint32_t bits, int mantissa, int bias) {
    uint32_t exponent = (bits >> 23) & 0xFFu;
    uint32_t significand = bits & 0x7FFFFFu;
    if (exponent == 0) {
        exponent = 1;
    } else {
        significand |= 0x800000u;
    }
    int target = (int)exponent - 127 + bias;
    int shift = 23 - mantissa;
    if (target < 1) {
        shift += 1 - target;
        target = 1;
        if (shift > 25) {
            return 0; /* Less than half of the smallest number. */
        }
    }
    uint32_t kept = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1u));
    /* A carry out of the mantissa moves into the exponent by itself; without the leading one the
     * number is subnormal and its exponent field 0. */
    return ((uint32_t)(target - 1) << mantissa) + kept;
}

FL__BOTH float fl__small_decode(uint32_t magnitude, int mantissa, int bias) {
    uint32_t exponent = magnitude >> mantissa;
    uint32_t rest = magnitude & ((1u << mantissa) - 1u);
    if (exponent == 0) {
        return (float)rest * fl__float_of((uint32_t)(127 + 1 - bias - mantissa) << 23);
    }
    return fl__float_of(((exponent + (uint32_t)(127 - bias)) << 23) | (rest << (23 - mantissa)));
}

FL__BOTH float fl__signed(float magnitude, uint32_t sign) {
    return sign ? -magnitude : magnitude;
}

/* --- 16 bits -----------------------------------------------------------------------------------
 */

FL__BOTH float fl__from_f16(uint16_t code) {
    uint32_t magnitude = code & 0x7FFFu;
    if (magnitude >= 0x7C00u) { /* Infinity, or a NaN that is made quiet. */
        uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
        return fl__float_of(((uint32_t)(code & 0x8000u) << 16) | 0x7F800000u | quiet |
                            ((magnitude & 0x3FFu) << 13));
    }
    return fl__signed(fl__small_decode(magnitude, 10, 15), code & 0x8000u);
}

FL__BOTH uint16_t fl__to_f16(float value) {
    uint32_t bits = fl__bits_of(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    if (fl__is_nan_bits(bits)) {
        return (uint16_t)(sign | 0x7E00u);
    }
    uint32_t code = fl__small_encode(bits, 10, 15);
    return (uint16_t)(sign | (code > 0x7C00u ? 0x7C00u : code));
}

FL__BOTH float fl__from_bf16(uint16_t code) {
    return fl__float_of((uint32_t)code << 16);
}

FL__BOTH uint16_t fl__to_bf16(float value) {
    uint32_t bits = fl__bits_of(value);
    if (fl__is_nan_bits(bits)) {
        return 0x7FC0u;
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* --- 8 bits ------------------------------------------------------------------------------------
 */

/* E4M3FN has no infinity: what rounds beyond 448 becomes the NaN. */
FL__BOTH float fl__from_f8e4m3fn(uint8_t code) {
    if ((code & 0x7Fu) == 0x7Fu) {
        return fl__float_of(0x7FC00000u | ((uint32_t)(code & 0x80u) << 24));
    }
    return fl__signed(fl__small_decode(code & 0x7Fu, 3, 7), code & 0x80u);
}

FL__BOTH uint8_t fl__to_f8e4m3fn(float value) {
    uint32_t bits = fl__bits_of(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t code = (bits & 0x7FFFFFFFu) >= 0x7F800000u ? 0x7Fu : fl__small_encode(bits, 3, 7);
    return (uint8_t)(sign | (code > 0x7Fu ? 0x7Fu : code));
}

FL__BOTH float fl__from_f8e5m2(uint8_t code) {
    return fl__from_f16((uint16_t)((uint32_t)code << 8));
}

FL__BOTH uint8_t fl__to_f8e5m2(float value) {
    uint32_t bits = fl__bits_of(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    if (fl__is_nan_bits(bits)) {
        return (uint8_t)(sign | 0x7Fu);
    }
    uint32_t code = fl__small_encode(bits, 2, 15);
    return (uint8_t)(sign | (code > 0x7Cu ? 0x7Cu : code));
}

/* The FNUZ formats have neither infinities nor a negative zero, whose code is their one NaN. */
FL__BOTH float fl__from_fnuz(uint8_t code, int mantissa, int bias) {
    if (code == 0x80u) {
        return fl__float_of(0x7FC00000u);
    }
    return fl__signed(fl__small_decode(code & 0x7Fu, mantissa, bias), code & 0x80u);
}

FL__BOTH uint8_t fl__to_fnuz(float value, int mantissa, int bias) {
    uint32_t bits = fl__bits_of(value);
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) {
        return 0x80u;
    }
    uint32_t code = fl__small_encode(bits, mantissa, bias);
    if (code > 0x7Fu) {
        return 0x80u;
    }
    return (uint8_t)(code ? ((bits >> 24) & 0x80u) | code : 0u);
}

FL__BOTH float fl__from_f8e4m3fnuz(uint8_t code) {
    return fl__from_fnuz(code, 3, 8);
}

FL__BOTH uint8_t fl__to_f8e4m3fnuz(float value) {
    return fl__to_fnuz(value, 3, 8);
}

FL__BOTH float fl__from_f8e5m2fnuz(uint8_t code) {
    return fl__from_fnuz(code, 2, 16);
}

FL__BOTH uint8_t fl__to_f8e5m2fnuz(float value) {
    return fl__to_fnuz(value, 2, 16);
}

/* --- integers ----------------------------------------------------------------------------------
 */

/* Towards zero, as bits that wrap into any narrower integer. C++ leaves the result open outside the
 * range, and devices differ; here it is the smallest int64, without a trap. */
FL__BOTH uint64_t fl__to_integer(double value) {
    if (value >= -9223372036854775808.0 && value < 9223372036854775808.0) {
        return (uint64_t)(int64_t)value;
    }
    if (value >= 0.0 && value < 18446744073709551616.0) {
        return (uint64_t)value;
    }
    return UINT64_C(0x8000000000000000);
}

#endif
