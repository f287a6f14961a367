/* test_registry.c: the list of platforms, the choice of one, the check of its table. */
#include "driver/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/host.h"
#include "fl/debug.h"
#include "harness.h"

static fl_driver host_table(void) {
    const fl_driver *host = NULL;
    CHECK_OK(fl__platform_cpu.open(&fl__platform_cpu, &host));
    return *host;
}

/* --- the table's check ----------------------------------------------------------------------- */

TEST(registry, a_good_table) {
    fl_driver table = host_table();
    CHECK_OK(fl_driver_check(&table));
    table.struct_size += 64; /* From a newer header, of a version that we know. */
    CHECK_OK(fl_driver_check(&table));
}

TEST(registry, size_and_version) {
    fl_driver table = host_table();
    CHECK_STATUS(fl_driver_check(NULL), FL_INVALID_ARGUMENT);
    table.version = FL_DRIVER_VERSION + 1;
    CHECK_STATUS(fl_driver_check(&table), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "version 2, this library knows versions 1 to 1");
    table.version = 0;
    CHECK_STATUS(fl_driver_check(&table), FL_NOT_SUPPORTED);
    table = host_table();
    table.struct_size = 104;
    CHECK_STATUS(fl_driver_check(&table), FL_NOT_SUPPORTED);
    char size[32];
    (void)snprintf(size, sizeof(size), "%zu", sizeof(fl_driver));
    CHECK_CONTAINS(fl_last_message(), "104 bytes");
    CHECK_CONTAINS(fl_last_message(), size);
    table = host_table();
    table.name = "";
    CHECK_STATUS(fl_driver_check(&table), FL_INVALID_ARGUMENT);
    table.name = NULL;
    CHECK_STATUS(fl_driver_check(&table), FL_INVALID_ARGUMENT);
}

TEST(registry, every_required_slot_is_asked_for) {
#define CHECK_REQUIRED(slot)                                     \
    do {                                                         \
        fl_driver table = host_table();                          \
        table.slot = NULL;                                       \
        CHECK_STATUS(fl_driver_check(&table), FL_NOT_SUPPORTED); \
        CHECK_CONTAINS(fl_last_message(), "missing: " #slot);    \
    } while (0)
    CHECK_REQUIRED(init);
    CHECK_REQUIRED(device_count);
    CHECK_REQUIRED(device_properties);
    CHECK_REQUIRED(device_synchronize);
    CHECK_REQUIRED(mem_alloc);
    CHECK_REQUIRED(mem_free);
    CHECK_REQUIRED(host_alloc);
    CHECK_REQUIRED(host_free);
    CHECK_REQUIRED(copy);
    CHECK_REQUIRED(fill);
    CHECK_REQUIRED(stream_create);
    CHECK_REQUIRED(stream_destroy);
    CHECK_REQUIRED(stream_query);
    CHECK_REQUIRED(stream_synchronize);
    CHECK_REQUIRED(event_create);
    CHECK_REQUIRED(event_destroy);
    CHECK_REQUIRED(event_record);
    CHECK_REQUIRED(event_query);
    CHECK_REQUIRED(event_synchronize);
    CHECK_REQUIRED(stream_wait_event);
#undef CHECK_REQUIRED
    fl_driver table = host_table();
    table.fill = NULL;
    table.copy = NULL;
    CHECK_STATUS(fl_driver_check(&table), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "copy, fill");
    table = host_table();
    table.mem_info = NULL;
    table.stream_priority_range = NULL;
    table.event_elapsed_ms = NULL;
    table.peer_can_access = NULL;
    table.copy_peer = NULL;
    table.copy_2d = NULL;
    table.stream_host_call = NULL;
    table.stream_is_capturing = NULL;
    CHECK_OK(fl_driver_check(&table));
}

/* --- the choice ------------------------------------------------------------------------------ */

static int probes, opens;

static fl_status probe_ok(const fl_platform *platform) {
    (void)platform;
    probes++;
    return FL_OK;
}

static fl_status probe_absent(const fl_platform *platform) {
    probes++;
    return fl_fail(FL_UNAVAILABLE, "%s: no card in any slot", platform->name);
}

static fl_status open_host(const fl_platform *platform, const fl_driver **out_driver) {
    (void)platform;
    opens++;
    return fl__platform_cpu.open(&fl__platform_cpu, out_driver);
}

static fl_status open_fails(const fl_platform *platform, const fl_driver **out_driver) {
    (void)out_driver;
    opens++;
    return fl_fail_vendor(FL_DEVICE_ERROR, 5, "%s: firmware is too old", platform->name);
}

static fl_status open_bad_table(const fl_platform *platform, const fl_driver **out_driver) {
    static fl_driver table;
    (void)platform;
    table = host_table();
    table.copy = NULL;
    *out_driver = &table;
    return FL_OK;
}

static const fl_platform good = {"good", FL_TWIN_NONE, -5, probe_ok, open_host, NULL};
static const fl_platform absent = {"absent", FL_TWIN_NONE, -5, probe_absent, open_fails, NULL};
static const fl_platform first = {"first", FL_TWIN_NONE, 0, probe_ok, open_host, NULL};
static const fl_platform early_absent = {"gone", FL_TWIN_NONE, 0, probe_absent, open_fails, NULL};
static const fl_platform broken = {"broken", FL_TWIN_NONE, 0, probe_ok, open_bad_table, NULL};

TEST(registry, cpu_is_there_and_answers_to_its_name) {
    const fl_platform *platform = NULL;
    CHECK_POINTER(fl_platform_chosen(), NULL);
    CHECK_POINTER(fl_platform_driver(), NULL);
    CHECK_OK(fl_platform_choose("cpu", &platform));
    CHECK_POINTER(platform, &fl__platform_cpu);
    CHECK_POINTER(fl_platform_chosen(), platform);
    CHECK_STRING(fl_platform_driver()->name, "host");
    CHECK_INT(platform->twin, FL_TWIN_CPU);
}

TEST(registry, the_choice_is_made_once) {
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_register(&good));
    CHECK_OK(fl_platform_choose("good", &platform));
    CHECK_OK(fl_platform_choose("good", NULL));
    CHECK_OK(fl_platform_choose(NULL, &platform));
    CHECK_POINTER(platform, &good);
    CHECK_INT(opens, 1);
    platform = NULL;
    CHECK_STATUS(fl_platform_choose("cpu", &platform), FL_WRONG_STATE);
    CHECK_CONTAINS(fl_last_message(), "cpu");
    CHECK_CONTAINS(fl_last_message(), "good");
    CHECK_POINTER(platform, NULL);
    CHECK_STATUS(fl_platform_register(&absent), FL_WRONG_STATE);
}

