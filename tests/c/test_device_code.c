/*
 * test_device_code.c: the device table and the very .cu files, run on the host and compared with
 * the host kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "device_code.h"
#include "harness.h"
#include "kernels/args.h"
#include "kernels/image.h"
#include "layouts.h"

/* --- a driver that starts functions on the host -------------------------------------------------
 */

static int launches;
static const char *last_name;
static int refuse; /* 1: loading, 2: finding, 3: starting */

static fl_status load(const void *user, fl_device device, const void *image, size_t bytes,
                      void **out_module) {
    (void)user;
    (void)device;
    CHECK_UINT(bytes, 5);
    *out_module = (void *)(uintptr_t)image;
    return refuse == 1 ? fl_fail(FL_NOT_SUPPORTED, "a foreign code object") : FL_OK;
}

static fl_status find(const void *user, fl_device device, void *module, const char *name,
                      void **out_function) {
    (void)user;
    (void)device;
    CHECK_STRING(module, "code");
    const void *function = device_code_find(name);
    last_name = name;
    CHECK(function != NULL);
    *out_function = (void *)(uintptr_t)function;
    return refuse == 2 ? fl_fail(FL_NOT_FOUND, "no function %s", name) : FL_OK;
}

static fl_status start(const void *user, fl_device device, void *function, const uint32_t grid[3],
                       const uint32_t block[3], uint32_t shared_bytes, fl_native_stream stream,
                       void **arguments) {
    (void)user;
    (void)device;
    (void)stream;
    CHECK(grid[0] > 0 && grid[1] == 1 && grid[2] == 1);
    CHECK(block[0] == FL__BLOCK_THREADS && block[1] == 1 && block[2] == 1 && shared_bytes == 0);
    if (refuse == 3) {
        return fl_fail(FL_DEVICE_ERROR, "not started");
    }
    launches++;
    device_code_launch(function, grid[0], arguments[0]);
    return FL_OK;
}

static const fl_kernel_services services = {
    .module_load = load,
    .module_function = find,
    .launch = start,
};

static fl_kernels open_table(void) {
    fl_kernels table;
    CHECK_OK(fl__kernels_over(&services, "code", 5, &table));
    CHECK_STRING(table.name, "device");
    return table;
}

/* --- against the host kernels ------------------------------------------------------------------
 */

enum { BYTES_MOST = 1 << 21 };

static _Alignas(64) char source[BYTES_MOST], wanted[BYTES_MOST], actual[BYTES_MOST];

static void prepare(void) {
    uint64_t seed = 77;
    for (size_t i = 0; i < sizeof(source); i++) {
        source[i] = (char)test_random(&seed);
    }
}

static void check_copy(const fl_kernels *table, fl_view dst, int64_t dst_elems, fl_view src,
                       int64_t src_elems) {
    size_t bytes = (size_t)dst_elems * fl_dtype_size(dst.dtype);
    CHECK(bytes <= BYTES_MOST && (size_t)src_elems * fl_dtype_size(src.dtype) <= BYTES_MOST);
    memset(wanted, 0x11, bytes);
    memset(actual, 0x11, bytes);
    src.data = source;
    dst.data = wanted;
    fl_host_copy(&dst, &src);
    dst.data = actual;
    CHECK_OK(table->copy(table->ctx, 0, NULL, &dst, &src));
    if (!layout_same_values(dst.dtype, actual, wanted, bytes)) {
        test_note("%s <- %s, %d dims, function %s", fl_dtype_name(dst.dtype),
                  fl_dtype_name(src.dtype), dst.ndim, last_name);
        CHECK_BYTES(actual, wanted, bytes);
    }
}

TEST_WITH_LIMIT(device_code, casts_of_every_pair_agree_with_the_host, 120) {
    prepare();
    fl_kernels table = open_table();
    for (int to = 0; to < FL_DTYPE_COUNT; to++) {
        for (int from = 0; from < FL_DTYPE_COUNT; from++) {
            for (int kind = 0; kind < 3; kind++) {
                int64_t shape[1] = {1500}, dst_elems, src_elems;
                static const int32_t order[1] = {0};
                fl_view dst = layout_make((fl_dtype)to, 1, shape, order,
                                          kind == 2 ? LAYOUT_GAPS : LAYOUT_DENSE, 0, &dst_elems);
                fl_view src =
                    layout_make((fl_dtype)from, 1, shape, order, LAYOUT_DENSE, 0, &src_elems);
                dst.offset = src.offset = kind ? 5 : 16;
                dst_elems += 16;
                src_elems += 16;
                if (from == FL_DTYPE_F64 || from == FL_DTYPE_C128 || from == FL_DTYPE_F32 ||
                    from == FL_DTYPE_C64) {
                    /* Random bits are mostly huge numbers: bring most of them into range. */
                    double *doubles = (double *)(void *)source;
                    float *floats = (float *)(void *)source;
                    for (int i = 0; i < 3100; i++) {
                        if (fl_dtype_size((fl_dtype)from) == 8 && from == FL_DTYPE_F64) {
                            doubles[i] = (i - 1000) * 1.37;
                        } else if (from == FL_DTYPE_C128) {
                            doubles[i] = (i - 1000) * 0.77;
                        } else {
                            floats[i] = (float)(i - 1000) * 0.77f;
                        }
                    }
                }
                check_copy(&table, dst, dst_elems, src, src_elems);
            }
        }
        prepare();
    }
}

