/*
 * test_copy.c: copies carried out on the simulated device, between every pair of places.
 *
 * What a copy does to bytes is compared with fl_host_copy on mirrors in host memory, which
 * test_kernels.c compares with independent arithmetic.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "driver/wrap.h"
#include "fl/copy.h"
#include "fl/debug.h"
#include "fl/kernels.h"
#include "fl/pinned.h"
#include "harness.h"
#include "layouts.h"
#include "rig.h"

/* --- buffers in any place ----------------------------------------------------------------------
 */

typedef enum where { PAGEABLE, PINNED, DEVICE_0, DEVICE_1, WHERE_COUNT } where;

/* A storage and a view of it, with a mirror of its bytes on the host. */
typedef struct buffer {
    where where;
    fl_place place;
    fl_view view;
    size_t bytes;
    char *data;
    char *mirror;
} buffer;

static void sync_place(fl_place place) {
    if (place.kind == FL_PLACE_DEVICE) {
        CHECK_OK(fl_stream_synchronize(place.device, place.stream));
    }
}

static void move_bytes(buffer *it, void *host, bool up) {
    if (it->place.kind == FL_PLACE_HOST) {
        memcpy(up ? it->data : host, up ? host : it->data, it->bytes);
        return;
    }
    fl_native_stream native;
    CHECK_OK(fl_stream_native(it->place.device, it->place.stream, &native));
    const fl_driver *driver = fl_platform_driver();
    CHECK_OK(fl__drv_copy(driver, it->place.device, up ? it->data : host, up ? host : it->data,
                          it->bytes, up ? FL_COPY_HOST_TO_DEVICE : FL_COPY_DEVICE_TO_HOST, native));
    sync_place(it->place);
}

/* `view` has no data; random bytes, but only 0 and 1 for truth values. */
static buffer make(where at, fl_view view, int64_t elems, fl_stream stream, uint64_t *seed) {
    buffer it = {.where = at, .view = view, .place = fl_place_host()};
    it.bytes = (size_t)elems * fl_dtype_size(view.dtype);
    it.mirror = malloc(it.bytes);
    for (size_t i = 0; i < it.bytes; i += sizeof(uint64_t)) {
        uint64_t random = test_random(seed);
        random &= view.dtype == FL_DTYPE_BOOL ? UINT64_C(0x0101010101010101) : UINT64_MAX;
        size_t left = it.bytes - i;
        memcpy(it.mirror + i, &random, left < sizeof(random) ? left : sizeof(random));
    }
    void *data = NULL;
    if (at == PAGEABLE) {
        data = malloc(it.bytes);
    } else if (at == PINNED) {
        CHECK_OK(fl_pinned_alloc(it.bytes, &data));
    } else {
        it.place = fl_place_device(at == DEVICE_0 ? 0 : 1, stream);
        CHECK_OK(fl_memory_alloc(it.place.device, it.bytes, stream, &data));
    }
    it.data = data;
    it.view.data = data;
    move_bytes(&it, it.mirror, true);
    return it;
}

static void drop(buffer *it) {
    if (it->where == PAGEABLE) {
        free(it->data);
    } else if (it->where == PINNED) {
        fl_pinned_free(it->data);
    } else {
        fl_memory_free(it->data);
    }
    free(it->mirror);
}

/* After the copy of `src` to `dst`, both have exactly the bytes that a host copy gives. */
static void check_copied(buffer *dst, buffer *src) {
    fl_view to = dst->view, from = src->view, spread;
    to.data = dst->mirror;
    from.data = src->mirror;
    CHECK_OK(fl_view_expand(&from, to.ndim, to.shape, &spread));
    fl_host_copy(&to, &spread);
    char *now = malloc(dst->bytes);
    move_bytes(dst, now, false);
    bool casts = to.dtype != from.dtype;
    if (!casts || !layout_same_values(to.dtype, now, dst->mirror, dst->bytes)) {
        CHECK_BYTES(now, dst->mirror, dst->bytes);
    }
    free(now);
    now = malloc(src->bytes);
    move_bytes(src, now, false);
    CHECK_BYTES(now, src->mirror, src->bytes);
    free(now);
}