TEST(registry, an_unknown_name_lists_the_known_ones) {
    CHECK_OK(fl_platform_register(&good));
    CHECK_STATUS(fl_platform_choose("cuta", NULL), FL_NOT_FOUND);
    CHECK_CONTAINS(fl_last_message(), "\"cuta\"");
    CHECK_CONTAINS(fl_last_message(), "cpu");
    CHECK_CONTAINS(fl_last_message(), "sim");
    CHECK_CONTAINS(fl_last_message(), "good");
    CHECK_POINTER(fl_platform_chosen(), NULL);
    CHECK_OK(fl_platform_choose("cpu", NULL));
}

TEST(registry, the_option_chooses) {
    CHECK_INT(setenv("TORCH_FL_PLATFORM", "good", 1), 0);
    CHECK_OK(fl_platform_register(&good));
    CHECK_OK(fl_platform_register(&first));
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(NULL, &platform));
    CHECK_POINTER(platform, &good);
    CHECK_INT(probes, 0);
}

TEST(registry, a_wrong_option_says_which_variable) {
    CHECK_INT(setenv("TORCH_FL_PLATFORM", "nonsense", 1), 0);
    CHECK_STATUS(fl_platform_choose(NULL, NULL), FL_NOT_FOUND);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_PLATFORM");
    CHECK_CONTAINS(fl_last_message(), "nonsense");
}

TEST(registry, other_bad_options_are_reported_at_the_choice) {
    CHECK_INT(setenv("TORCH_FL_SIM_DEVICES", "0", 1), 0);
    CHECK_STATUS(fl_platform_choose("cpu", NULL), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_SIM_DEVICES");
    CHECK_POINTER(fl_platform_chosen(), NULL);
}

static void keep_lines(void *user, fl_trace_category category, const char *line) {
    (void)category;
    (void)strncat(strncat(user, line, 500), "\n", 2);
}

TEST(registry, probe_order_passes_over_what_does_not_work) {
    char lines[8192] = "";
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "driver"));
    fl_trace_set_sink(keep_lines, lines);
    CHECK_OK(fl_platform_register(&early_absent));
    CHECK_OK(fl_platform_register(&broken));
    CHECK_OK(fl_platform_register(&first));
    CHECK_OK(fl_platform_register(&good));
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(NULL, &platform));
    CHECK_POINTER(platform, &first);
    CHECK_INT(probes, 3);
    CHECK_INT(opens, 1);
    CHECK_CONTAINS(lines, "gone: passed over: gone: no card in any slot\n");
    CHECK_CONTAINS(lines,
                   "broken: cannot be opened: driver host: required slots are missing: copy");
    CHECK_CONTAINS(lines, "first: chosen");
}

