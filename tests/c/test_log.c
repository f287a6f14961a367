/* test_log.c: trace lines, where they go, and assertions. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "harness.h"

typedef struct seen {
    int lines;
    fl_trace_category category;
    char last[4096];
} seen;

static void keep(void *user, fl_trace_category category, const char *line) {
    seen *all = user;
    all->lines++;
    all->category = category;
    (void)snprintf(all->last, sizeof(all->last), "%s", line);
}

TEST(log, every_category_has_a_word) {
    for (int i = 0; i < FL_TRACE_COUNT; i++) {
        CHECK(fl_trace_word((fl_trace_category)i)[0]);
        CHECK(fl_trace_meaning((fl_trace_category)i)[0]);
    }
    CHECK_STRING(fl_trace_word(FL_TRACE_COUNT), "unknown");
}

TEST(log, only_what_is_on_reaches_the_sink) {
    seen all = {0};
    fl_trace_set_sink(keep, &all);
    fl_trace(FL_TRACE_DRIVER, "off");
    CHECK_INT(all.lines, 0);
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "driver"));
    errno = 17;
    fl_trace(FL_TRACE_DRIVER, "%s %d", "card", 3);
    CHECK_INT(errno, 17);
    fl_trace(FL_TRACE_COPY, "off");
    CHECK_INT(all.lines, 1);
    CHECK_INT(all.category, FL_TRACE_DRIVER);
    CHECK_STRING(all.last, "card 3");
}

/* What goes to the standard error stream while the function runs. */
static void capture(void (*function)(void), char *out, size_t size) {
    FILE *const file = tmpfile();
    CHECK(file != NULL);
    int before = dup(STDERR_FILENO);
    CHECK(dup2(fileno(file), STDERR_FILENO) >= 0);
    function();
    CHECK(dup2(before, STDERR_FILENO) >= 0);
    ssize_t count = pread(fileno(file), out, size - 1, 0);
    CHECK(count >= 0);
    out[count] = '\0';
    (void)fclose(file);
    (void)close(before);
}

static void trace_short(void) {
    fl_trace(FL_TRACE_ROUTE, "one line");
}

static void trace_long(void) {
    static char big[10000];
    memset(big, 'y', sizeof(big) - 1);
    fl_trace(FL_TRACE_ROUTE, "%s", big);
}

TEST(log, standard_error_without_a_sink) {
    char text[8192];
    capture(trace_short, text, sizeof(text));
    CHECK_STRING(text, "");
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "route"));
    capture(trace_short, text, sizeof(text));
    CHECK_STRING(text, "torch_fl[route]: one line\n");
    seen all = {0};
    fl_trace_set_sink(keep, &all);
    capture(trace_short, text, sizeof(text));
    CHECK_STRING(text, "");
    fl_trace_set_sink(NULL, NULL);
    capture(trace_long, text, sizeof(text));
    CHECK(strlen(text) > 1000);
    CHECK_POINTER(strchr(text, '\n'), text + strlen(text) - 1);
}

static void *trace_much(void *argument) {
    for (int i = 0; i < 200; i++) {
        fl_trace(FL_TRACE_ROUTE, "%s", (const char *)argument);
    }
    return NULL;
}

static void trace_in_threads(void) {
    pthread_t threads[4];
    static char texts[4][64];
    for (int i = 0; i < 4; i++) {
        memset(texts[i], 'a' + i, sizeof(texts[i]) - 1);
        CHECK_INT(pthread_create(&threads[i], NULL, trace_much, texts[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
}

TEST(log, lines_of_threads_do_not_mix) {
    CHECK_OK(fl_option_set(FL_OPT_TRACE, "route"));
    static char text[200000];
    capture(trace_in_threads, text, sizeof(text));
    int lines = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *body = strstr(line, ": ");
        CHECK(body && strlen(body + 2) == 63);
        for (const char *c = body + 2; *c; c++) {
            CHECK_INT(*c, body[2]);
        }
        lines++;
    }
    CHECK_INT(lines, 800);
}

static void fail_assertion(void *argument) {
    (void)fl_option_set(FL_OPT_DEBUG, argument);
    FL_ASSERT(argument == NULL);
}

static void fail_internal_assertion(void *argument) {
    (void)fl_option_set(FL_OPT_DEBUG, argument);
    FL_ASSERT_INTERNAL(argument == NULL);
}

TEST(log, assertions_have_levels) {
#if TORCH_FL_DEBUG >= 1
    CHECK_INT(test_crash_of(fail_assertion, "1"), SIGABRT);
#endif
    CHECK_INT(test_crash_of(fail_assertion, "0"), 0);
    CHECK_INT(test_crash_of(fail_internal_assertion, "1"), 0);
#if TORCH_FL_DEBUG >= 2
    CHECK_INT(test_crash_of(fail_internal_assertion, "2"), SIGABRT);
#endif
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "3"));
    CHECK(fl_debug_level() <= 3);
    CHECK_OK(fl_option_set(FL_OPT_DEBUG, "0"));
    CHECK_INT(fl_debug_level(), 0);
}