static void check_nothing_held(void) {
    fl_memory_stats stats;
    for (fl_device device = 0; device < fl_device_count(); device++) {
        CHECK_OK(fl_device_synchronize(device));
        CHECK_OK(fl_memory_check(device));
        CHECK_OK(fl_memory_get_stats(device, &stats));
        CHECK_INT(stats.allocation[FL_POOL_ALL].current, 0);
    }
    CHECK_OK(fl_pinned_check());
    /* An allocation looks which events have run. */
    void *ptr;
    CHECK_OK(fl_pinned_alloc(1, &ptr));
    fl_pinned_free(ptr);
    fl_pinned_stats pinned;
    fl_pinned_get_stats(&pinned);
    CHECK_INT(pinned.active_requests.current, 0);
}

/* --- random pairs ------------------------------------------------------------------------------
 */

static fl_view random_view(fl_dtype dtype, int32_t ndim, const int64_t *shape, bool is_source,
                           uint64_t *seed, int64_t *elems) {
    int32_t order[5] = {0, 1, 2, 3, 4};
    for (uint64_t i = test_random(seed) % 120; i > 0; i--) {
        (void)layout_next_order(order, ndim);
    }
    layout_change change = (layout_change)(test_random(seed) % LAYOUT_COUNT);
    if (change == LAYOUT_EXPANDED && !is_source) {
        change = LAYOUT_DENSE;
    }
    int32_t dim = ndim ? (int32_t)(test_random(seed) % (uint64_t)ndim) : 0;
    return layout_make(dtype, ndim, shape, order, change, dim, elems);
}

static void random_pairs(uint64_t seed, int rounds) {
    fl_stream streams[2];
    CHECK_OK(fl_stream_create(0, 0, &streams[0]));
    CHECK_OK(fl_stream_create(1, 0, &streams[1]));
    for (int round = 0; round < rounds; round++) {
        int32_t ndim = (int32_t)(test_random(&seed) % 6);
        int64_t shape[5];
        for (int32_t dim = 0; dim < ndim; dim++) {
            shape[dim] = 1 + (int64_t)(test_random(&seed) % (ndim < 3 ? 70 : 5));
        }
        where to = (where)(test_random(&seed) % WHERE_COUNT);
        where from = (where)(test_random(&seed) % WHERE_COUNT);
        fl_dtype dst_dtype = (fl_dtype)(test_random(&seed) % FL_DTYPE_COUNT);
        fl_dtype src_dtype =
            test_random(&seed) % 2 ? dst_dtype : (fl_dtype)(test_random(&seed) % FL_DTYPE_COUNT);
        bool non_blocking = test_random(&seed) % 2;
        test_note("round %d: %d <- %d, %s <- %s, %d dims, non_blocking %d", round, to, from,
                  fl_dtype_name(dst_dtype), fl_dtype_name(src_dtype), ndim, non_blocking);
        int64_t elems;
        fl_view view = random_view(dst_dtype, ndim, shape, false, &seed, &elems);
        fl_stream stream = test_random(&seed) % 2 ? 0 : streams[to == DEVICE_1];
        buffer dst = make(to, view, elems, stream, &seed);
        if (ndim && test_random(&seed) % 4 == 0) {
            shape[0] = 1; /* to be broadcast */
        }
        view = random_view(src_dtype, ndim, shape, true, &seed, &elems);
        stream = test_random(&seed) % 2 ? 0 : streams[from == DEVICE_1];
        buffer src = make(from, view, elems, stream, &seed);
        CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, non_blocking));
        if (dst.place.kind == FL_PLACE_HOST && non_blocking) {
            sync_place(src.place);
        }
        check_copied(&dst, &src);
        drop(&dst);
        drop(&src);
    }
    check_nothing_held();
}

TEST_WITH_LIMIT(copy, random_layouts_dtypes_and_places, 120) {
    rig_sim("2", NULL);
    random_pairs(4242, 3000);
}

TEST_WITH_LIMIT(copy, random_layouts_without_kernels_rows_and_peers, 120) {
    rig_bare("2", NULL);
    random_pairs(777, 3000);
}

