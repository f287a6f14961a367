/*
 * text.c: see text.h. Keeps no state.
 */
#include "base/text.h"

#include <stdio.h>

/* Bytes of the character that begins with this one; 0 where none does. */
static size_t character_size(unsigned char first) {
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
        return 0; /* Within a character, an overlong form, or beyond U+10FFFF. */
    }
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The second byte's range is narrower behind four first bytes: no overlong forms, no surrogates,
 * nothing beyond U+10FFFF. */
static bool may_follow(unsigned char first, unsigned char second) {
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

/* How many bytes of a character of `size` bytes are there. The text's end mark follows nothing. */
static size_t bytes_there(const unsigned char *text, size_t size) {
    size_t there = size ? 1 : 0;
    while (there < size &&
           (there == 1 ? may_follow(text[0], text[1]) : (text[there] & 0xC0) == 0x80)) {
        there++;
    }
    return there;
}

void fl__text_mend(char *text, bool was_cut) {
    unsigned char *at = (unsigned char *)text;
    while (*at) {
        size_t size = character_size(*at);
        size_t there = bytes_there(at, size);
        if (size && there == size) {
            at += size;
        } else if (was_cut && there && !at[there]) {
            *at = '\0';
        } else {
            *at++ = '?';
        }
    }
}

bool fl__text_vprint(char *out, size_t size, const char *format, va_list arguments) {
    int length = vsnprintf(out, size, format, arguments);
    if (length < 0) {
        out[0] = '\0'; /* libc refuses the format; what it wrote is not known. */
    }
    bool was_cut = length >= 0 && (size_t)length >= size;
    fl__text_mend(out, was_cut);
    return !was_cut;
}

bool fl__text_print(char *out, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bool has_room = fl__text_vprint(out, size, format, arguments);
    va_end(arguments);
    return has_room;
}
