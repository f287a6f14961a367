/*
 * test_kernels.c: the host kernels against arithmetic that shares nothing with them: small floats
 * are rounded by searching a table of all their values, integers wrap by division.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fl/kernels.h"
#include "harness.h"
#include "kernels/convert.h"

/* --- small floats by their definitions ----------------------------------------------------------
 */

typedef struct format {
    fl_dtype dtype;
    int exponent, mantissa, bias;
    bool has_infinity; /* Else the largest exponent holds numbers. */
    bool is_fnuz;      /* The one NaN is the code of a negative zero. */
} format;

static const format formats[] = {
    {FL_DTYPE_F16, 5, 10, 15, true, false},      {FL_DTYPE_BF16, 8, 7, 127, true, false},
    {FL_DTYPE_F8E5M2, 5, 2, 15, true, false},    {FL_DTYPE_F8E4M3FN, 4, 3, 7, false, false},
    {FL_DTYPE_F8E4M3FNUZ, 4, 3, 8, false, true}, {FL_DTYPE_F8E5M2FNUZ, 5, 2, 16, false, true},
};
enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

static double decode(const format *f, uint32_t code) {
    uint32_t sign_bit = 1u << (f->exponent + f->mantissa);
    uint32_t magnitude = code & (sign_bit - 1);
    double sign = code & sign_bit ? -1.0 : 1.0;
    int field = (int)(magnitude >> f->mantissa);
    double fraction = (double)(magnitude & ((1u << f->mantissa) - 1)) / (double)(1u << f->mantissa);
    if (f->is_fnuz && code == sign_bit) {
        return NAN;
    }
    if (f->has_infinity && field == (1 << f->exponent) - 1) {
        return fraction == 0 ? sign * INFINITY : NAN;
    }
    if (!f->has_infinity && !f->is_fnuz && magnitude == sign_bit - 1) {
        return NAN;
    }
    return sign * (field ? ldexp(1.0 + fraction, field - f->bias) : ldexp(fraction, 1 - f->bias));
}

/* Codes of magnitudes go up with their values, so the neighbours of a value are found by halving.
 * The code behind the largest finite one stands for what its value would be. */