TEST_WITH_LIMIT(copy, random_layouts_while_streams_are_late, 120) {
    CHECK_OK(fl_option_set(FL_OPT_SIM_DELAY_US, "300"));
    rig_sim("2", NULL);
    random_pairs(31337, 400);
}

TEST_WITH_LIMIT(copy, random_layouts_with_device_code, 120) {
    rig_with_code("2", NULL);
    const fl_kernels *kernels;
    if (fl_kernels_get(&kernels)) {
        test_skip("this build has no device code");
    }
    CHECK_STRING(kernels->name, "device");
    random_pairs(90210, 1500);
}

/* --- waiting -----------------------------------------------------------------------------------
 */

static fl_view line(fl_dtype dtype, int64_t count) {
    fl_view view;
    CHECK_OK(fl_view_init(&view, NULL, dtype, 1, &count, FL_FORMAT_CONTIGUOUS));
    return view;
}

static void *release_later(void *argument) {
    (void)argument;
    test_pause_ms(30);
    rig_release();
    return NULL;
}

TEST(copy, non_blocking_copies_of_pinned_memory_do_not_wait) {
    rig_sim("2", NULL);
    uint64_t seed = 5;
    buffer device = make(DEVICE_0, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
    buffer host = make(PINNED, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
    rig_block(0, 0);
    CHECK_OK(fl_copy_view(&device.view, device.place, &host.view, host.place, true));
    CHECK_STATUS(fl_stream_query(0, 0), FL_NOT_READY);
    /* Freed while the copy still waits: the cache must not hand it out. */
    void *other;
    fl_pinned_free(host.data);
    CHECK_OK(fl_pinned_alloc(4000, &other));
    CHECK(other != host.data);
    memset(other, 0, 4000);
    rig_release();
    CHECK_OK(fl_stream_synchronize(0, 0));
    char *now = malloc(device.bytes);
    move_bytes(&device, now, false);
    CHECK_BYTES(now, host.mirror, 4000);
    free(now);
    host.data = other;
    drop(&host);

    /* The other way, with a cast on the device. */
    buffer narrow = make(PINNED, line(FL_DTYPE_I16, 1000), 1000, 0, &seed);
    rig_block(0, 0);
    CHECK_OK(fl_copy_view(&narrow.view, narrow.place, &device.view, device.place, true));
    CHECK_STATUS(fl_stream_query(0, 0), FL_NOT_READY);
    rig_release();
    CHECK_OK(fl_stream_synchronize(0, 0));
    move_bytes(&device, device.mirror, false);
    check_copied(&narrow, &device);
    drop(&narrow);
    drop(&device);
    check_nothing_held();
}

TEST(copy, blocking_copies_wait) {
    rig_sim("2", NULL);
    uint64_t seed = 6;
    buffer device = make(DEVICE_0, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
    for (int at = PAGEABLE; at <= PINNED; at++) {
        for (int up = 0; up < 2; up++) {
            buffer host = make((where)at, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
            rig_block(0, 0);
            pthread_t thread;
            CHECK_INT(pthread_create(&thread, NULL, release_later, NULL), 0);
            buffer *dst = up ? &device : &host, *src = up ? &host : &device;
            CHECK_OK(fl_copy_view(&dst->view, dst->place, &src->view, src->place, false));
            CHECK_OK(fl_stream_query(0, 0));
            CHECK_INT(pthread_join(thread, NULL), 0);
            check_copied(dst, src);
            drop(&host);
        }
    }
    drop(&device);
}

TEST(copy, a_pageable_destination_is_complete_on_return) {
    rig_sim("2", NULL);
    uint64_t seed = 7;
    buffer device = make(DEVICE_0, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
    buffer host = make(PAGEABLE, line(FL_DTYPE_I32, 1000), 1000, 0, &seed);
    rig_block(0, 0);
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, release_later, NULL), 0);
    CHECK_OK(fl_copy_view(&host.view, host.place, &device.view, device.place, true));
    CHECK_OK(fl_stream_query(0, 0));
    CHECK_BYTES(host.data, device.mirror, device.bytes);
    CHECK_INT(pthread_join(thread, NULL), 0);
    /* A pageable source may be written at once, whatever the stream does. */
    rig_block(0, 0);
    memcpy(host.mirror, host.data, host.bytes);
    CHECK_INT(pthread_create(&thread, NULL, release_later, NULL), 0);
    CHECK_OK(fl_copy_view(&device.view, device.place, &host.view, host.place, true));
    memset(host.data, 0, host.bytes);
    CHECK_INT(pthread_join(thread, NULL), 0);
    char *now = malloc(device.bytes);
    move_bytes(&device, now, false);
    CHECK_BYTES(now, host.mirror, host.bytes);
    free(now);
    drop(&host);
    drop(&device);
}

TEST(copy, copies_on_one_device_never_wait) {
    rig_sim("2", NULL);
    uint64_t seed = 8;
    buffer dst = make(DEVICE_0, line(FL_DTYPE_F32, 1000), 1000, 0, &seed);
    buffer src = make(DEVICE_0, line(FL_DTYPE_I64, 1000), 1000, 0, &seed);
    buffer same = make(DEVICE_0, line(FL_DTYPE_F32, 1000), 1000, 0, &seed);
    double value = 3.0;
    fl_view scalar = {.data = &value, .dtype = FL_DTYPE_F64};
    rig_block(0, 0);
    CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, false));
    CHECK_OK(fl_copy_view(&same.view, same.place, &dst.view, dst.place, false));
    CHECK_OK(fl_copy_view(&dst.view, dst.place, &scalar, fl_place_host(), false));
    value = 4.0; /* was read */
    CHECK_STATUS(fl_stream_query(0, 0), FL_NOT_READY);
    rig_release();
    CHECK_OK(fl_stream_synchronize(0, 0));
    float now[1000];
    move_bytes(&dst, now, false);
    CHECK(now[0] == 3.0f && now[999] == 3.0f);
    check_copied(&same, &src);
    drop(&dst);
    drop(&src);
    drop(&same);
}

/* --- two streams -------------------------------------------------------------------------------
 */

static void check_order(where to, fl_stream to_stream, where from, fl_stream from_stream) {
    uint64_t seed = 9;
    buffer dst = make(to, line(FL_DTYPE_I32, 4096), 4096, to_stream, &seed);
    buffer src = make(from, line(FL_DTYPE_I32, 4096), 4096, from_stream, &seed);
    int32_t before = 0x01020304, after = 7;
    for (int side = 0; side < 2; side++) {
        fl_place late = side ? dst.place : src.place;
        rig_block(late.device, late.stream);
        pthread_t thread;
        CHECK_INT(pthread_create(&thread, NULL, release_later, NULL), 0);
        /* The source is written before the copy and again after it, both by its own stream. */
        CHECK_OK(fl_fill_view(&src.view, src.place, &before));
        CHECK_OK(fl_fill_view(&dst.view, dst.place, &after));
        CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, true));
        CHECK_OK(fl_fill_view(&src.view, src.place, &after));
        int32_t now[4096];
        move_bytes(&dst, now, false);
        for (int i = 0; i < 4096; i++) {
            CHECK_INT(now[i], before);
        }
        move_bytes(&src, now, false);
        CHECK_INT(now[0], after);
        CHECK_INT(pthread_join(thread, NULL), 0);
    }
    drop(&dst);
    drop(&src);
    check_nothing_held();
}

