/* test_stream.c: streams as values, pools, the current stream. */
#include "fl/stream.h"

#include <pthread.h>

#include "fl/debug.h"
#include "harness.h"

static void use(const char *platform) {
    CHECK_OK(fl_platform_choose(platform, NULL));
    CHECK_OK(fl_device_init());
}

TEST(stream, the_default_one) {
    use("sim");
    fl_native_stream native = NULL, again = NULL, other = NULL;
    CHECK_INT(fl_stream_current(0), FL_STREAM_DEFAULT);
    CHECK_OK(fl_stream_native(0, FL_STREAM_DEFAULT, &native));
    CHECK_OK(fl_stream_native(FL_DEVICE_CURRENT, FL_STREAM_DEFAULT, &again));
    CHECK_OK(fl_stream_native(1, FL_STREAM_DEFAULT, &other));
    CHECK(native != NULL);
    CHECK_POINTER(again, native);
    CHECK(other != native);
    int32_t priority = 77;
    CHECK_OK(fl_stream_priority(0, FL_STREAM_DEFAULT, &priority));
    CHECK_INT(priority, 0);
    CHECK_OK(fl_stream_query(0, FL_STREAM_DEFAULT));
    CHECK_OK(fl_stream_synchronize(0, FL_STREAM_DEFAULT));
}

TEST(stream, a_synchronous_driver_needs_none) {
    use("cpu");
    fl_native_stream native = &native;
    CHECK_OK(fl_stream_native(0, FL_STREAM_DEFAULT, &native));
    CHECK_POINTER(native, NULL);
    fl_stream stream = 0, wrapped = 77;
    CHECK_OK(fl_stream_from_pool(0, 0, &stream));
    CHECK(stream != FL_STREAM_DEFAULT);
    CHECK_OK(fl_stream_query(0, stream));
    CHECK_OK(fl_stream_wrap(0, NULL, &wrapped));
    CHECK_INT(wrapped, FL_STREAM_DEFAULT);
}

TEST(stream, the_pool_goes_round) {
    use("sim");
    enum { POOL = 32 };
    fl_stream streams[3 * POOL];
    for (int i = 0; i < 3 * POOL; i++) {
        CHECK_OK(fl_stream_from_pool(0, 0, &streams[i]));
        CHECK(streams[i] > 0);
        for (int j = 0; j < i; j++) {
            CHECK_INT(streams[i] == streams[j], i % POOL == j % POOL);
        }
    }
    fl_native_stream natives[POOL];
    for (int i = 0; i < POOL; i++) {
        CHECK_OK(fl_stream_native(0, streams[i], &natives[i]));
        for (int j = 0; j < i; j++) {
            CHECK(natives[i] != natives[j]);
        }
    }
}

TEST(stream, priorities_have_pools_of_their_own) {
    use("sim");
    int32_t least = 77, greatest = 77;
    CHECK_OK(fl_stream_priority_range(0, &least, &greatest));
    CHECK_INT(least, 0);
    CHECK_INT(greatest, -2);
    static const int32_t asked[] = {0, -1, -2, -100, 5, INT32_MIN, INT32_MAX};
    static const int32_t given[] = {0, -1, -2, -2, 0, -2, 0};
    for (int i = 0; i < 7; i++) {
        fl_stream pooled = 0, own = 0;
        int32_t priority = 77;
        CHECK_OK(fl_stream_from_pool(0, asked[i], &pooled));
        CHECK_OK(fl_stream_priority(0, pooled, &priority));
        CHECK_INT(priority, given[i]);
        CHECK_OK(fl_stream_create(0, asked[i], &own));
        CHECK_OK(fl_stream_priority(0, own, &priority));
        CHECK_INT(priority, given[i]);
        CHECK_OK(fl_stream_release(0, own));
    }
}

TEST(stream, own_streams_live_until_released) {
    use("sim");
    fl_stream a = 0, b = 0, c = 0;
    fl_native_stream native = NULL;
    CHECK_OK(fl_stream_create(0, 0, &a));
    CHECK_OK(fl_stream_create(0, 0, &b));
    CHECK(a != b && a > 0 && b > 0);
    CHECK_OK(fl_stream_release(0, a));
    CHECK_STATUS(fl_stream_native(0, a, &native), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "released");
    CHECK_STATUS(fl_stream_release(0, a), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_stream_set_current(0, a), FL_INVALID_ARGUMENT);
    CHECK_OK(fl_stream_native(0, b, &native));
    /* The place is used again, the value is not. */
    CHECK_OK(fl_stream_create(0, 0, &c));
    CHECK(c != a && c != b);
    CHECK_STATUS(fl_stream_query(0, a), FL_INVALID_ARGUMENT);
    CHECK_OK(fl_stream_query(0, c));
    for (int i = 0; i < 300; i++) {
        CHECK_OK(fl_stream_create(1, 0, &a));
        CHECK_OK(fl_stream_release(1, a));
    }
}

TEST(stream, values_that_are_none) {
    use("sim");
    fl_stream pooled = 0;
    CHECK_OK(fl_stream_from_pool(0, 0, &pooled));
    static const fl_stream bad[] = {-1, INT64_MIN, INT64_MAX, 4, 15, 0x1000000, 2, 3, (3 << 9) | 1};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        test_note("value 0x%lx", (long)bad[i]);
        fl_native_stream native = &native;
        CHECK_STATUS(fl_stream_native(0, bad[i], &native), FL_INVALID_ARGUMENT);
        CHECK_POINTER(native, &native);
        CHECK_STATUS(fl_stream_synchronize(0, bad[i]), FL_INVALID_ARGUMENT);
        CHECK_STATUS(fl_stream_set_current(0, bad[i]), FL_INVALID_ARGUMENT);
    }
    CHECK_INT(fl_stream_current(0), FL_STREAM_DEFAULT);
    CHECK_STATUS(fl_stream_release(0, pooled), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_stream_release(0, FL_STREAM_DEFAULT), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_stream_from_pool(2, 0, &pooled), FL_OUT_OF_RANGE);
    CHECK_INT(fl_stream_current(FL_DEVICE_MAX), FL_STREAM_DEFAULT);
    CHECK_INT(fl_stream_current(-2), FL_STREAM_DEFAULT);
}

