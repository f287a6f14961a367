/*
 * idle.h: how functions of the idle device are defined and counted, for idle_*.c.
 */
#pragma once

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

/* --- what was called -----------------------------------------------------------------------------
 *
 * A call of the real libraries costs the host more than one of these, so whoever compares two
 * programs has to see that both make the same calls. */

struct count {
    const char *name;
    uint64_t calls;
};

#define COUNTER(name) \
    static struct count count_##name __attribute__((section("idle_counts"))) = {#name, 0}

#define SERVE(type, name, parameters) \
    COUNTER(name);                    \
    EXPORT type name parameters;      \
    type name parameters

#define COUNT(name) (count_##name.calls++)

/* For functions that have nothing to do, whatever they are given. */
#define SUCCEED(name)          \
    SERVE(int, name, (void)) { \
        COUNT(name);           \
        return SUCCESS;        \
    }

/* Gives a stream, an event or a handle a name that nothing else has. */
int idle_make(void **out);