TEST(copy, streams_of_two_places_wait_for_each_other) {
    rig_sim("2", NULL);
    fl_stream other, remote;
    CHECK_OK(fl_stream_create(0, 0, &other));
    CHECK_OK(fl_stream_create(1, 0, &remote));
    check_order(DEVICE_0, 0, DEVICE_0, other);
    check_order(DEVICE_1, 0, DEVICE_0, 0);
    check_order(DEVICE_1, remote, DEVICE_0, other);
    check_order(DEVICE_0, other, DEVICE_1, remote);
}

TEST(copy, devices_that_cannot_reach_each_other_go_through_the_host) {
    rig_bare("2", NULL);
    uint64_t seed = 10;
    const int64_t count = (40 << 20) / 4; /* more than two pieces */
    buffer dst = make(DEVICE_1, line(FL_DTYPE_I32, count), count, 0, &seed);
    buffer src = make(DEVICE_0, line(FL_DTYPE_I32, count), count, 0, &seed);
    CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, true));
    check_copied(&dst, &src);
    drop(&dst);
    drop(&src);
    check_nothing_held();
}

/* --- large staging -----------------------------------------------------------------------------
 */

TEST_WITH_LIMIT(copy, large_copies_are_staged_in_slices, 120) {
    rig_bare("1", "1G");
    uint64_t seed = 11;
    /* 67 MiB that must be turned on the host. */
    int64_t shape[2] = {2200, 2000}, count = shape[0] * shape[1];
    static const int32_t order[2] = {1, 0};
    fl_view straight, turned;
    CHECK_OK(fl_view_init(&straight, NULL, FL_DTYPE_C128, 2, shape, FL_FORMAT_CONTIGUOUS));
    shape[0] = 2000;
    shape[1] = 2200;
    CHECK_OK(fl_view_init(&turned, NULL, FL_DTYPE_C128, 2, shape, FL_FORMAT_CONTIGUOUS));
    CHECK_OK(fl_view_permute(&turned, order, &turned));
    buffer src = make(PAGEABLE, turned, count, 0, &seed);
    buffer dst = make(DEVICE_0, straight, count, 0, &seed);
    CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, false));
    check_copied(&dst, &src);
    fl_pinned_stats stats;
    fl_pinned_get_stats(&stats);
    CHECK(stats.active_bytes.peak <= (int64_t)128 << 20);
    CHECK(stats.bucket_allocation[27] == 0); /* no block of 128 MiB */
    drop(&src);
    drop(&dst);
    check_nothing_held();
}

