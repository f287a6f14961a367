/* test_options.c: the table of options, what the environment says, what is refused. */
#include <stdlib.h>
#include <string.h>

#include "fl/debug.h"
#include "harness.h"

static void set(const char *variable, const char *value) {
    CHECK_INT(setenv(variable, value, 1), 0);
}

TEST(options, every_row_is_complete) {
    for (int i = 0; i < FL_OPTION_COUNT; i++) {
        const fl_option_info *info = fl_option_describe((fl_option)i);
        CHECK(info && info->variable[0] && info->meaning[0]);
        CHECK(strncmp(info->variable, "TORCH_FL_", 9) == 0 ||
              strncmp(info->variable, "FLAGOS_", 7) == 0 ||
              strncmp(info->variable, "PYTORCH_", 8) == 0);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(info->variable, fl_option_describe((fl_option)j)->variable) != 0);
        }
        /* A default must itself be acceptable. */
        if (info->standard) {
            CHECK_OK(fl_option_set((fl_option)i, info->standard));
        }
    }
    CHECK_POINTER(fl_option_describe(FL_OPTION_COUNT), NULL);
    CHECK_POINTER(fl_option_describe((fl_option)-1), NULL);
}

TEST(options, defaults) {
    CHECK_INT(unsetenv("TORCH_FL_PLATFORM"), 0);
    CHECK_POINTER(fl_option_string(FL_OPT_PLATFORM), NULL);
    CHECK(!fl_option_is_set(FL_OPT_PLATFORM));
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 2);
    CHECK_STRING(fl_option_string(FL_OPT_SIM_DEVICES), "2");
    CHECK(!fl_option_is_set(FL_OPT_SIM_DEVICES));
    CHECK_INT(fl_option_int(FL_OPT_SIM_MEMORY), INT64_C(2) << 30);
    CHECK(!fl_option_bool(FL_OPT_STRICT));
    CHECK_OK(fl_options_check());
}

TEST(options, environment) {
    set("TORCH_FL_PLATFORM", "sim");
    set("TORCH_FL_SIM_DEVICES", "5");
    set("TORCH_FL_SIM_MEMORY", "3M");
    set("TORCH_FL_STRICT", "Yes");
    set("FLAGOS_LOG_FALLBACK", "1");
    set("TORCH_FL_DRIVER_PATH", "");
    CHECK_STRING(fl_option_string(FL_OPT_PLATFORM), "sim");
    CHECK(fl_option_is_set(FL_OPT_PLATFORM));
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 5);
    CHECK_INT(fl_option_int(FL_OPT_SIM_MEMORY), 3 << 20);
    CHECK(fl_option_bool(FL_OPT_STRICT));
    CHECK(!fl_option_is_set(FL_OPT_DRIVER_PATH));
    CHECK(fl_trace_on(FL_TRACE_FALLBACK));
    CHECK(!fl_trace_on(FL_TRACE_DRIVER));
    CHECK_OK(fl_options_check());
}

TEST(options, environment_is_read_once) {
    set("TORCH_FL_SIM_DEVICES", "3");
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 3);
    set("TORCH_FL_SIM_DEVICES", "4");
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 3);
}

TEST(options, bad_numbers) {
    static const char *const bad[] = {"",
                                      " 3",
                                      "3 ",
                                      "+3",
                                      "0x3",
                                      "three",
                                      "0",
                                      "65",
                                      "-1",
                                      "3K",
                                      "3.",
                                      "1e1",
                                      "99999999999999999999",
                                      "-"};
    for (size_t i = 1; i < sizeof(bad) / sizeof(bad[0]); i++) {
        test_note("value \"%s\"", bad[i]);
        CHECK_STATUS(fl_option_set(FL_OPT_SIM_DEVICES, bad[i]), FL_INVALID_ARGUMENT);
        CHECK_CONTAINS(fl_last_message(), "TORCH_FL_SIM_DEVICES");
        CHECK_CONTAINS(fl_last_message(), bad[i]);
        CHECK_CONTAINS(fl_last_message(), "from 1 to 64");
        CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 2);
        CHECK(!fl_option_is_set(FL_OPT_SIM_DEVICES));
    }
    CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, "64"));
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 64);
    CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, ""));
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 2);
}