TEST(registry, cpu_is_what_remains) {
    CHECK_INT(unsetenv("TORCH_FL_PLATFORM"), 0);
    CHECK_OK(fl_platform_register(&early_absent));
    CHECK_OK(fl_platform_register(&good));
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(NULL, &platform));
    /* Where a vendor's runtime is installed its platform comes first, never `sim` or `good`. */
    CHECK(platform->probe_order >= 0);
    CHECK(platform == &fl__platform_cpu || strcmp(platform->name, "cpu") != 0);
}

TEST(registry, a_named_platform_that_fails_is_not_replaced) {
    CHECK_OK(fl_platform_register(&absent));
    CHECK_STATUS(fl_platform_choose("absent", NULL), FL_DEVICE_ERROR);
    CHECK_CONTAINS(fl_last_message(), "platform absent");
    CHECK_CONTAINS(fl_last_message(), "firmware is too old");
    CHECK_INT(fl_last_vendor_code(), 5);
    CHECK_POINTER(fl_platform_chosen(), NULL);
}

TEST(registry, bad_registrations) {
    static const fl_platform nameless = {"", FL_TWIN_NONE, 0, probe_ok, open_host, NULL};
    static const fl_platform mute = {"mute", FL_TWIN_NONE, 0, NULL, open_host, NULL};
    static const fl_platform twice = {"cpu", FL_TWIN_NONE, 0, probe_ok, open_host, NULL};
    CHECK_STATUS(fl_platform_register(NULL), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_platform_register(&nameless), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_platform_register(&mute), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_platform_register(&twice), FL_WRONG_STATE);
    CHECK_CONTAINS(fl_last_message(), "cpu");
}

static fl_status probe_recursive(const fl_platform *platform) {
    (void)platform;
    CHECK_STATUS(fl_platform_choose("cpu", NULL), FL_WRONG_STATE);
    CHECK_STATUS(fl_platform_register(&good), FL_WRONG_STATE);
    return fl_fail(FL_UNAVAILABLE, "tried");
}

TEST(registry, a_probe_that_chooses_is_refused_and_does_not_hang) {
    static const fl_platform recursive = {"recursive",     FL_TWIN_NONE, 0,
                                          probe_recursive, open_fails,   NULL};
    CHECK_OK(fl_platform_register(&recursive));
    CHECK_OK(fl_platform_register(&first));
    CHECK_OK(fl_platform_choose(NULL, NULL));
    CHECK_POINTER(fl_platform_chosen(), &first);
}

static fl_status open_slowly(const fl_platform *platform, const fl_driver **out_driver) {
    test_pause_ms(50);
    return open_host(platform, out_driver);
}

static void *choose_slow(void *argument) {
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(argument, &platform));
    CHECK_STRING(platform->name, "slow");
    return NULL;
}

TEST(registry, threads_that_choose_at_once_open_once) {
    static const fl_platform slow = {"slow", FL_TWIN_NONE, -1, probe_ok, open_slowly, NULL};
    CHECK_OK(fl_platform_register(&slow));
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, choose_slow, "slow"), 0);
    }
    for (int i = 0; i < 6; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_INT(opens, 1);
}

/* --- what is known of each ------------------------------------------------------------------- */

typedef struct listing {
    char text[8192];
    int32_t last_order;
} listing;

static void take(void *user, const fl_platform *platform, const char *reason) {
    listing *all = user;
    char line[600];
    (void)snprintf(line, sizeof(line), "%s=%.400s\n", platform->name, reason ? reason : "works");
    (void)strncat(all->text, line, sizeof(all->text) - strlen(all->text) - 1);
    /* Those that only answer to their name come last. */
    int32_t order = platform->probe_order < 0 ? INT32_MAX : platform->probe_order;
    CHECK(order >= all->last_order);
    all->last_order = order;
}

TEST(registry, each_platform_has_a_reason) {
    listing all = {.text = "", .last_order = 0};
    CHECK_OK(fl_platform_register(&absent));
    CHECK_OK(fl_platform_register(&early_absent));
    fl_platform_each(take, &all);
    CHECK_CONTAINS(all.text, "cpu=works\n");
    CHECK_CONTAINS(all.text, "sim=works\n");
    CHECK_CONTAINS(all.text, "absent=absent: no card in any slot\n");
    CHECK_CONTAINS(all.text, "gone=gone: no card in any slot\n");
    CHECK_POINTER(fl_platform_chosen(), NULL);
}