TEST_WITH_LIMIT(device_code, layouts_of_every_element_size_agree_with_the_host, 240) {
    prepare();
    fl_kernels table = open_table();
    static const fl_dtype sizes[] = {FL_DTYPE_U8, FL_DTYPE_I16, FL_DTYPE_F32, FL_DTYPE_I64,
                                     FL_DTYPE_C128};
    uint64_t seed = 3;
    for (int round = 0; round < 4000; round++) {
        int32_t ndim = (int32_t)(test_random(&seed) % 6);
        int64_t shape[5];
        for (int32_t dim = 0; dim < ndim; dim++) {
            uint64_t most = ndim <= 2 ? 90 : ndim == 3 ? 24 : 7;
            shape[dim] = 1 + (int64_t)(test_random(&seed) % most);
        }
        int32_t dst_order[5] = {0, 1, 2, 3, 4}, src_order[5] = {0, 1, 2, 3, 4};
        for (uint64_t i = test_random(&seed) % 24; i > 0; i--) {
            (void)layout_next_order(dst_order, ndim);
        }
        for (uint64_t i = test_random(&seed) % 24; i > 0; i--) {
            (void)layout_next_order(src_order, ndim);
        }
        fl_dtype dtype = sizes[test_random(&seed) % 5];
        int64_t dst_elems, src_elems;
        int32_t which = ndim ? (int32_t)(test_random(&seed) % (uint64_t)ndim) : 0;
        fl_view dst =
            layout_make(dtype, ndim, shape, dst_order,
                        (layout_change)(test_random(&seed) % LAYOUT_EXPANDED), which, &dst_elems);
        fl_view src =
            layout_make(dtype, ndim, shape, src_order,
                        (layout_change)(test_random(&seed) % LAYOUT_COUNT), which, &src_elems);
        if (test_random(&seed) % 2) {
            dst.offset += 11; /* 16: aligned for wide elements */
            src.offset += 11;
            dst_elems += 16;
            src_elems += 16;
        }
        check_copy(&table, dst, dst_elems, src, src_elems);
    }
}

/* Turned matrices that go through squares, at sizes around their edges. */
TEST_WITH_LIMIT(device_code, turned_matrices_agree_with_the_host, 240) {
    prepare();
    fl_kernels table = open_table();
    static const fl_dtype sizes[] = {FL_DTYPE_U8, FL_DTYPE_I16, FL_DTYPE_F32, FL_DTYPE_I64,
                                     FL_DTYPE_C128};
    static const int64_t edges[] = {15, 16, 31, 33, 63, 64, 65, 129};
    /* Whole words of small elements, and many squares. */
    static const int64_t large[][2] = {{132, 260}, {260, 132}, {1200, 36}, {36, 1200}, {1198, 34}};
    static const int32_t straight[3] = {0, 1, 2}, turned[3] = {0, 2, 1};
    int squares = 0;
    for (int s = 0; s < 5; s++) {
        for (int i = 0; i < 8 * 8 + 5; i++) {
            int64_t shape[3] = {2, edges[i / 8 % 8], edges[i % 8]}, dst_elems, src_elems;
            if (i >= 8 * 8) {
                shape[1] = large[i - 8 * 8][0];
                shape[2] = large[i - 8 * 8][1];
            }
            fl_view dst = layout_make(sizes[s], 3, shape, straight, LAYOUT_DENSE, 0, &dst_elems);
            fl_view src = layout_make(sizes[s], 3, shape, turned, LAYOUT_DENSE, 0, &src_elems);
            check_copy(&table, dst, dst_elems, src, src_elems);
            squares += strncmp(last_name, "fl_copy_tile", 12) == 0;
        }
    }
    CHECK(squares > 0);
}

TEST_WITH_LIMIT(device_code, fills_agree_with_the_host, 120) {
    prepare();
    fl_kernels table = open_table();
    uint64_t seed = 9;
    for (int round = 0; round < 2000; round++) {
        int32_t ndim = (int32_t)(test_random(&seed) % 5);
        int64_t shape[4], elems;
        for (int32_t dim = 0; dim < ndim; dim++) {
            shape[dim] = 1 + (int64_t)(test_random(&seed) % (ndim == 1 ? 9000 : 12));
        }
        int32_t order[4] = {0, 1, 2, 3};
        for (uint64_t i = test_random(&seed) % 24; i > 0; i--) {
            (void)layout_next_order(order, ndim);
        }
        fl_dtype dtype = (fl_dtype)(test_random(&seed) % FL_DTYPE_COUNT);
        fl_view dst = layout_make(dtype, ndim, shape, order,
                                  (layout_change)(test_random(&seed) % LAYOUT_EXPANDED), 0, &elems);
        if (round % 2) {
            dst.offset = dst.offset / 5 * 16;
            elems += 32;
        }
        size_t bytes = (size_t)elems * fl_dtype_size(dtype);
        CHECK(bytes <= BYTES_MOST);
        memset(wanted, 0x22, bytes);
        memset(actual, 0x22, bytes);
        if (ndim == 0) {
            dst.offset = 0;
        }
        dst.data = wanted;
        fl_host_fill(&dst, source + round);
        dst.data = actual;
        CHECK_OK(table.fill(table.ctx, 0, NULL, &dst, source + round));
        CHECK_BYTES(actual, wanted, bytes);
    }
}