static uint32_t encode(const format *f, float value) {
    uint32_t sign_bit = 1u << (f->exponent + f->mantissa);
    uint32_t special = f->has_infinity ? ((1u << f->exponent) - 1) << f->mantissa
                       : f->is_fnuz    ? sign_bit
                                       : sign_bit - 1;
    uint32_t sign = signbit(value) ? sign_bit : 0;
    double magnitude = fabs((double)value);
    if (isnan(value)) {
        return UINT32_MAX; /* Any NaN will do. */
    }
    if (isinf(value)) {
        return f->has_infinity ? sign | special : UINT32_MAX;
    }
    uint32_t low = 0, high = special - 1;
    while (low < high) { /* The largest code whose value is not above. */
        uint32_t middle = low + (high - low + 1) / 2;
        if (decode(f, middle) <= magnitude) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    double here = decode(f, low);
    double step = low + 1 < special ? decode(f, low + 1) - here : here - decode(f, low - 1);
    if (low + 1 == special && f->mantissa == 0) {
        step *= 2;
    }
    double rest = magnitude - here;
    if (rest * 2 > step || (rest * 2 == step && low % 2)) {
        low++;
    }
    if (low >= special) {
        return f->has_infinity ? sign | special : UINT32_MAX;
    }
    return f->is_fnuz && low == 0 ? 0 : sign | low;
}

static uint32_t code_of(const format *f, float value) {
    uint16_t wide = 0;
    uint8_t narrow = 0;
    fl_view src = {.data = &value, .dtype = FL_DTYPE_F32};
    fl_view dst = {.dtype = f->dtype};
    dst.data = fl_dtype_size(f->dtype) == 1 ? (void *)&narrow : (void *)&wide;
    fl_host_copy(&dst, &src);
    return fl_dtype_size(f->dtype) == 1 ? narrow : wide;
}

static void check_code(const format *f, float value) {
    uint32_t code = code_of(f, value), wanted = encode(f, value);
    if (wanted == UINT32_MAX ? !isnan(decode(f, code)) : code != wanted) {
        test_fail(__FILE__, __LINE__, "%s of %a is 0x%x, wanted 0x%x", fl_dtype_name(f->dtype),
                  (double)value, code, wanted);
    }
}

TEST(kernels, small_floats_are_read_as_defined) {
    for (int i = 0; i < FORMATS; i++) {
        size_t bytes = fl_dtype_size(formats[i].dtype);
        for (uint32_t code = 0; code < 1u << (8 * bytes); code++) {
            uint16_t wide = (uint16_t)code;
            uint8_t narrow = (uint8_t)code;
            float value;
            fl_view src = {.dtype = formats[i].dtype},
                    dst = {.data = &value, .dtype = FL_DTYPE_F32};
            src.data = bytes == 1 ? (void *)&narrow : (void *)&wide;
            fl_host_copy(&dst, &src);
            double wanted = decode(&formats[i], code);
            if (isnan(wanted) ? !isnan(value)
                              : (double)value != wanted || !signbit(value) != !signbit(wanted)) {
                test_fail(__FILE__, __LINE__, "%s 0x%x is %a, wanted %a",
                          fl_dtype_name(formats[i].dtype), code, (double)value, wanted);
            }
        }
    }
}

TEST_WITH_LIMIT(kernels, floats_round_to_nearest_even, 120) {
    uint64_t seed = 1;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        uint32_t codes = 1u << (f->exponent + f->mantissa);
        /* Every value, every middle between neighbours, and what lies next to either. */
        for (uint32_t code = 0; code < codes; code++) {
            double here = decode(f, code), next = decode(f, code + 1);
            double points[2] = {here, (here + next) / 2};
            for (int p = 0; p < 2; p++) {
                float value = (float)points[p];
                check_code(f, value);
                check_code(f, -value);
                check_code(f, nextafterf(value, INFINITY));
                check_code(f, nextafterf(value, -INFINITY));
            }
        }
        for (int n = 0; n < 100000; n++) {
            check_code(f, fl__float_of((uint32_t)test_random(&seed)));
        }
        static const float special[] = {
            0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,    3.402823466e38f, -3.402823466e38f,
            1e-45f,   -1e-45f,  65519.0f, 65520.0f,  464.0f, 464.5f,          247.9f,
            57344.0f, 61439.0f, 61440.0f};
        for (size_t n = 0; n < sizeof(special) / sizeof(special[0]); n++) {
            check_code(f, special[n]);
        }
    }
}

/* --- integers, truth, complex numbers -----------------------------------------------------------
 */

/* One value of any dtype through a cast. */
static void cast(fl_dtype to, void *dst, fl_dtype from, const void *src) {
    unsigned char copy[16];
    memcpy(copy, src, fl_dtype_size(from));
    fl_view in = {.data = copy, .dtype = from}, out = {.data = dst, .dtype = to};
    fl_host_copy(&out, &in);
}

static int64_t integer_of(fl_dtype dtype, const void *at) {
    int64_t value = 0;
    memcpy(&value, at, fl_dtype_size(dtype));
    int bits = (int)fl_dtype_size(dtype) * 8;
    bool is_signed = dtype == FL_DTYPE_I8 || dtype == FL_DTYPE_I16 || dtype == FL_DTYPE_I32;
    if (is_signed && (value >> (bits - 1)) & 1) {
        value -= (int64_t)1 << bits;
    }
    return value;
}

static const fl_dtype integers[] = {FL_DTYPE_U8,  FL_DTYPE_I8,  FL_DTYPE_I16, FL_DTYPE_I32,
                                    FL_DTYPE_I64, FL_DTYPE_U16, FL_DTYPE_U32, FL_DTYPE_U64};