/* --- overlap -----------------------------------------------------------------------------------
 */

TEST(copy, overlap_is_refused_or_harmless) {
    rig_sim("2", NULL);
    uint64_t seed = 12;
    int64_t shape[2] = {9, 8};
    fl_view whole;
    CHECK_OK(fl_view_init(&whole, NULL, FL_DTYPE_I16, 2, shape, FL_FORMAT_CONTIGUOUS));
    for (int at = 0; at < 3; at++) {
        buffer it = make((where)at, whole, 72, 0, &seed);
        fl_view dst = it.view, src = it.view;
        dst.shape[0] = src.shape[0] = 8;
        dst.offset = 4;
        CHECK_STATUS(fl_copy_view(&dst, it.place, &src, it.place, false), FL_INVALID_ARGUMENT);
        dst.shape[1] = src.shape[1] = 6;
        dst.offset = 10;
        CHECK_OK(fl_copy_view(&dst, it.place, &src, it.place, false));
        int16_t now[72], before[72], wanted[72];
        memcpy(before, it.mirror, sizeof(before));
        memcpy(wanted, before, sizeof(wanted));
        for (int i = 0; i < 8; i++) {
            for (int j = 0; j < 6; j++) {
                wanted[10 + 8 * i + j] = before[8 * i + j];
            }
        }
        move_bytes(&it, now, false);
        CHECK_BYTES(now, wanted, sizeof(now));
        CHECK_OK(fl_copy_view(&it.view, it.place, &it.view, it.place, false));
        drop(&it);
    }
}

/* --- fill --------------------------------------------------------------------------------------
 */

