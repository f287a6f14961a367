/* test_status.c: codes, names and the last message. */
#include <pthread.h>
#include <string.h>

#include "harness.h"

TEST(status, every_code_has_a_name) {
    for (int i = 0; i < FL_STATUS_COUNT; i++) {
        const char *name = fl_status_name((fl_status)i);
        CHECK(name && name[0]);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(name, fl_status_name((fl_status)j)) != 0);
        }
    }
    CHECK_STRING(fl_status_name(FL_OUT_OF_MEMORY), "out of memory");
    CHECK_STRING(fl_status_name((fl_status)FL_STATUS_COUNT), "unknown status");
    CHECK_STRING(fl_status_name((fl_status)-1), "unknown status");
}

TEST(status, message_and_vendor_code) {
    CHECK_STRING(fl_last_message(), "");
    CHECK_INT(fl_last_vendor_code(), 0);
    CHECK_STATUS(fl_fail_vendor(FL_DEVICE_ERROR, 719, "launch of %s: %d", "kernel", 5),
                 FL_DEVICE_ERROR);
    CHECK_STRING(fl_last_message(), "launch of kernel: 5");
    CHECK_INT(fl_last_vendor_code(), 719);
    CHECK_STATUS(fl_fail(FL_NOT_FOUND, "no %s", "thing"), FL_NOT_FOUND);
    CHECK_STRING(fl_last_message(), "no thing");
    CHECK_INT(fl_last_vendor_code(), 0);
}

TEST(status, context_goes_in_front_and_keeps_the_vendor_code) {
    (void)fl_fail_vendor(FL_OUT_OF_MEMORY, 2, "no memory");
    CHECK_STATUS(fl_fail_context(FL_OUT_OF_MEMORY, "copy to %d: ", 1), FL_OUT_OF_MEMORY);
    CHECK_STRING(fl_last_message(), "copy to 1: no memory");
    CHECK_INT(fl_last_vendor_code(), 2);
}

TEST(status, arguments_may_point_into_the_message) {
    (void)fl_fail(FL_INTERNAL, "inner");
    (void)fl_fail(FL_INTERNAL, "outer: %s", fl_last_message());
    CHECK_STRING(fl_last_message(), "outer: inner");
    (void)fl_fail_context(FL_INTERNAL, "[%s] ", fl_last_message());
    CHECK_STRING(fl_last_message(), "[outer: inner] outer: inner");
}

TEST(status, messages_are_text_whatever_the_words_were) {
    static const struct {
        const char *words, *shown;
    } rows[] = {
        {"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"m\xe9moire", "m?moire"},           /* Latin-1. */
        {"\xc3", "?"},                       /* Cut by somebody else. */
        {"\xe2\x82z\x80", "??z?"},           /* A character without its end, an end alone. */
        {"\xc0\xaf \xe0\x80\xaf", "?? ???"}, /* Overlong. */
        {"\xed\xa0\x80", "???"},             /* A surrogate. */
        {"\xf4\x90\x80\x80\xf5", "?????"},   /* Beyond U+10FFFF. */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)fl_fail(FL_INTERNAL, "%s", rows[i].words);
        CHECK_STRING(fl_last_message(), rows[i].shown);
        (void)fl_fail_vendor(FL_INTERNAL, 1, "%s", rows[i].words);
        CHECK_STRING(fl_last_message(), rows[i].shown);
        (void)fl_fail(FL_INTERNAL, "end");
        (void)fl_fail_context(FL_INTERNAL, "%s: ", rows[i].words);
        CHECK_INT(strncmp(fl_last_message(), rows[i].shown, strlen(rows[i].shown)), 0);
    }
}

/* Whatever the number of bytes in front, no character is cut in two. */
TEST(status, long_messages_are_cut_between_characters) {
    static char big[5000];
    for (size_t i = 0; i + 3 < sizeof(big); i += 3) {
        memcpy(big + i, "\xe2\x82\xac", 3);
    }
    for (int shift = 0; shift < 3; shift++) {
        (void)fl_fail(FL_INTERNAL, "%.*s%s", shift, "xxx", big);
        const char *message = fl_last_message();
        size_t length = strlen(message);
        CHECK_STRING(message + length - 6, "\xe2\x82\xac...");
        CHECK_UINT((length - 3 - (size_t)shift) % 3, 0);
        (void)fl_fail_context(FL_INTERNAL, "y: ");
        CHECK_STRING(message + strlen(message) - 6, "\xe2\x82\xac...");
    }
}

TEST(status, long_messages_are_cut_and_and_say_so) {
    static char big[5000];
    memset(big, 'x', sizeof(big) - 1);
    (void)fl_fail(FL_INTERNAL, "%s", big);
    size_t length = strlen(fl_last_message());
    CHECK(length > 1000 && length < sizeof(big));
    CHECK_STRING(fl_last_message() + length - 4, "x...");

    (void)fl_fail_context(FL_INTERNAL, "front: ");
    CHECK_INT(strncmp(fl_last_message(), "front: xxx", 10), 0);
    CHECK_INT(strlen(fl_last_message()), length);
    CHECK_STRING(fl_last_message() + length - 4, "x...");

    (void)fl_fail_context(FL_INTERNAL, "%s", big);
    CHECK_INT(strlen(fl_last_message()), length);
}

static void *fail_elsewhere(void *argument) {
    (void)argument;
    CHECK_STRING(fl_last_message(), "");
    (void)fl_fail_vendor(FL_INTERNAL, 7, "elsewhere");
    return NULL;
}

TEST(status, belongs_to_the_thread) {
    (void)fl_fail(FL_INTERNAL, "here");
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_STRING(fl_last_message(), "here");
    CHECK_INT(fl_last_vendor_code(), 0);
}

static fl_status pass_on(fl_status status, int *reached) {
    FL_TRY(status);
    *reached = 1;
    return FL_OK;
}

TEST(status, try_returns_from_its_caller) {
    int reached = 0;
    CHECK_STATUS(pass_on(FL_BAD_FORK, &reached), FL_BAD_FORK);
    CHECK_INT(reached, 0);
    CHECK_OK(pass_on(FL_OK, &reached));
    CHECK_INT(reached, 1);
}
