/* test_device.c: counting, first use, the current device, fork. */
#include "runtime/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/host.h"
#include "fl/stream.h"
#include "fl/debug.h"
#include "harness.h"

static void use(const char *platform) {
    CHECK_OK(fl_platform_choose(platform, NULL));
}

TEST(device, counting_makes_no_first_use) {
    CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, "3"));
    use("sim");
    CHECK_INT(fl_device_count(), 3);
    CHECK(!fl_device_is_initialized());
    CHECK_POINTER(fl__device_driver(), NULL);
    CHECK_OK(fl_device_check(2));
    CHECK(!fl_device_is_initialized());
    CHECK_OK(fl_device_init());
    CHECK_OK(fl_device_init());
    CHECK(fl_device_is_initialized());
    CHECK_POINTER(fl__device_driver(), fl_platform_driver());
}

TEST(device, indexes_out_of_range) {
    use("sim");
    static const fl_device bad[] = {2, 64, 1000, -2, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const fl_device_properties *properties = NULL;
        CHECK_STATUS(fl_device_check(bad[i]), FL_OUT_OF_RANGE);
        CHECK_CONTAINS(fl_last_message(), "platform sim has 2 devices");
        CHECK_STATUS(fl_device_set_current(bad[i]), FL_OUT_OF_RANGE);
        CHECK_STATUS(fl_device_get_properties(bad[i], &properties), FL_OUT_OF_RANGE);
        CHECK_STATUS(fl_device_synchronize(bad[i]), FL_OUT_OF_RANGE);
        CHECK_POINTER(properties, NULL);
    }
    CHECK_STATUS(fl_device_check(FL_DEVICE_CURRENT), FL_OUT_OF_RANGE);
    CHECK_INT(fl_device_current(), 0);
}

static void *use_other_device(void *argument) {
    (void)argument;
    CHECK_INT(fl_device_current(), 0);
    CHECK_OK(fl_device_set_current(1));
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(fl_device_current(), 1);
        CHECK_OK(fl_device_set_current(FL_DEVICE_CURRENT));
    }
    return NULL;
}

TEST(device, the_current_one_belongs_to_the_thread) {
    use("sim");
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, use_other_device, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(fl_device_current(), 0);
    }
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_OK(fl_device_set_current(1));
    CHECK_INT(fl_device_current(), 1);
    const fl_driver *drv = NULL;
    fl_device device = FL_DEVICE_CURRENT;
    CHECK_OK(fl__device_enter(&device, &drv));
    CHECK_INT(device, 1);
}

TEST(device, properties_of_the_host) {
    use("cpu");
    const fl_device_properties *properties = NULL, *again = NULL;
    CHECK_INT(fl_device_count(), 1);
    CHECK_OK(fl_device_get_properties(0, &properties));
    CHECK_OK(fl_device_get_properties(FL_DEVICE_CURRENT, &again));
    CHECK_POINTER(again, properties);
    CHECK(properties->name[0]);
    CHECK_INT(properties->processor_count, sysconf(_SC_NPROCESSORS_ONLN));
    CHECK(properties->integrated);
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    CHECK(properties->total_memory > pages / 2 && properties->total_memory < pages * 2);
    uint64_t free_bytes = 0, total = 0;
    CHECK_OK(fl_device_memory_info(0, &free_bytes, &total));
    CHECK_UINT(total, properties->total_memory);
    CHECK(free_bytes > 0 && free_bytes <= total);
    CHECK_OK(fl_device_synchronize(0));
}

TEST(device, properties_of_sim) {
    CHECK_OK(fl_option_set(FL_OPT_SIM_MEMORY, "64M"));
    use("sim");
    const fl_device_properties *properties[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fl_device_get_properties(i, &properties[i]));
        CHECK_UINT(properties[i]->total_memory, 64 << 20);
        CHECK(!properties[i]->integrated);
    }
    CHECK(strcmp(properties[0]->uuid, properties[1]->uuid) != 0);
    uint64_t free_bytes = 0, total = 0;
    CHECK_OK(fl_device_memory_info(1, &free_bytes, &total));
    CHECK_UINT(free_bytes, 64 << 20);
    CHECK_UINT(total, 64 << 20);
}

TEST(device, peers) {
    use("sim");
    bool can = false;
    CHECK_OK(fl_device_can_access_peer(0, 1, &can));
    CHECK(can);
    CHECK_STATUS(fl_device_can_access_peer(0, 2, &can), FL_OUT_OF_RANGE);
}

/* --- what fails and is tried again ------------------------------------------------------------ */

static int failures_left;
static int32_t count_to_tell = 1;

static fl_status init_sometimes(void *ctx) {
    (void)ctx;
    return failures_left-- > 0 ? fl_fail(FL_DEVICE_ERROR, "moody: not now") : FL_OK;
}

static fl_status count_told(void *ctx, int32_t *out_count) {
    (void)ctx;
    *out_count = count_to_tell;
    return FL_OK;
}