enum { INTEGERS = sizeof(integers) / sizeof(integers[0]) };

TEST(kernels, integers_wrap_and_floats_are_cut_towards_zero) {
    uint64_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        fl_dtype from = integers[test_random(&seed) % INTEGERS];
        fl_dtype to = integers[test_random(&seed) % INTEGERS];
        uint64_t bits = test_random(&seed) >> (test_random(&seed) % 64);
        uint64_t out = 0;
        cast(to, &out, from, &bits);
        /* Sign-extend the source, then keep what fits, in 128 bits. */
        __int128 wide = integer_of(from, &bits);
        if (from == FL_DTYPE_U64) {
            wide = (__int128)bits;
        }
        int width = (int)fl_dtype_size(to) * 8;
        __int128 modulus = (__int128)1 << width;
        __int128 kept = ((wide % modulus) + modulus) % modulus;
        CHECK_UINT(out, (uint64_t)kept);
    }
    static const double numbers[] = {0.0, 0.9, -0.9, 1.5, -1.5, 127.99, 100.0, 12.25};
    for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
        for (int i = 0; i < INTEGERS; i++) {
            if (numbers[n] < 0 && integers[i] != FL_DTYPE_I64) {
                continue;
            }
            uint64_t out = 0;
            float single = (float)numbers[n];
            cast(integers[i], &out, FL_DTYPE_F64, &numbers[n]);
            CHECK_INT(integer_of(integers[i], &out), (int64_t)numbers[n]);
            out = 0;
            cast(integers[i], &out, FL_DTYPE_F32, &single);
            CHECK_INT(integer_of(integers[i], &out), (int64_t)numbers[n]);
        }
    }
    /* As on the host in PyTorch: negative numbers reach unsigned bytes through int64. */
    float minus = -1.5f;
    uint8_t byte;
    cast(FL_DTYPE_U8, &byte, FL_DTYPE_F32, &minus);
    CHECK_INT(byte, 255);
    double big = 1.5e19;
    uint64_t large;
    cast(FL_DTYPE_U64, &large, FL_DTYPE_F64, &big);
    CHECK_UINT(large, UINT64_C(15000000000000000000));
    /* Outside of every range: some number, and no trap. */
    double beyond[] = {1e300, -1e300, (double)NAN, (double)INFINITY};
    for (int i = 0; i < 4; i++) {
        cast(FL_DTYPE_I32, &large, FL_DTYPE_F64, &beyond[i]);
    }
}

TEST(kernels, integers_become_floats_with_one_rounding) {
    uint64_t seed = 4;
    for (int round = 0; round < 20000; round++) {
        int64_t value = (int64_t)test_random(&seed) >> (test_random(&seed) % 60);
        uint64_t positive = (uint64_t)value;
        float single;
        double wide;
        cast(FL_DTYPE_F32, &single, FL_DTYPE_I64, &value);
        CHECK(single == (float)value);
        cast(FL_DTYPE_F32, &single, FL_DTYPE_U64, &positive);
        CHECK(single == (float)positive);
        cast(FL_DTYPE_F64, &wide, FL_DTYPE_I64, &value);
        CHECK(wide == (double)value);
    }
}

TEST(kernels, every_byte_is_exact_in_every_float) {
    for (int32_t number = -128; number < 256; number++) {
        const fl_dtype dtype = number < 0 ? FL_DTYPE_I8 : FL_DTYPE_U8;
        uint8_t byte = (uint8_t)number;
        float wanted = (float)number;
        static const fl_dtype halves[] = {FL_DTYPE_F16, FL_DTYPE_BF16};
        for (int i = 0; i < 2; i++) {
            uint16_t half, rounded;
            float back;
            cast(halves[i], &half, dtype, &byte);
            cast(halves[i], &rounded, FL_DTYPE_F32, &wanted);
            CHECK_INT(half, rounded);
            cast(FL_DTYPE_F32, &back, halves[i], &half);
            CHECK(back == wanted);
        }
    }
}

