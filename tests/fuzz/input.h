/*
 * input.h: a fuzzer's bytes as numbers. After the last byte everything is 0.
 */
#ifndef FL_TESTS_FUZZ_INPUT_H
#define FL_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

typedef struct input {
    const uint8_t *at, *end;
} input;

static inline uint8_t input_byte(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

static inline uint64_t input_word(input *in) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        word = word << 8 | input_byte(in);
    }
    return word;
}

#endif
