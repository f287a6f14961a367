/*
 * harness.c: runs each test in a forked child and prints TAP.
 *
 * Relies on POSIX. Does not know what is tested.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_PASSED = 0,
    EXIT_FAILED = 99,
    EXIT_SKIPPED = 98,
    OUTPUT_MAX = 1 << 16, /* Of one test; the rest is cut. */
};

/* Sanitizers ask for these: a test of what happens without memory must get NULL, not be ended. */
FL_API const char *__asan_default_options(void);
FL_API const char *__tsan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:detect_stack_use_after_return=1";
}

const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1:second_deadlock_stack=1";
}

/* A child that is meant to crash or to exit in the middle of work has nothing to give back. */
static int is_crash_child;

FL_API int __lsan_is_turned_off(void);

FL_API int __lsan_is_turned_off(void) {
    return is_crash_child;
}

static test_case *first_test;

void test_register(test_case *test) {
    /* Sorted by name, so that the order does not depend on the linker. */
    test_case **place = &first_test;
    while (*place && (strcmp((*place)->suite, test->suite) < 0 ||
                      (strcmp((*place)->suite, test->suite) == 0 &&
                       strcmp((*place)->name, test->name) < 0))) {
        place = &(*place)->next;
    }
    test->next = *place;
    *place = test;
}

/* --- in the child ------------------------------------------------------------------------------
 */

_Noreturn static void end_with(int code) {
    (void)fflush(NULL);
    _exit(code); /* Other threads of the test may be anywhere. */
}

_Noreturn void test_fail(const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)fprintf(stderr, "%s:%d: ", file, line);
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
    if (fl_last_message()[0]) {
        (void)fprintf(stderr, "last message: %s\n", fl_last_message());
    }
    end_with(EXIT_FAILED);
}

_Noreturn void test_skip(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    end_with(EXIT_SKIPPED);
}

void test_note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
}

uint64_t test_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

void test_pause_ms(int ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
}

int test_crash_of(void (*function)(void *argument), void *argument) {
    (void)fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        test_fail(__FILE__, __LINE__, "fork: %s", strerror(errno));
    }
    if (child == 0) {
        is_crash_child = 1;
        /* The crash is wanted: sanitizers shall not report it, nor the kernel keep a core. */
        static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
        for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
            (void)signal(signals[i], SIG_DFL);
        }
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        int null = open("/dev/null", O_WRONLY);
        (void)dup2(null, STDERR_FILENO);
        function(argument);
        _exit(0);
    }
    int result = 0;
    while (waitpid(child, &result, 0) < 0) {
        if (errno != EINTR) {
            test_fail(__FILE__, __LINE__, "waitpid: %s", strerror(errno));
        }
    }
    if (WIFSIGNALED(result)) {
        return WTERMSIG(result);
    }
    return WEXITSTATUS(result) ? WEXITSTATUS(result) + 256 : 0;
}

/* --- checks ------------------------------------------------------------------------------------
 */

void test_check_int(const char *file, int line, const char *what, int64_t actual, int64_t wanted) {
    if (actual != wanted) {
        test_fail(file, line, "%s is %" PRId64 ", wanted %" PRId64, what, actual, wanted);
    }
}

void test_check_uint(const char *file, int line, const char *what, uint64_t actual,
                     uint64_t wanted) {
    if (actual != wanted) {
        test_fail(file, line, "%s is %" PRIu64 ", wanted %" PRIu64, what, actual, wanted);
    }
}

void test_check_string(const char *file, int line, const char *what, const char *actual,
                       const char *wanted) {
    bool same = actual && wanted ? strcmp(actual, wanted) == 0 : actual == wanted;
    if (!same) {
        test_fail(file, line, "%s is \"%s\", wanted \"%s\"", what, actual ? actual : "(null)",
                  wanted ? wanted : "(null)");
    }
}

void test_check_contains(const char *file, int line, const char *what, const char *text,
                         const char *part) {
    if (!text || !strstr(text, part)) {
        test_fail(file, line, "%s is \"%s\", wanted \"%s\" in it", what, text ? text : "(null)",
                  part);
    }
}

void test_check_pointer(const char *file, int line, const char *what, const void *actual,
                        const void *wanted) {
    if (actual != wanted) {
        test_fail(file, line, "%s is %p, wanted %p", what, actual, wanted);
    }
}

void test_check_bytes(const char *file, int line, const char *what, const void *actual,
                      const void *wanted, size_t bytes) {
    const unsigned char *have = actual;
    const unsigned char *want = wanted;
    for (size_t i = 0; i < bytes; i++) {
        if (have[i] != want[i]) {
            test_fail(file, line, "%s differs at byte %zu of %zu: 0x%02x, wanted 0x%02x", what, i,
                      bytes, have[i], want[i]);
        }
    }
}

void test_check_status(const char *file, int line, const char *what, fl_status actual,
                       fl_status wanted) {
    if (actual != wanted) {
        test_fail(file, line, "%s is \"%s\", wanted \"%s\"", what, fl_status_name(actual),
                  fl_status_name(wanted));
    }
}

/* --- in the parent -----------------------------------------------------------------------------
 */

static int64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Each line with "# " in front, as TAP wants it. */
static void print_output(char *output) {
    char *rest = output;
    for (char *line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        printf("# %s\n", line);
    }
}