TEST(kernels, truth_is_what_is_not_zero) {
    float numbers[] = {0.0f, -0.0f, 1e-45f, NAN, -3.0f};
    static const uint8_t wanted[] = {0, 0, 1, 1, 1};
    for (int i = 0; i < 5; i++) {
        uint8_t truth = 9;
        cast(FL_DTYPE_BOOL, &truth, FL_DTYPE_F32, &numbers[i]);
        CHECK_INT(truth, wanted[i]);
    }
    uint8_t odd = 6, truth;
    int32_t one;
    cast(FL_DTYPE_I32, &one, FL_DTYPE_BOOL, &odd); /* any byte but 0 is true */
    CHECK_INT(one, 1);
    int64_t high = INT64_C(1) << 40;
    cast(FL_DTYPE_BOOL, &truth, FL_DTYPE_I64, &high);
    CHECK_INT(truth, 1);
    float imaginary[2] = {0.0f, 2.0f};
    double wide_imaginary[2] = {0.0, -2.0};
    cast(FL_DTYPE_BOOL, &truth, FL_DTYPE_C64, imaginary);
    CHECK_INT(truth, 1);
    cast(FL_DTYPE_BOOL, &truth, FL_DTYPE_C128, wide_imaginary);
    CHECK_INT(truth, 1);
    wide_imaginary[1] = 0;
    cast(FL_DTYPE_BOOL, &truth, FL_DTYPE_C128, wide_imaginary);
    CHECK_INT(truth, 0);
}

TEST(kernels, complex_numbers_lose_and_gain_their_imaginary_part) {
    float c64[2] = {1.5f, -2.5f}, back[2];
    double c128[2], real;
    uint16_t c32[2];
    int32_t whole;
    cast(FL_DTYPE_C128, c128, FL_DTYPE_C64, c64);
    CHECK(c128[0] == 1.5 && c128[1] == -2.5);
    cast(FL_DTYPE_C32, c32, FL_DTYPE_C128, c128);
    CHECK(fl__from_f16(c32[0]) == 1.5f && fl__from_f16(c32[1]) == -2.5f);
    cast(FL_DTYPE_C64, back, FL_DTYPE_C32, c32);
    CHECK_BYTES(back, c64, sizeof(back));
    cast(FL_DTYPE_F64, &real, FL_DTYPE_C64, c64);
    CHECK(real == 1.5);
    cast(FL_DTYPE_I32, &whole, FL_DTYPE_C128, c128);
    CHECK_INT(whole, 1);
    whole = -7;
    cast(FL_DTYPE_C64, back, FL_DTYPE_I32, &whole);
    CHECK(back[0] == -7.0f && back[1] == 0.0f && !signbit(back[1]));
    cast(FL_DTYPE_C128, c128, FL_DTYPE_F32, &back[0]);
    CHECK(c128[0] == -7.0 && c128[1] == 0.0);
}

/* --- layouts -----------------------------------------------------------------------------------
 */

