/*
 * test_ninth.c: a chip that nobody has heard of, from nothing: by a row in a file, and by a driver
 * in a shared object, as docs/driver.md tells it. Neither needs a line of this project changed.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/rows.h"
#include "fl/conformance.h"
#include "fl/debug.h"
#include "harness.h"
#include "vendor_test.h"

static void note_failure(void *user, const char *name, fl_conformance_result result,
                         const char *text) {
    (void)user;
    if (result == FL_CONFORMANCE_FAILED || result == FL_CONFORMANCE_UNEXPECTED) {
        test_note("%s: %s", name, text);
    }
}

static void use_row(void) {
    use_fakes("");
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, FAKE_SOURCES "/zephyr.rows"));
}

TEST_WITH_LIMIT(ninth, a_row_conforms, 120) {
    use_row();
    const fl_driver *d = open_platform("zephyr");
    CHECK_INT(fl_conformance_run(d, NULL, note_failure, NULL), 0);
}

TEST(ninth, a_row_is_probed_like_the_others) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, FAKES "/zephyr"));
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, FAKE_SOURCES "/zephyr.rows"));
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(NULL, &platform));
    CHECK_STRING(platform->name, "zephyr");
}

TEST(ninth, quirks_of_the_row) {
    use_row();
    const fl_driver *d = open_platform("zephyr");
    void *fake = fake_of("zephyr/libzephyr_rt.so.2");
    fl_device_properties p;
    CHECK_OK(d->device_properties(d->ctx, 1, &p));
    CHECK_STRING(p.name, "Zephyr Nine 1");
    void *ptr = NULL;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_INT(fl_last_vendor_code(), 77);
    CHECK_CONTAINS(fl_last_message(), "zephyr: allocating");
    CHECK_CONTAINS(fl_last_message(), "zx_rtMalloc: out of memory");
    CHECK_OK(d->host_alloc(d->ctx, 100, &ptr));
    CHECK_INT(fake_calls(fake, "zx_rtGrabHost"), 1);
    CHECK_OK(d->host_free(d->ctx, ptr));
    CHECK(d->module_load == NULL);
}

static void check_nothing_sticks(void *fake) {
    int (*peek)(void);
    void *symbol = fake_symbol(fake, "zx_rtPeekAtLastError");
    memcpy(&peek, &symbol, sizeof(peek));
    CHECK_INT(peek(), 0);
}

TEST_WITH_LIMIT(ninth, every_failure, 60) {
    static const char *const tolerated[] = {"zx_rtGetLastError", "zx_rtGetDevice",
                                            "zx_rtDeviceEnablePeerAccess", "zx_rtSetDevice", NULL};
    use_row();
    const fl_driver *d = open_platform("zephyr");
    fail_every_call(d, fake_of("zephyr/libzephyr_rt.so.2"), 999, tolerated, "",
                    check_nothing_sticks);
}

/* --- rows with a mistake in what they say about the library ----------------------------------- */

static fl_status opened;
static fl_status open_it(const fl_platform *platform) {
    const fl_driver *driver = NULL;
    opened = platform->open(platform, &driver);
    return FL_OK;
}

static void check_row(const char *lines, const char *message) {
    char text[512];
    (void)snprintf(text, sizeof(text), "[zephyr]\nlibraries = libzephyr_rt.so.2\n%s", lines);
    use_fakes("");
    CHECK_OK(fl__rows_parse(text, strlen(text), "t", open_it));
    CHECK_STATUS(opened, FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), message);
}

TEST(ninth, a_wrong_row_says_what_is_missing) {
    check_row("prefix = zx_rt\n", "has no symbol zx_rtHostAlloc, zx_rtFreeHost");
    check_row("prefix = zy\n", "has no symbol zyGetDeviceCount, zySetDevice");
    check_row("prefix = zx_rt\nrename = HostAlloc GrabHost\nrename = FreeHost DropHost\n"
              "min_version = 1000\n",
              "has version 900, and zephyr needs 1000 or newer");
}

/* --- a driver in a file ----------------------------------------------------------------------- */

TEST_WITH_LIMIT(ninth, a_file_conforms, 120) {
    CHECK_OK(fl_option_set(FL_OPT_DRIVER_PATH, FAKES "/drivers/zephyr_driver.so"));
    const fl_driver *d = open_platform("zephyr-file");
    CHECK_INT(fl_conformance_run(d, NULL, note_failure, NULL), 0);
}

TEST(ninth, a_file_keeps_the_vendors_words) {
    CHECK_OK(fl_option_set(FL_OPT_DRIVER_PATH, FAKES "/drivers/zephyr_driver.so"));
    const fl_driver *d = open_platform("zephyr-file");
    void *ptr = NULL;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, (size_t)1 << 45, &ptr), FL_OUT_OF_MEMORY);
    CHECK_STRING(fl_last_message(), "zephyr: zx_rtMalloc: out of memory");
    CHECK_INT(fl_last_vendor_code(), 77);
}