/* Reads what the child prints until it ends or the time is over; true if it ended. */
static bool collect(int pipe_end, pid_t child, int limit_s, char *output, int *out_result) {
    int64_t until = now_ms() + (int64_t)limit_s * 1000;
    size_t used = 0;
    bool is_open = true;
    bool has_ended = false;
    while (!has_ended && now_ms() < until) {
        struct pollfd poll_pipe = {.fd = is_open ? pipe_end : -1, .events = POLLIN};
        if (poll(&poll_pipe, 1, 20) > 0) {
            char piece[4096];
            ssize_t count = read(pipe_end, piece, sizeof(piece));
            is_open = count > 0;
            for (ssize_t i = 0; i < count && used < OUTPUT_MAX - 1; i++) {
                output[used++] = piece[i];
            }
        }
        if (!is_open || poll_pipe.revents == 0) {
            has_ended = waitpid(child, out_result, WNOHANG) == child;
        }
    }
    output[used] = '\0';
    return has_ended;
}

/* EXIT_PASSED, EXIT_FAILED or EXIT_SKIPPED; the output says why. */
static int run_one(const test_case *test, char *output) {
    int ends[2];
    if (pipe(ends) != 0) {
        (void)snprintf(output, OUTPUT_MAX, "pipe: %s", strerror(errno));
        return EXIT_FAILED;
    }
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)setpgid(0, 0); /* So that its own children end with it. */
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        test->run();
        exit(EXIT_PASSED); /* Exit handlers and the leak check belong to the test. */
    }
    (void)close(ends[1]);
    int result = 0;
    bool has_ended = child > 0 && collect(ends[0], child, test->limit_s, output, &result);
    size_t used = strlen(output);
    if (child > 0) {
        (void)kill(-child, SIGKILL); /* What it left behind, or the test itself. */
        if (!has_ended) {
            (void)waitpid(child, &result, 0);
            (void)snprintf(output + used, OUTPUT_MAX - used, "\nstill running after %d s",
                           test->limit_s);
        }
    }
    (void)close(ends[0]);
    if (!has_ended) {
        return EXIT_FAILED;
    }
    if (WIFSIGNALED(result)) {
        (void)snprintf(output + used, OUTPUT_MAX - used, "\nended by signal %d (%s)",
                       WTERMSIG(result), strsignal(WTERMSIG(result)));
        return EXIT_FAILED;
    }
    int code = WEXITSTATUS(result);
    if (code != EXIT_PASSED && code != EXIT_FAILED && code != EXIT_SKIPPED) {
        (void)snprintf(output + used, OUTPUT_MAX - used, "\nexit status %d", code);
        return EXIT_FAILED;
    }
    return code;
}

static bool is_wanted(const test_case *test, int count, char **names) {
    if (count == 0) {
        return true;
    }
    char full[256];
    (void)snprintf(full, sizeof(full), "%s.%s", test->suite, test->name);
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], test->suite) == 0 || strcmp(names[i], full) == 0) {
            return true;
        }
    }
    return false;
}

static int list(int count, char **names) {
    for (const test_case *test = first_test; test; test = test->next) {
        if (is_wanted(test, count, names)) {
            printf("%s.%s\n", test->suite, test->name);
        }
    }
    return 0;
}

/* Options of whoever runs the tests are not the tests'. */
static void forget_options(void) {
    static const char *const prefixes[] = {"TORCH_FL_", "FLAGOS_", "PYTORCH_ALLOC_CONF="};
    for (char **entry = environ; *entry;) {
        bool ours = false;
        for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
            ours = ours || strncmp(*entry, prefixes[i], strlen(prefixes[i])) == 0;
        }
        char name[128];
        size_t length = strcspn(*entry, "=");
        if (ours && length < sizeof(name)) {
            memcpy(name, *entry, length);
            name[length] = '\0';
            (void)unsetenv(name);
            entry = environ; /* The list has moved. */
        } else {
            entry++;
        }
    }
}

int main(int argc, char **argv) {
    int count = argc - 1;
    char **names = argv + 1;
    if (count > 0 && strcmp(names[0], "-l") == 0) {
        return list(count - 1, names + 1);
    }
    forget_options();
    int planned = 0;
    for (const test_case *test = first_test; test; test = test->next) {
        planned += is_wanted(test, count, names);
    }
    printf("TAP version 13\n1..%d\n", planned);
    static char output[OUTPUT_MAX];
    int number = 0;
    int passed = 0;
    int failed = 0;
    int skipped = 0;
    for (const test_case *test = first_test; test; test = test->next) {
        if (!is_wanted(test, count, names)) {
            continue;
        }
        number++;
        output[0] = '\0';
        switch (run_one(test, output)) {
        case EXIT_PASSED:
            passed++;
            printf("ok %d - %s.%s\n", number, test->suite, test->name);
            break;
        case EXIT_SKIPPED:
            skipped++;
            printf("ok %d - %s.%s # SKIP %s\n", number, test->suite, test->name, output);
            break;
        default:
            failed++;
            printf("not ok %d - %s.%s\n", number, test->suite, test->name);
            print_output(output);
            break;
        }
        (void)fflush(stdout);
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    /* Names that match nothing are a mistake of the caller. */
    return failed == 0 && planned > 0 ? 0 : 1;
}