/* --- drivers from outside -------------------------------------------------------------------- */

static void set_path(const char *path) {
    CHECK_OK(fl_option_set(FL_OPT_DRIVER_PATH, path));
}

TEST(registry, a_driver_in_a_shared_object) {
    set_path(TEST_MODULES "/external_good.so");
    CHECK_OK(fl_platform_choose("external", NULL));
    CHECK_STRING(fl_platform_driver()->name, "external");
    CHECK_INT(fl_platform_chosen()->twin, FL_TWIN_NONE);
}

TEST(registry, a_driver_that_was_named_is_tried_first) {
    CHECK_INT(unsetenv("TORCH_FL_PLATFORM"), 0);
    set_path(":" TEST_MODULES "/external_good.so:");
    CHECK_OK(fl_platform_choose(NULL, NULL));
    CHECK_STRING(fl_platform_chosen()->name, "external");
}

static void check_refused(const char *path, fl_status status, const char *reason) {
    set_path(path);
    CHECK_STATUS(fl_platform_choose("cpu", NULL), status);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_DRIVER_PATH");
    CHECK_CONTAINS(fl_last_message(), path);
    CHECK_CONTAINS(fl_last_message(), reason);
    CHECK_POINTER(fl_platform_chosen(), NULL);
}

TEST(registry, drivers_with_one_thing_wrong) {
    check_refused("/no/such/driver.so", FL_UNAVAILABLE, "cannot open shared object");
    check_refused(TEST_MODULES "/external_no_query.so", FL_UNAVAILABLE, "fl_driver_query");
    check_refused(TEST_MODULES "/external_refuses.so", FL_UNAVAILABLE, "the card is asleep");
    check_refused(TEST_MODULES "/external_old_version.so", FL_NOT_SUPPORTED, "version 77");
    check_refused(TEST_MODULES "/external_short_table.so", FL_NOT_SUPPORTED, "96 bytes");
    check_refused(TEST_MODULES "/external_missing_slots.so", FL_NOT_SUPPORTED, "copy, event_query");
    check_refused(TEST_MODULES "/external_bad_name.so", FL_INVALID_ARGUMENT, "found \"My Chip\"");
    check_refused(TEST_MODULES "/external_taken_name.so", FL_WRONG_STATE,
                  "platform sim: the name is taken");
    (void)fl_fail(FL_INTERNAL, "something older");
    check_refused(TEST_MODULES "/external_silent.so", FL_UNAVAILABLE, "does not say why");
    CHECK(!strstr(fl_last_message(), "older"));
    /* A bad one does not keep a good one out of the list, but is still reported. */
    set_path("/no/such/driver.so:" TEST_MODULES "/external_good.so");
    CHECK_STATUS(fl_platform_choose("external", NULL), FL_UNAVAILABLE);
    set_path(TEST_MODULES "/external_good.so");
    CHECK_OK(fl_platform_choose("external", NULL));
}

static void check_passed_over(const char *path, const char *reason) {
    CHECK_INT(unsetenv("TORCH_FL_PLATFORM"), 0);
    set_path(path);
    listing all = {.text = "", .last_order = 0};
    fl_platform_each(take, &all);
    CHECK_CONTAINS(all.text, reason);
    CHECK_OK(fl_platform_choose(NULL, NULL));
    CHECK_STRING(fl_platform_chosen()->name, "cpu");
}

TEST(registry, a_driver_without_a_device_is_passed_over) {
    check_passed_over(TEST_MODULES "/external_no_device.so",
                      "external_no_device.so sees no device");
}

TEST(registry, a_driver_whose_init_fails_is_passed_over) {
    check_passed_over(TEST_MODULES "/external_no_init.so",
                      "external=driver external: init: unavailable");
}

static fl_status probe_silently(const fl_platform *platform) {
    (void)platform;
    return FL_UNAVAILABLE;
}

TEST(registry, a_probe_without_words) {
    static const fl_platform silent = {
        .name = "silent",
        .twin = FL_TWIN_NONE,
        .probe_order = 3,
        .probe = probe_silently,
        .open = open_host,
        .data = NULL,
    };
    CHECK_OK(fl_platform_register(&silent));
    (void)fl_fail(FL_INTERNAL, "something older");
    listing all = {.text = "", .last_order = 0};
    fl_platform_each(take, &all);
    CHECK_CONTAINS(all.text, "silent=it gives no reason (unavailable)\n");
}