static void check_fills(uint64_t seed) {
    for (int round = 0; round < 600; round++) {
        int64_t shape[4];
        int32_t ndim = (int32_t)(test_random(&seed) % 5);
        for (int32_t dim = 0; dim < ndim; dim++) {
            shape[dim] = (int64_t)(test_random(&seed) % 8);
        }
        fl_dtype dtype = (fl_dtype)(test_random(&seed) % FL_DTYPE_COUNT);
        int64_t elems;
        fl_view view = random_view(dtype, ndim, shape, false, &seed, &elems);
        if (elems < 1) {
            continue;
        }
        buffer it = make((where)(test_random(&seed) % WHERE_COUNT), view, elems, 0, &seed);
        unsigned char element[16];
        unsigned char fill = (unsigned char)test_random(&seed);
        for (size_t i = 0; i < sizeof(element); i++) {
            element[i] = round % 2 ? (unsigned char)test_random(&seed) : fill;
        }
        test_note("round %d: %s, %d dims, where %d", round, fl_dtype_name(dtype), ndim, it.where);
        CHECK_OK(fl_fill_view(&it.view, it.place, element));
        fl_view mirror = it.view;
        mirror.data = it.mirror;
        fl_view scalar = {.data = element, .dtype = dtype}, spread;
        CHECK_OK(fl_view_expand(&scalar, ndim, it.view.shape, &spread));
        fl_host_copy(&mirror, &spread);
        char *now = malloc(it.bytes);
        move_bytes(&it, now, false);
        CHECK_BYTES(now, it.mirror, it.bytes);
        free(now);
        drop(&it);
    }
    check_nothing_held();
}

TEST_WITH_LIMIT(copy, fills_of_every_dtype_and_layout, 60) {
    rig_sim("2", NULL);
    check_fills(13);
}

TEST_WITH_LIMIT(copy, fills_without_kernels, 60) {
    rig_bare("2", NULL);
    check_fills(14);
}

/* --- wrong calls -------------------------------------------------------------------------------
 */

TEST(copy, wrong_arguments_are_said) {
    rig_sim("2", NULL);
    uint64_t seed = 15;
    buffer a = make(DEVICE_0, line(FL_DTYPE_F32, 8), 8, 0, &seed);
    buffer b = make(PAGEABLE, line(FL_DTYPE_F32, 6), 6, 0, &seed);
    CHECK_STATUS(fl_copy_view(&a.view, a.place, &b.view, b.place, false), FL_INVALID_ARGUMENT);
    fl_view bad = a.view;
    bad.dtype = FL_DTYPE_COUNT;
    CHECK_STATUS(fl_copy_view(&bad, a.place, &a.view, a.place, false), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_copy_view(&a.view, a.place, &bad, a.place, false), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_fill_view(&bad, a.place, &bad), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_copy_view(&a.view, fl_place_device(2, 0), &a.view, a.place, false),
                 FL_OUT_OF_RANGE);
    float value = 1;
    fl_view wide = a.view;
    wide.stride[0] = 0;
    CHECK_STATUS(fl_fill_view(&wide, a.place, &value), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "single memory location");
    fl_view none = line(FL_DTYPE_F32, 0);
    CHECK_OK(fl_copy_view(&none, a.place, &none, b.place, false));
    CHECK_STATUS(fl_copy_view(&none, a.place, &a.view, a.place, false), FL_INVALID_ARGUMENT);
    CHECK_OK(fl_fill_view(&none, a.place, &value));
    /* -1 is the thread's current device. */
    CHECK_OK(fl_device_set_current(0));
    CHECK_OK(fl_fill_view(&a.view, fl_place_device(-1, 0), &value));
    float now[8];
    move_bytes(&a, now, false);
    CHECK(now[7] == value);
    drop(&a);
    drop(&b);
}

/* Between host places no device is needed. */
TEST(copy, host_to_host_needs_no_platform) {
    float src[6] = {1.5f, 2.5f, -3.5f, 4.0f, 5.0f, 6.0f};
    int8_t dst[6];
    fl_view from = line(FL_DTYPE_F32, 6), to = line(FL_DTYPE_I8, 6);
    from.data = src;
    to.data = dst;
    CHECK_OK(fl_copy_view(&to, fl_place_host(), &from, fl_place_host(), false));
    static const int8_t wanted[6] = {1, 2, -3, 4, 5, 6};
    CHECK_BYTES(dst, wanted, 6);
    int8_t seven = 7;
    CHECK_OK(fl_fill_view(&to, fl_place_host(), &seven));
    CHECK_INT(dst[5], 7);
    CHECK(!fl_device_is_initialized());
}

/* --- failing calls -----------------------------------------------------------------------------
 */