/* Large enough for tiles: 70 x 130 turned, in every element size, with and without a cast. */
TEST(kernels, large_turned_views_are_copied_in_tiles) {
    enum { ROWS = 70, COLUMNS = 130 };
    static const fl_dtype sizes[] = {FL_DTYPE_U8, FL_DTYPE_I16, FL_DTYPE_F32, FL_DTYPE_I64,
                                     FL_DTYPE_C128};
    static char src[ROWS * COLUMNS * 16], dst[ROWS * COLUMNS * 16];
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof(src); i++) {
        src[i] = (char)test_random(&seed);
    }
    int64_t shape[2] = {ROWS, COLUMNS};
    static const int32_t order[2] = {1, 0};
    for (int s = 0; s < 5; s++) {
        fl_view from, to, turned;
        CHECK_OK(fl_view_init(&from, src, sizes[s], 2, shape, FL_FORMAT_CONTIGUOUS));
        CHECK_OK(fl_view_permute(&from, order, &turned));
        CHECK_OK(fl_view_init(&to, dst, sizes[s], 2, turned.shape, FL_FORMAT_CONTIGUOUS));
        fl_host_copy(&to, &turned);
        size_t size = fl_dtype_size(sizes[s]);
        for (size_t i = 0; i < COLUMNS; i++) {
            for (size_t j = 0; j < ROWS; j++) {
                CHECK_BYTES(dst + (i * ROWS + j) * size, src + (j * COLUMNS + i) * size, size);
            }
        }
    }
    fl_view from, to, turned;
    CHECK_OK(fl_view_init(&from, src, FL_DTYPE_U8, 2, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_OK(fl_view_permute(&from, order, &turned));
    CHECK_OK(fl_view_init(&to, dst, FL_DTYPE_I32, 2, turned.shape, FL_FORMAT_CONTIGUOUS));
    fl_host_copy(&to, &turned);
    for (size_t i = 0; i < COLUMNS; i++) {
        for (size_t j = 0; j < ROWS; j++) {
            int32_t value;
            memcpy(&value, dst + (i * ROWS + j) * 4, 4);
            CHECK_INT(value, (uint8_t)src[j * COLUMNS + i]);
        }
    }
    fl_view none = to;
    none.shape[0] = 0;
    fl_host_copy(&none, &none);
}

/* --- the tables --------------------------------------------------------------------------------
 */

TEST(kernels, a_driver_without_the_services_has_no_table) {
    fl_kernel_services none = {.user = NULL};
    fl_kernels table;
    CHECK_STATUS(fl_kernels_host(&none, &table), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "host functions");
    CHECK_STATUS(fl_kernels_device(&none, &table), FL_NOT_SUPPORTED);
}

static void *queued_argument;
static void (*queued_function)(void *argument);

static fl_status keep_call(const void *user, fl_device device, fl_native_stream stream,
                           void (*function)(void *argument), void *argument) {
    (void)device;
    (void)stream;
    if (user) {
        return fl_fail(FL_DEVICE_ERROR, "refused");
    }
    queued_function = function;
    queued_argument = argument;
    return FL_OK;
}

TEST(kernels, the_host_table_reads_views_at_once_and_runs_later) {
    fl_kernel_services services = {.user = NULL, .host_call = keep_call};
    fl_kernels table;
    CHECK_OK(fl_kernels_host(&services, &table));
    CHECK_STRING(table.name, "host");
    CHECK_UINT(table.struct_size, sizeof(table));
    CHECK_UINT(table.version, FL_KERNELS_VERSION);
    int32_t src[4] = {1, 2, 3, 4}, value = 9;
    float dst[4] = {0};
    int64_t shape[1] = {4};
    fl_view from, to;
    CHECK_OK(fl_view_init(&from, src, FL_DTYPE_I32, 1, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_OK(fl_view_init(&to, dst, FL_DTYPE_F32, 1, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_OK(table.copy(table.ctx, 0, NULL, &to, &from));
    memset(&from, 0xFF, sizeof(from));
    CHECK(dst[3] == 0.0f);
    queued_function(queued_argument);
    CHECK(dst[0] == 1.0f && dst[3] == 4.0f);
    to.data = src;
    to.dtype = FL_DTYPE_I32;
    CHECK_OK(table.fill(table.ctx, 0, NULL, &to, &value));
    value = 0;
    queued_function(queued_argument);
    CHECK_INT(src[2], 9);

    services.user = &services;
    CHECK_OK(fl_kernels_host(&services, &table));
    CHECK_STATUS(table.fill(table.ctx, 0, NULL, &to, &value), FL_DEVICE_ERROR);
    CHECK_STATUS(table.copy(table.ctx, 0, NULL, &to, &to), FL_DEVICE_ERROR);
}