/* More dimensions than a launch takes: 14 of size 2 that cannot be merged. */
TEST(device_code, many_dimensions_take_several_launches) {
    prepare();
    fl_kernels table = open_table();
    fl_view dst, src;
    memset(&dst, 0, sizeof(dst));
    dst.dtype = FL_DTYPE_I16;
    dst.ndim = 14;
    src = dst;
    for (int32_t dim = 0; dim < 14; dim++) {
        dst.shape[dim] = src.shape[dim] = 2;
        dst.stride[dim] = (int64_t)1 << (13 - dim);
        src.stride[dim] = (int64_t)1 << dim;
    }
    launches = 0;
    check_copy(&table, dst, 1 << 14, src, 1 << 14);
    CHECK(launches > 1);
    int16_t value = 5;
    for (int32_t dim = 0; dim < 14; dim++) {
        dst.stride[dim] *= dim < 7 ? 3 : 1;
        dst.stride[dim] += dim % 2 && dim < 6 ? 1 << 9 : 0;
    }
    memset(wanted, 0, sizeof(wanted));
    memset(actual, 0, sizeof(actual));
    dst.data = wanted;
    CHECK_OK(fl_view_fits(&dst, sizeof(wanted)));
    fl_host_fill(&dst, &value);
    dst.data = actual;
    launches = 0;
    CHECK_OK(table.fill(table.ctx, 0, NULL, &dst, &value));
    CHECK_BYTES(actual, wanted, sizeof(wanted));
}

TEST(device_code, windows_that_overlap_are_filled) {
    fl_kernels table = open_table();
    fl_view dst = {
        .data = actual, .dtype = FL_DTYPE_U8, .ndim = 2, .shape = {4, 3}, .stride = {1, 1}};
    uint8_t value = 3;
    memset(actual, 0, 8);
    CHECK_OK(table.fill(table.ctx, 0, NULL, &dst, &value));
    CHECK(actual[5] == 3 && actual[6] == 0);
    fl_view src = dst;
    src.data = source;
    memset(source, 9, 8);
    CHECK_OK(table.copy(table.ctx, 0, NULL, &dst, &src));
    CHECK(actual[5] == 9 && actual[6] == 0);
}

TEST(device_code, dividers_are_exact) {
    /* Through the one function that uses them all: a copy of a line by its offsets. */
    fl_kernels table = open_table();
    prepare();
    for (int64_t inner = 1; inner <= 70; inner++) {
        int64_t shape[2] = {1200 / inner, inner}, dst_elems, src_elems;
        static const int32_t order[2] = {0, 1};
        fl_view dst = layout_make(FL_DTYPE_U8, 2, shape, order, LAYOUT_PADDED, 0, &dst_elems);
        fl_view src = layout_make(FL_DTYPE_U8, 2, shape, order, LAYOUT_GAPS, 1, &src_elems);
        check_copy(&table, dst, dst_elems, src, src_elems);
    }
}

TEST(device_code, refusals_are_passed_on) {
    fl_kernels table;
    refuse = 1;
    CHECK_STATUS(fl__kernels_over(&services, "code", 5, &table), FL_NOT_SUPPORTED);
    refuse = 2;
    CHECK_STATUS(fl__kernels_over(&services, "code", 5, &table), FL_NOT_FOUND);
    refuse = 0;
    table = open_table();
    refuse = 3;
    fl_view dst = {.data = actual, .dtype = FL_DTYPE_I16, .ndim = 1, .shape = {30}, .stride = {2}};
    fl_view src = dst;
    src.data = source;
    int16_t value = 1;
    CHECK_STATUS(table.copy(table.ctx, 0, NULL, &dst, &src), FL_DEVICE_ERROR);
    CHECK_STATUS(table.fill(table.ctx, 0, NULL, &dst, &value), FL_DEVICE_ERROR);
    refuse = 0;
}

TEST(device_code, a_build_without_a_compiler_says_so) {
    if ((uintptr_t)fl__device_image != (uintptr_t)fl__device_image_end) {
        test_skip("this build has device code");
    }
    fl_kernels table;
    CHECK_STATUS(fl_kernels_device(&services, &table), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "without a compiler");
}