static void copy_under_faults(fl__fault *fault, buffer *dst, buffer *src) {
    for (int64_t nth = 1;; nth++) {
        CHECK(nth < 200);
        fl__fault_arm(fault, FL__SLOT_ANY, nth, FL_DEVICE_ERROR, false);
        fl_status status = fl_copy_view(&dst->view, dst->place, &src->view, src->place, false);
        bool failed = atomic_load(&fault->failures) > 0;
        fl__fault_disarm(fault);
        for (fl_device device = 0; device < 2; device++) {
            CHECK_OK(fl_device_synchronize(device));
            CHECK_OK(fl_memory_check(device));
        }
        CHECK_OK(fl_pinned_check());
        if (!failed) {
            CHECK_OK(status);
            break;
        }
        /* Events of the caches may fail and are tried again later, so failing is no must. */
        if (status) {
            CHECK_STATUS(status, FL_DEVICE_ERROR);
        } else {
            check_copied(dst, src);
        }
    }
    check_copied(dst, src);
}

TEST_WITH_LIMIT(copy, every_call_that_fails_is_passed_on_and_nothing_leaks, 120) {
    fl__fault *fault = rig_faulty("2", NULL);
    uint64_t seed = 16;
    for (int to = 0; to < WHERE_COUNT; to++) {
        for (int from = 0; from < WHERE_COUNT; from++) {
            for (int kind = 0; kind < 3; kind++) {
                test_note("%d <- %d, kind %d", to, from, kind);
                int64_t shape[2] = {12, 10}, elems;
                static const int32_t straight[2] = {0, 1}, turned[2] = {1, 0};
                fl_view view = layout_make(FL_DTYPE_F32, 2, shape, straight,
                                           kind == 2 ? LAYOUT_GAPS : LAYOUT_DENSE, 1, &elems);
                buffer dst = make((where)to, view, elems, 0, &seed);
                view = layout_make(kind == 1 ? FL_DTYPE_F16 : FL_DTYPE_F32, 2, shape,
                                   kind ? turned : straight, LAYOUT_DENSE, 0, &elems);
                buffer src = make((where)from, view, elems, 0, &seed);
                copy_under_faults(fault, &dst, &src);
                drop(&dst);
                drop(&src);
            }
        }
    }
    check_nothing_held();
}

TEST(copy, a_fill_that_fails_is_passed_on) {
    fl__fault *fault = rig_faulty("1", NULL);
    uint64_t seed = 17;
    buffer it = make(DEVICE_0, line(FL_DTYPE_F32, 100), 100, 0, &seed);
    float one = 1.0f, zero = 0.0f;
    CHECK_OK(fl_fill_view(&it.view, it.place, &one));
    fl__fault_arm(fault, FL__SLOT_ANY, 1, FL_DEVICE_ERROR, false);
    CHECK_STATUS(fl_fill_view(&it.view, it.place, &one), FL_DEVICE_ERROR);
    fl__fault_arm(fault, FL__SLOT_ANY, 1, FL_DEVICE_ERROR, false);
    CHECK_STATUS(fl_fill_view(&it.view, it.place, &zero), FL_DEVICE_ERROR);
    fl__fault_disarm(fault);
    drop(&it);
}

/* --- threads -----------------------------------------------------------------------------------
 */

static void *copy_in_thread(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    for (int round = 0; round < 60; round++) {
        where to = (where)(test_random(&seed) % WHERE_COUNT);
        where from = (where)(test_random(&seed) % WHERE_COUNT);
        int64_t shape[3] = {7, 9, 11}, elems;
        fl_view view = random_view(FL_DTYPE_F32, 3, shape, false, &seed, &elems);
        buffer dst = make(to, view, elems, 0, &seed);
        view = random_view(round % 2 ? FL_DTYPE_F32 : FL_DTYPE_I16, 3, shape, true, &seed, &elems);
        buffer src = make(from, view, elems, 0, &seed);
        CHECK_OK(fl_copy_view(&dst.view, dst.place, &src.view, src.place, false));
        check_copied(&dst, &src);
        drop(&dst);
        drop(&src);
    }
    return NULL;
}

TEST_WITH_LIMIT(copy, threads_copy_at_once, 120) {
    rig_sim("2", NULL);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, copy_in_thread, (void *)(i + 100)), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    check_nothing_held();
}
