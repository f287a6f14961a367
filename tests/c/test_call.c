/* test_call.c: the wrappers of the driver's slots: defaults, sizes of 0, drivers that misbehave. */
#include "driver/call.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "driver/host.h"
#include "fl/debug.h"
#include "harness.h"

static fl_driver table;

/* The host's table without its optional slots. */
static void start(void) {
    const fl_driver *host = NULL;
    CHECK_OK(fl__platform_cpu.open(&fl__platform_cpu, &host));
    table = *host;
    table.name = "bare";
    table.mem_info = NULL;
    table.stream_priority_range = NULL;
    table.event_elapsed_ms = NULL;
    table.peer_can_access = NULL;
    table.copy_peer = NULL;
    table.copy_2d = NULL;
    table.stream_host_call = NULL;
    table.stream_is_capturing = NULL;
}

static void do_nothing(void *argument) {
    (void)argument;
}

TEST(call, defaults_of_optional_slots) {
    start();
    uint64_t free_bytes = 1, total = 2;
    CHECK_STATUS(fl__drv_mem_info(&table, 0, &free_bytes, &total), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "driver bare");
    CHECK_UINT(free_bytes, 1);
    int32_t least = 7, greatest = 7;
    CHECK_OK(fl__drv_stream_priority_range(&table, 0, &least, &greatest));
    CHECK_INT(least, 0);
    CHECK_INT(greatest, 0);
    double ms = 7;
    CHECK_STATUS(fl__drv_event_elapsed_ms(&table, 0, NULL, NULL, &ms), FL_NOT_SUPPORTED);
    CHECK(ms == 7);
    bool can = true;
    CHECK_OK(fl__drv_peer_can_access(&table, 0, 1, &can));
    CHECK(!can);
    CHECK_OK(fl__drv_peer_can_access(&table, 1, 1, &can));
    CHECK(can);
    char a = 1, b = 2;
    CHECK(!fl__drv_has_copy_peer(&table));
    CHECK_STATUS(fl__drv_copy_peer(&table, &a, 0, &b, 1, 1, NULL), FL_NOT_SUPPORTED);
    CHECK_OK(fl__drv_copy_peer(&table, NULL, 0, NULL, 1, 0, NULL));
    CHECK(!fl__drv_has_host_call(&table));
    CHECK_STATUS(fl__drv_stream_host_call(&table, 0, NULL, do_nothing, NULL), FL_NOT_SUPPORTED);
    bool capturing = true;
    CHECK_OK(fl__drv_stream_is_capturing(&table, 0, NULL, &capturing));
    CHECK(!capturing);
    void *module = &a;
    uint32_t grid[3] = {1, 1, 1};
    CHECK(!fl__drv_has_launch(&table));
    CHECK_STATUS(fl__drv_module_load(&table, 0, &a, 1, &module), FL_NOT_SUPPORTED);
    CHECK_STATUS(fl__drv_module_function(&table, 0, &a, "f", &module), FL_NOT_SUPPORTED);
    CHECK_STATUS(fl__drv_launch(&table, 0, &a, grid, grid, 0, NULL, NULL), FL_NOT_SUPPORTED);
    CHECK_POINTER(module, &a);
}

/* --- copies without a pitched slot ----------------------------------------------------------- */

static int copies;
static fl_status (*host_copy)(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                              fl_copy_kind kind, fl_native_stream stream);

static fl_status count_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                            fl_copy_kind kind, fl_native_stream stream) {
    copies++;
    return host_copy(ctx, device, dst, src, bytes, kind, stream);
}