static fl_status probe_moody(const fl_platform *platform) {
    (void)platform;
    return FL_OK;
}

static fl_status open_moody(const fl_platform *platform, const fl_driver **out_driver) {
    static fl_driver table;
    (void)platform;
    const fl_driver *host = NULL;
    FL_TRY(fl__platform_cpu.open(&fl__platform_cpu, &host));
    table = *host;
    table.init = init_sometimes;
    table.device_count = count_told;
    table.mem_info = NULL;
    *out_driver = &table;
    return FL_OK;
}

static const fl_platform moody = {"moody", FL_TWIN_NONE, -1, probe_moody, open_moody, NULL};

TEST(device, a_failed_first_use_may_be_repeated) {
    failures_left = 2;
    CHECK_OK(fl_platform_register(&moody));
    use("moody");
    CHECK_INT(fl_device_count(), 0);
    CHECK_STATUS(fl_device_set_current(0), FL_DEVICE_ERROR);
    CHECK_CONTAINS(fl_last_message(), "not now");
    CHECK(!fl_device_is_initialized());
    CHECK_OK(fl_device_set_current(0));
    CHECK(fl_device_is_initialized());
    CHECK_INT(failures_left, -1); /* Not initialised a second time. */
    uint64_t free_bytes = 1, total = 2;
    CHECK_STATUS(fl_device_memory_info(0, &free_bytes, &total), FL_NOT_SUPPORTED);
    CHECK_UINT(free_bytes, 1);
}

TEST(device, a_platform_without_devices) {
    count_to_tell = 0;
    CHECK_OK(fl_platform_register(&moody));
    use("moody");
    CHECK_INT(fl_device_count(), 0);
    CHECK_STATUS(fl_device_init(), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "moody has no device");
    CHECK_STATUS(fl_device_check(0), FL_OUT_OF_RANGE);
    CHECK_CONTAINS(fl_last_message(), "0 devices");
}

TEST(device, more_devices_than_we_can_name) {
    count_to_tell = 1000;
    CHECK_OK(fl_platform_register(&moody));
    use("moody");
    CHECK_INT(fl_device_count(), FL_DEVICE_MAX);
}

TEST(device, an_unusable_platform_counts_none) {
    CHECK_INT(setenv("TORCH_FL_PLATFORM", "nonsense", 1), 0);
    CHECK_INT(fl_device_count(), 0);
    CHECK_STATUS(fl_device_init(), FL_NOT_FOUND);
    CHECK_CONTAINS(fl_last_message(), "nonsense");
}

/* --- fork ------------------------------------------------------------------------------------- */

static void check_bad_fork(void *argument) {
    (void)argument;
    bool can = false;
    const fl_device_properties *properties = NULL;
    bool is_right =
        fl_device_in_bad_fork() && !fl_device_is_initialized() && fl__device_driver() == NULL &&
        fl_device_init() == FL_BAD_FORK && fl_device_set_current(0) == FL_BAD_FORK &&
        fl_device_synchronize(0) == FL_BAD_FORK &&
        fl_device_get_properties(0, &properties) == FL_BAD_FORK &&
        fl_device_can_access_peer(0, 1, &can) == FL_BAD_FORK &&
        strstr(fl_last_message(), "spawn") && fl_device_count() == 2 && fl_device_current() == 1;
    _exit(is_right ? 0 : 1);
}

TEST(device, a_child_of_a_process_in_use_may_not_go_on) {
    use("sim");
    CHECK_OK(fl_device_set_current(1));
    CHECK_INT(test_crash_of(check_bad_fork, NULL), 0);
    CHECK(!fl_device_in_bad_fork());
    CHECK_OK(fl_device_synchronize(0));
}

static void check_good_fork(void *argument) {
    (void)argument;
    bool is_right = !fl_device_in_bad_fork() && fl_device_set_current(1) == FL_OK &&
                    fl_device_synchronize(1) == FL_OK;
    _exit(is_right ? 0 : 1);
}

TEST(device, a_child_of_a_process_that_only_counted_may) {
    use("sim");
    CHECK_INT(fl_device_count(), 2);
    CHECK_INT(test_crash_of(check_good_fork, NULL), 0);
}

static void exit_normally(void *argument) {
    (void)argument;
    exit(0);
}

TEST(device, a_forked_child_exits_cleanly) {
    use("sim");
    fl_stream stream = 0;
    CHECK_OK(fl_stream_create(0, 0, &stream));
    CHECK_INT(test_crash_of(exit_normally, NULL), 0);
}

static void *first_use(void *argument) {
    (void)argument;
    CHECK_OK(fl_device_set_current(1));
    return NULL;
}

TEST(device, first_use_by_many_threads) {
    CHECK_INT(setenv("TORCH_FL_PLATFORM", "sim", 1), 0);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, first_use, NULL), 0);
    }
    for (int i = 0; i < 8; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_INT(fl_device_current(), 0);
}