TEST(stream, wrapping) {
    use("sim");
    const fl_driver *drv = fl_platform_driver();
    fl_native_stream native = NULL, found = NULL;
    CHECK_OK(drv->stream_create(drv->ctx, 0, 0, &native));
    fl_stream wrapped = 0, again = 0;
    CHECK_OK(fl_stream_wrap(0, native, &wrapped));
    CHECK_OK(fl_stream_wrap(0, native, &again));
    CHECK_INT(again, wrapped);
    CHECK_OK(fl_stream_native(0, wrapped, &found));
    CHECK_POINTER(found, native);
    CHECK_STATUS(fl_stream_release(0, wrapped), FL_INVALID_ARGUMENT);
    /* A handle of one of our own streams is that stream. */
    fl_stream pooled = 0, own = 0;
    CHECK_OK(fl_stream_from_pool(0, -1, &pooled));
    CHECK_OK(fl_stream_native(0, pooled, &native));
    CHECK_OK(fl_stream_wrap(0, native, &again));
    CHECK_INT(again, pooled);
    CHECK_OK(fl_stream_create(0, 0, &own));
    CHECK_OK(fl_stream_native(0, own, &native));
    CHECK_OK(fl_stream_wrap(0, native, &again));
    CHECK_INT(again, own);
    CHECK_OK(fl_stream_native(0, FL_STREAM_DEFAULT, &native));
    CHECK_OK(fl_stream_wrap(0, native, &again));
    CHECK_INT(again, FL_STREAM_DEFAULT);
}

TEST(stream, many_wrapped_handles) {
    use("cpu");
    enum { COUNT = 500 };
    fl_stream streams[COUNT];
    static char handles[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK_OK(fl_stream_wrap(0, &handles[i], &streams[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        fl_native_stream native = NULL;
        CHECK_OK(fl_stream_native(0, streams[i], &native));
        CHECK_POINTER(native, &handles[i]);
    }
}

static void *use_other_stream(void *argument) {
    fl_stream mine = *(fl_stream *)argument;
    CHECK_INT(fl_stream_current(0), FL_STREAM_DEFAULT);
    CHECK_OK(fl_stream_set_current(0, mine));
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(fl_stream_current(0), mine);
        CHECK_INT(fl_stream_current(1), FL_STREAM_DEFAULT);
    }
    return NULL;
}

TEST(stream, the_current_one_belongs_to_thread_and_device) {
    use("sim");
    fl_stream a = 0, b = 0;
    CHECK_OK(fl_stream_from_pool(0, 0, &a));
    CHECK_OK(fl_stream_from_pool(0, 0, &b));
    CHECK_OK(fl_stream_set_current(0, a));
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, use_other_stream, &b), 0);
    CHECK_INT(fl_stream_current(FL_DEVICE_CURRENT), a);
    CHECK_INT(fl_stream_current(1), FL_STREAM_DEFAULT);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_INT(fl_stream_current(0), a);
    CHECK_OK(fl_device_set_current(1));
    CHECK_INT(fl_stream_current(FL_DEVICE_CURRENT), FL_STREAM_DEFAULT);
    CHECK_OK(fl_stream_set_current(0, FL_STREAM_DEFAULT));
    CHECK_INT(fl_stream_current(0), FL_STREAM_DEFAULT);
}

static void *churn(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < 300; i++) {
        fl_device device = (fl_device)(test_random(&seed) % 2);
        fl_stream pooled = 0, own = 0;
        CHECK_OK(fl_stream_from_pool(device, -(int32_t)(test_random(&seed) % 3), &pooled));
        CHECK_OK(fl_stream_set_current(device, pooled));
        CHECK_OK(fl_stream_synchronize(device, fl_stream_current(device)));
        CHECK_OK(fl_stream_create(device, 0, &own));
        fl_native_stream native = NULL;
        CHECK_OK(fl_stream_native(device, own, &native));
        CHECK_OK(fl_stream_query(device, own));
        CHECK_OK(fl_stream_release(device, own));
    }
    return NULL;
}

TEST_WITH_LIMIT(stream, many_threads_make_and_release, 120) {
    use("sim");
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < 6; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_OK(fl_device_synchronize(0));
    CHECK_OK(fl_device_synchronize(1));
}

/* One after the other, each on what the one before it left. */
static void triple_and_add_one(void *argument) {
    int *value = argument;
    *value = 3 * *value % 1009 + 1;
}

static void check_host_functions(const char *platform) {
    use(platform);
    int value = 0, wanted = 0;
    fl_stream stream = 0;
    CHECK_OK(fl_stream_from_pool(0, 0, &stream));
    for (int i = 0; i < 500; i++) {
        CHECK_OK(fl_stream_host_call(0, stream, triple_and_add_one, &value));
        triple_and_add_one(&wanted);
    }
    CHECK_OK(fl_stream_synchronize(0, stream));
    CHECK_INT(value, wanted);
}

TEST(stream, host_functions_run_in_order_on_the_host) {
    check_host_functions("cpu");
}

TEST(stream, host_functions_run_in_order_on_sim) {
    check_host_functions("sim");
}
