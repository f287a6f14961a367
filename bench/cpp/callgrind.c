/*
 * callgrind.c: lets a program, also one in Python, say which of its calls callgrind shall count.
 * Outside of valgrind both functions do nothing.
 */
#include <valgrind/callgrind.h>

__attribute__((visibility("default"))) void count_begin(void);
__attribute__((visibility("default"))) void count_end(const char *name);

void count_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

/* Writes what was counted since count_begin into a file of its own, which says `name`. */
void count_end(const char *name) {
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
}