TEST(options, bytes) {
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"1048576", 1 << 20},
                {"1024k", 1 << 20},
                {"16m", 16 << 20},
                {"1G", 1 << 30},
                {"4T", INT64_C(4) << 40}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CHECK_OK(fl_option_set(FL_OPT_SIM_MEMORY, good[i].text));
        CHECK_INT(fl_option_int(FL_OPT_SIM_MEMORY), good[i].bytes);
    }
    static const char *const bad[] = {"1X", "1GB", "G", "9999999999T", "1023K", "-1G", "1 G"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        test_note("value \"%s\"", bad[i]);
        CHECK_STATUS(fl_option_set(FL_OPT_SIM_MEMORY, bad[i]), FL_INVALID_ARGUMENT);
        CHECK_INT(fl_option_int(FL_OPT_SIM_MEMORY), INT64_C(4) << 40);
    }
}

TEST(options, booleans) {
    static const char *const yes[] = {"1", "on", "TRUE", "yes"};
    static const char *const no[] = {"0", "OFF", "false", "No"};
    for (size_t i = 0; i < 4; i++) {
        CHECK_OK(fl_option_set(FL_OPT_STRICT, yes[i]));
        CHECK(fl_option_bool(FL_OPT_STRICT));
        CHECK_OK(fl_option_set(FL_OPT_STRICT, no[i]));
        CHECK(!fl_option_bool(FL_OPT_STRICT));
        CHECK(fl_option_is_set(FL_OPT_STRICT));
    }
    CHECK_STATUS(fl_option_set(FL_OPT_STRICT, "2"), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "0 or 1");
}

TEST(options, categories) {
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "driver,copy"));
    for (int i = 0; i < FL_TRACE_COUNT; i++) {
        CHECK_INT(fl_trace_on((fl_trace_category)i), i == FL_TRACE_DRIVER || i == FL_TRACE_COPY);
    }
    CHECK_STATUS(fl_option_set(FL_OPT_TRACE, "driver,cpoy"), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "cpoy");
    CHECK_CONTAINS(fl_last_message(), "memory, copy");
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "all"));
    for (int i = 0; i < FL_TRACE_COUNT; i++) {
        CHECK(fl_trace_on((fl_trace_category)i));
    }
    CHECK_OK(fl_option_set(FL_OPT_TRACE, NULL));
    CHECK(!fl_trace_on(FL_TRACE_DRIVER));
    CHECK(!fl_trace_on(FL_TRACE_COUNT));
}

TEST(options, a_bad_environment_is_reported_and_does_no_harm) {
    set("TORCH_FL_SIM_DEVICES", "many");
    CHECK_INT(fl_option_int(FL_OPT_SIM_DEVICES), 2);
    CHECK_STATUS(fl_options_check(), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_SIM_DEVICES is \"many\"");
    CHECK_OK(fl_option_set(FL_OPT_SIM_DEVICES, "1"));
    CHECK_OK(fl_options_check());
}

TEST(options, bad_option_numbers) {
    CHECK_POINTER(fl_option_string(FL_OPTION_COUNT), NULL);
    CHECK_INT(fl_option_int((fl_option)-1), 0);
    CHECK(!fl_option_is_set(FL_OPTION_COUNT));
    CHECK_STATUS(fl_option_set(FL_OPTION_COUNT, "1"), FL_INVALID_ARGUMENT);
}

TEST(options, strings_stay_valid) {
    CHECK_OK(fl_option_set(FL_OPT_PLATFORM, "first"));
    const char *first = fl_option_string(FL_OPT_PLATFORM);
    CHECK_OK(fl_option_set(FL_OPT_PLATFORM, "second"));
    CHECK_STRING(first, "first");
    CHECK_STRING(fl_option_string(FL_OPT_PLATFORM), "second");
}

static void count_misspelled(void *user, const char *variable) {
    *(int *)user += strcmp(variable, "TORCH_FL_PLATFROM") == 0 ? 1 : 1000;
}

TEST(options, unknown_variables_are_listed) {
    set("TORCH_FL_PLATFROM", "cpu");
    set("TORCH_FL_PLATFORM", "cpu");
    set("TORCH_OTHER", "1");
    int count = 0;
    fl_options_each_unknown(count_misspelled, &count);
    CHECK_INT(count, 1);
}

static void take_rule(void *user, const char *rest, const char *value) {
    (void)strncat(user, rest, 20);
    (void)strncat(user, ":", 2);
    (void)strncat(user, value, 20);
    (void)strncat(user, ";", 2);
}

TEST(options, families_of_variables) {
    CHECK_INT(clearenv(), 0);
    set("FLAGOS_OP_add", "cpu");
    set("FLAGOS_O", "no");
    char text[128] = "";
    fl_options_each_with_prefix("FLAGOS_OP_", take_rule, text);
    CHECK_STRING(text, "add:cpu;");
}