TEST(call, pitched_copies_become_rows_or_one_copy) {
    start();
    host_copy = table.copy;
    table.copy = count_copy;
    char src[] = "abcdefghijkl", dst[16];
    memset(dst, '.', sizeof(dst));
    CHECK_OK(fl__drv_copy_2d(&table, 0, dst, 5, src, 4, 3, 3, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_INT(copies, 3);
    CHECK_BYTES(dst, "abc..efg..ijk...", 16);
    copies = 0;
    CHECK_OK(fl__drv_copy_2d(&table, 0, dst, 4, src, 4, 4, 3, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_INT(copies, 1);
    CHECK_BYTES(dst, "abcdefghijkl", 12);
    copies = 0;
    CHECK_OK(fl__drv_copy_2d(&table, 0, dst, 9, src, 9, 0, 3, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(fl__drv_copy_2d(&table, 0, dst, 9, src, 9, 3, 0, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_INT(copies, 0);
}

/* --- what never reaches a slot --------------------------------------------------------------- */

static fl_status refuse_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    (void)device;
    (void)out_ptr;
    return fl_fail(FL_INTERNAL, "reached with %zu bytes", bytes);
}

static fl_status refuse_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    return refuse_alloc(ctx, 0, bytes, out_ptr);
}

static fl_status refuse_free(void *ctx, fl_device device, void *ptr) {
    return refuse_alloc(ctx, device, 0, &ptr);
}

static fl_status refuse_host_free(void *ctx, void *ptr) {
    return refuse_alloc(ctx, 0, 0, &ptr);
}

static fl_status refuse_launch(void *ctx, fl_device device, void *function, const uint32_t grid[3],
                               const uint32_t block[3], uint32_t shared_bytes,
                               fl_native_stream stream, void **arguments) {
    (void)grid;
    (void)block;
    (void)stream;
    (void)arguments;
    return refuse_alloc(ctx, device, shared_bytes, &function);
}

TEST(call, nothing_to_do_is_not_passed_on) {
    start();
    table.mem_alloc = refuse_alloc;
    table.mem_free = refuse_free;
    table.host_alloc = refuse_host_alloc;
    table.host_free = refuse_host_free;
    table.copy = NULL;
    table.fill = NULL;
    void *ptr = &ptr;
    CHECK_OK(fl__drv_mem_alloc(&table, 0, 0, &ptr));
    CHECK_POINTER(ptr, NULL);
    ptr = &ptr;
    CHECK_OK(fl__drv_host_alloc(&table, 0, &ptr));
    CHECK_POINTER(ptr, NULL);
    CHECK_OK(fl__drv_mem_free(&table, 0, NULL));
    CHECK_OK(fl__drv_host_free(&table, NULL));
    CHECK_OK(fl__drv_copy(&table, 0, NULL, NULL, 0, FL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(fl__drv_fill(&table, 0, NULL, 0, 0, NULL));
    CHECK_STATUS(fl__drv_mem_alloc(&table, 0, 8, &ptr), FL_INTERNAL);
    CHECK_CONTAINS(fl_last_message(), "reached with 8 bytes");
    table.launch = refuse_launch;
    uint32_t none[3] = {4, 0, 1}, one[3] = {1, 1, 1};
    CHECK_OK(fl__drv_launch(&table, 0, &table, none, one, 0, NULL, NULL));
    CHECK_STATUS(fl__drv_launch(&table, 0, &table, one, one, 0, NULL, NULL), FL_INTERNAL);
}

/* --- failures without words ----------------------------------------------------------------------
 */

static fl_status wordless_status;
static bool has_words;

static fl_status answer(void) {
    return has_words ? fl_fail_vendor(wordless_status, 600, "chip: words") : wordless_status;
}

static fl_status wordless_copy(void *ctx, fl_device device, void *dst, const void *src,
                               size_t bytes, fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)dst;
    (void)src;
    (void)bytes;
    (void)kind;
    (void)stream;
    return answer();
}

static fl_status wordless_query(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)stream;
    return answer();
}

static fl_status copy_a_byte(void) {
    char a = 1, b = 2;
    (void)fl_fail_vendor(FL_INTERNAL, 7, "something older");
    return fl__drv_copy(&table, 0, &a, &b, 1, FL_COPY_HOST_TO_DEVICE, NULL);
}

TEST(call, a_failure_without_words_gets_some) {
    start();
    table.copy = wordless_copy;
    wordless_status = FL_DEVICE_ERROR;
    CHECK_STATUS(copy_a_byte(), FL_DEVICE_ERROR);
    CHECK_STRING(fl_last_message(), "driver bare: copy: device error");
    CHECK_INT(fl_last_vendor_code(), 0);
    has_words = true;
    CHECK_STATUS(copy_a_byte(), FL_DEVICE_ERROR);
    CHECK_STRING(fl_last_message(), "chip: words");
    CHECK_INT(fl_last_vendor_code(), 600);
}

TEST(call, only_a_query_is_answered_not_ready) {
    start();
    table.copy = wordless_copy;
    table.stream_query = wordless_query;
    wordless_status = FL_NOT_READY;
    CHECK_STATUS(copy_a_byte(), FL_INTERNAL);
    CHECK_STRING(fl_last_message(),
                 "driver bare: copy asks nothing and was answered \"not ready\"");
    (void)fl_fail(FL_INTERNAL, "something older");
    CHECK_STATUS(fl__drv_stream_query(&table, 0, NULL), FL_NOT_READY);
    CHECK_STRING(fl_last_message(), "something older");
    has_words = true;
    CHECK_STATUS(copy_a_byte(), FL_INTERNAL);
    CHECK_CONTAINS(fl_last_message(), "driver bare: copy");
    CHECK_CONTAINS(fl_last_message(), ": chip: words");
    CHECK_INT(fl_last_vendor_code(), 600);
}

/* --- drivers that misbehave ------------------------------------------------------------------ */

static fl_status strange_status(void *ctx, fl_device device) {
    (void)ctx;
    (void)device;
    return (fl_status)4711;
}

static fl_status alloc_nothing(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    (void)device;
    (void)bytes;
    *out_ptr = NULL;
    return FL_OK;
}

static fl_status host_alloc_nothing(void *ctx, size_t bytes, void **out_ptr) {
    return alloc_nothing(ctx, 0, bytes, out_ptr);
}

static fl_status count_negative(void *ctx, int32_t *out_count) {
    (void)ctx;
    *out_count = -3;
    return FL_OK;
}

static fl_status name_nothing(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    (void)device;
    memset(out->uuid, 'u', sizeof(out->uuid)); /* Without an end. */
    return FL_OK;
}

static fl_status name_in_bytes(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    (void)device;
    (void)snprintf(out->name, sizeof(out->name), "Chip \xb5-9");
    (void)snprintf(out->uuid, sizeof(out->uuid), "\xff");
    return FL_OK;
}

static fl_status name_cut(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    (void)device;
    memset(out->name, 'n', sizeof(out->name));
    out->name[FL_DEVICE_NAME_MAX - 2] = '\xc3'; /* Its second byte had no room. */
    return FL_OK;
}

TEST(call, names_of_devices_are_text) {
    start();
    fl_device_properties properties;
    table.device_properties = name_in_bytes;
    CHECK_OK(fl__drv_device_properties(&table, 0, &properties));
    CHECK_STRING(properties.name, "Chip ?-9");
    CHECK_STRING(properties.uuid, "?");
    table.device_properties = name_cut;
    CHECK_OK(fl__drv_device_properties(&table, 0, &properties));
    CHECK_UINT(strlen(properties.name), FL_DEVICE_NAME_MAX - 2);
    CHECK_INT(properties.name[FL_DEVICE_NAME_MAX - 3], 'n');
}

static fl_status more_free_than_there_is(void *ctx, fl_device device, uint64_t *out_free,
                                         uint64_t *out_total) {
    (void)ctx;
    (void)device;
    *out_free = 3;
    *out_total = 2;
    return FL_OK;
}

TEST(call, free_memory_is_part_of_all_memory) {
    start();
    table.mem_info = more_free_than_there_is;
    uint64_t available = 7, total = 7;
    CHECK_STATUS(fl__drv_mem_info(&table, 0, &available, &total), FL_INTERNAL);
    CHECK_STRING(fl_last_message(), "driver bare: mem_info says that 3 of 2 bytes are free");
    CHECK_UINT(available, 7);
    CHECK_UINT(total, 7);
}

TEST(call, a_driver_that_misbehaves) {
    start();
    table.device_synchronize = strange_status;
    CHECK_STATUS(fl__drv_device_synchronize(&table, 0), FL_INTERNAL);
    CHECK_CONTAINS(fl_last_message(), "device_synchronize returned 4711");
    table.mem_alloc = alloc_nothing;
    table.host_alloc = host_alloc_nothing;
    void *ptr = &ptr;
    CHECK_STATUS(fl__drv_mem_alloc(&table, 0, 8, &ptr), FL_INTERNAL);
    CHECK_STATUS(fl__drv_host_alloc(&table, 8, &ptr), FL_INTERNAL);
    CHECK_POINTER(ptr, &ptr);
    int32_t count = 7;
    table.device_count = count_negative;
    CHECK_STATUS(fl__drv_device_count(&table, &count), FL_INTERNAL);
    CHECK_INT(count, 7);
    fl_device_properties properties;
    table.device_properties = name_nothing;
    CHECK_OK(fl__drv_device_properties(&table, 0, &properties));
    CHECK_STRING(properties.name, "bare device");
    CHECK_INT(strlen(properties.uuid), sizeof(properties.uuid) - 1);
}

static void keep_last(void *user, fl_trace_category category, const char *line) {
    (void)category;
    (void)strncat(strcpy(user, ""), line, 200);
}

TEST(call, each_call_is_one_trace_line) {
    char line[256] = "";
    start();
    fl_trace_set_sink(keep_last, line);
    CHECK_OK(fl__drv_device_synchronize(&table, 0));
    CHECK_STRING(line, "");
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "call"));
    CHECK_OK(fl__drv_device_synchronize(&table, 0));
    CHECK_STRING(line, "bare: device_synchronize: ok");
    table.device_synchronize = strange_status;
    CHECK_OK(fl__drv_stream_query(&table, 0, NULL));
    CHECK_STRING(line, "bare: stream_query: ok");
}

/* --- what the caller must not do ------------------------------------------------------------- */

static void use_a_bad_device(void *argument) {
    (void)argument;
    (void)fl__drv_device_synchronize(&table, -1);
}

static void copy_from_nowhere(void *argument) {
    (void)argument;
    char byte = 0;
    (void)fl__drv_copy(&table, 0, &byte, NULL, 1, FL_COPY_HOST_TO_DEVICE, NULL);
}

static void copy_of_no_kind(void *argument) {
    char byte = 0;
    (void)fl__drv_copy(&table, 0, &byte, argument, 1, (fl_copy_kind)9, NULL);
}

TEST(call, callers_are_asserted_on) {
    start();
    if (fl_debug_level() < 1) {
        test_skip("assertions are not compiled in");
    }
    char byte = 0;
    CHECK_INT(test_crash_of(use_a_bad_device, NULL), SIGABRT);
    CHECK_INT(test_crash_of(copy_from_nowhere, NULL), SIGABRT);
    CHECK_INT(test_crash_of(copy_of_no_kind, &byte), SIGABRT);
}
