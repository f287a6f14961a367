/*
 * harness.h: the C tests' frame: one binary, each test in a process of its own.
 *
 * A test is TEST(suite, name) { ... } in any file that is linked in. It runs in a forked child with
 * a time limit, so that it may crash, hang, choose a platform or leave state behind. A check that
 * fails prints both sides with file and line and ends the test. Results are TAP; the last line is
 * "N passed, N failed, N skipped".
 *
 *   fl_tests [-l] [name ...]   a name is a suite, or suite.test; -l lists instead of running
 */
#ifndef FL_TESTS_HARNESS_H
#define FL_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fl/status.h"

typedef struct test_case {
    const char *suite;
    const char *name;
    void (*run)(void);
    int limit_s;
    struct test_case *next;
} test_case;

void test_register(test_case *test);

#define TEST_LIMIT_S 30

/* `limit` is in seconds, for tests that take longer than the usual limit. */
#define TEST_WITH_LIMIT(suite_name, test_name, limit)                               \
    static void test_##suite_name##_##test_name(void);                              \
    static test_case case_##suite_name##_##test_name = {                            \
        #suite_name, #test_name, test_##suite_name##_##test_name, limit, NULL};     \
    __attribute__((constructor)) static void add_##suite_name##_##test_name(void) { \
        test_register(&case_##suite_name##_##test_name);                            \
    }                                                                               \
    static void test_##suite_name##_##test_name(void)

#define TEST(suite_name, test_name) TEST_WITH_LIMIT(suite_name, test_name, TEST_LIMIT_S)

/* Ends the test as failed; may be called from any of its threads. */
_Noreturn void test_fail(const char *file, int line, const char *format, ...) FL_PRINTF(3, 4);

/* Ends the test as skipped. */
_Noreturn void test_skip(const char *format, ...) FL_PRINTF(1, 2);

/* Adds a line to what is printed should the test fail: a seed, the case of a loop. */
void test_note(const char *format, ...) FL_PRINTF(1, 2);

/* Runs the function in a child of its own. The child's signal if one ended it, 0 if the function
 * returned, else its exit status plus 256. What the child prints is kept quiet. */
int test_crash_of(void (*function)(void *argument), void *argument);

/* Pseudo-random numbers; the state is the caller's seed and must not be 0. */
uint64_t test_random(uint64_t *state);

/* Sleeps. */
void test_pause_ms(int ms);

/* --- checks, each printing both sides -----------------------------------------------------------
 */

void test_check_int(const char *file, int line, const char *what, int64_t actual, int64_t wanted);
void test_check_uint(const char *file, int line, const char *what, uint64_t actual,
                     uint64_t wanted);
void test_check_string(const char *file, int line, const char *what, const char *actual,
                       const char *wanted);
void test_check_contains(const char *file, int line, const char *what, const char *text,
                         const char *part);
void test_check_pointer(const char *file, int line, const char *what, const void *actual,
                        const void *wanted);
void test_check_bytes(const char *file, int line, const char *what, const void *actual,
                      const void *wanted, size_t bytes);
void test_check_status(const char *file, int line, const char *what, fl_status actual,
                       fl_status wanted);

#define CHECK(condition)                                               \
    do {                                                               \
        if (!(condition)) {                                            \
            test_fail(__FILE__, __LINE__, "is false: %s", #condition); \
        }                                                              \
    } while (0)

#define CHECK_INT(actual, wanted) \
    test_check_int(__FILE__, __LINE__, #actual, (int64_t)(actual), (int64_t)(wanted))
#define CHECK_UINT(actual, wanted) \
    test_check_uint(__FILE__, __LINE__, #actual, (uint64_t)(actual), (uint64_t)(wanted))
#define CHECK_STRING(actual, wanted) test_check_string(__FILE__, __LINE__, #actual, actual, wanted)
#define CHECK_CONTAINS(text, part) test_check_contains(__FILE__, __LINE__, #text, text, part)
#define CHECK_POINTER(actual, wanted) \
    test_check_pointer(__FILE__, __LINE__, #actual, actual, wanted)
#define CHECK_BYTES(actual, wanted, bytes) \
    test_check_bytes(__FILE__, __LINE__, #actual, actual, wanted, bytes)
#define CHECK_STATUS(actual, wanted) test_check_status(__FILE__, __LINE__, #actual, actual, wanted)
#define CHECK_OK(actual) CHECK_STATUS(actual, FL_OK)

#endif
