/* test_dl.c: opening libraries and finding symbols. */
#include "base/dl.h"

#include <math.h>
#include <string.h>

#include "harness.h"

TEST(dl, a_loaded_library_is_shared_before_another_is_opened) {
    const char *names[] = {TEST_MODULES "/external_good.so", "libc.so.6"};
    fl__dl dl;
    CHECK_OK(fl__dl_open(names, 2, &dl));
    CHECK_STRING(dl.name, "libc.so.6");
    CHECK(dl.was_loaded);
    fl__dl_close(&dl);
    CHECK_POINTER(dl.handle, NULL);
}

TEST(dl, the_first_name_that_works) {
    const char *names[] = {"libfl_no_such_thing.so", TEST_MODULES "/external_good.so"};
    fl__dl dl;
    CHECK_OK(fl__dl_open(names, 2, &dl));
    CHECK_POINTER(dl.name, names[1]);
    CHECK(!dl.was_loaded);
    void *query = NULL;
    CHECK_OK(fl__dl_require(&dl, "fl_driver_query", &query));
    CHECK_POINTER(query, fl__dl_symbol(&dl, "fl_driver_query"));
    CHECK_CONTAINS(fl__dl_path_of(query), "external_good.so");
    fl__dl again;
    CHECK_OK(fl__dl_open(&names[1], 1, &again));
    CHECK(again.was_loaded);
    CHECK_POINTER(again.handle, dl.handle);
}

TEST(dl, failures_hold_the_reason_of_each_name) {
    const char *names[] = {"libfl_first.so", "libfl_second.so"};
    fl__dl dl = {0};
    CHECK_STATUS(fl__dl_open(names, 2, &dl), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "libfl_first.so");
    CHECK_CONTAINS(fl_last_message(), "libfl_second.so");
    CHECK_POINTER(dl.handle, NULL);
    CHECK_STATUS(fl__dl_open(names, 0, &dl), FL_UNAVAILABLE);
}

TEST(dl, a_missing_symbol_is_named) {
    const char *name = "libc.so.6";
    fl__dl dl;
    CHECK_OK(fl__dl_open(&name, 1, &dl));
    void *address = &dl;
    CHECK_POINTER(fl__dl_symbol(&dl, "fl_no_such_symbol"), NULL);
    CHECK_STRING(fl_last_message(), "");
    CHECK_STATUS(fl__dl_require(&dl, "fl_no_such_symbol", &address), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "libc.so.6");
    CHECK_CONTAINS(fl_last_message(), "fl_no_such_symbol");
    CHECK_POINTER(address, &dl);
}
