/*
 * fake_cudalike.h: what the two halves of a fake of CUDA's shape share. FAKE_VENDOR is the vendor's
 * header in this folder.
 */
#ifndef FL_TESTS_FAKES_FAKE_CUDALIKE_H
#define FL_TESTS_FAKES_FAKE_CUDALIKE_H

#include FAKE_VENDOR

#include "engine.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define FN(suffix) PASTE(FAKE_PREFIX, suffix)

/* 0 or the code with which the function must return. */
int cudalike_begin(const char *function);
/* The vendor's number, which also stays in the thread's last-error slot. */
int cudalike_answer(fake_result result);
/* Whether the stream exists and, where that matters, is the current device's. */
fake_result cudalike_check_stream(void *stream);

#define BEGIN()                          \
    int code = cudalike_begin(__func__); \
    if (code) {                          \
        return code;                     \
    }

#endif
