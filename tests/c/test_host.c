/* test_host.c: the host as a device. */
#include "driver/host.h"

#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "harness.h"

static const fl_driver *drv;

static void start(void) {
    CHECK_OK(fl__platform_cpu.probe(&fl__platform_cpu));
    CHECK_OK(fl__platform_cpu.open(&fl__platform_cpu, &drv));
    CHECK_OK(fl_driver_check(drv));
    CHECK_OK(fl__drv_init(drv));
}

TEST(host, memory_is_aligned_and_the_hosts_own) {
    start();
    for (size_t bytes = 1; bytes < 100000; bytes = bytes * 3 + 1) {
        void *block = NULL, *pinned = NULL;
        CHECK_OK(fl__drv_mem_alloc(drv, 0, bytes, &block));
        CHECK_OK(fl__drv_host_alloc(drv, bytes, &pinned));
        CHECK_INT((uintptr_t)block % 256, 0);
        memset(block, 3, bytes);
        memset(pinned, 4, bytes);
        CHECK_OK(fl__drv_mem_free(drv, 0, block));
        CHECK_OK(fl__drv_host_free(drv, pinned));
    }
    void *block = NULL;
    CHECK_STATUS(fl__drv_mem_alloc(drv, 0, SIZE_MAX / 2, &block), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "device memory");
    CHECK(fl_last_vendor_code() != 0);
    CHECK_POINTER(block, NULL);
}

TEST(host, copies_and_fills_are_done_when_the_call_returns) {
    start();
    char a[12] = "abcdefghijk", b[12] = {0};
    CHECK_OK(fl__drv_copy(drv, 0, b, a, 12, FL_COPY_DEVICE_TO_DEVICE, NULL));
    CHECK_STRING(b, a);
    CHECK_OK(fl__drv_fill(drv, 0, b, 'x', 5, NULL));
    CHECK_STRING(b, "xxxxxfghijk");
    CHECK_OK(fl__drv_copy_2d(drv, 0, b, 4, a, 3, 2, 3, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_STRING(b, "abxxdeghghk");
    CHECK_OK(fl__drv_copy_peer(drv, b, 0, "12", 0, 2, NULL));
    CHECK_STRING(b, "12xxdeghghk");
    bool capturing = true;
    CHECK_OK(fl__drv_stream_is_capturing(drv, 0, NULL, &capturing));
    CHECK(!capturing);
}

static void set_one(void *argument) {
    *(int *)argument = 1;
}

TEST(host, streams_and_events) {
    start();
    fl_native_stream a = NULL, b = NULL;
    CHECK_OK(fl__drv_stream_create(drv, 0, -5, &a));
    CHECK_OK(fl__drv_stream_create(drv, 0, 0, &b));
    CHECK(a && b && a != b);
    int value = 0;
    CHECK_OK(fl__drv_stream_host_call(drv, 0, a, set_one, &value));
    CHECK_INT(value, 1);
    fl_native_event start_event = NULL, end_event = NULL;
    CHECK_OK(fl__drv_event_create(drv, 0, FL_EVENT_TIMING, &start_event));
    CHECK_OK(fl__drv_event_create(drv, 0, FL_EVENT_TIMING, &end_event));
    CHECK_OK(fl__drv_event_query(drv, 0, start_event));
    double ms = -1;
    CHECK_STATUS(fl__drv_event_elapsed_ms(drv, 0, start_event, end_event, &ms),
                 FL_INVALID_ARGUMENT);
    CHECK_OK(fl__drv_event_record(drv, 0, start_event, a));
    test_pause_ms(20);
    CHECK_OK(fl__drv_event_record(drv, 0, end_event, b));
    CHECK_OK(fl__drv_stream_wait_event(drv, 0, a, end_event));
    CHECK_OK(fl__drv_event_elapsed_ms(drv, 0, start_event, end_event, &ms));
    CHECK(ms >= 19 && ms < 5000);
    CHECK_OK(fl__drv_event_destroy(drv, 0, start_event));
    CHECK_OK(fl__drv_event_destroy(drv, 0, end_event));
    CHECK_OK(fl__drv_stream_query(drv, 0, a));
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, NULL));
    CHECK_OK(fl__drv_stream_destroy(drv, 0, a));
    CHECK_OK(fl__drv_stream_destroy(drv, 0, b));
    int32_t least = 7, greatest = 7;
    CHECK_OK(fl__drv_stream_priority_range(drv, 0, &least, &greatest));
    CHECK_INT(least, 0);
    CHECK_INT(greatest, 0);
}

TEST(host, what_the_machine_says) {
    char name[64], narrow[4];
    uint64_t free_bytes = 0, total = 0;
    fl__host_processor_name(name, sizeof(name));
    fl__host_processor_name(narrow, sizeof(narrow));
    CHECK(name[0] && !strchr(name, '\n') && name[0] != ' ');
    CHECK_INT(strlen(narrow), strlen(name) < 3 ? strlen(name) : 3);
    CHECK_BYTES(narrow, name, strlen(narrow));
    fl__host_memory(&free_bytes, &total);
    CHECK(total >= (uint64_t)64 << 20 && free_bytes <= total);
}
