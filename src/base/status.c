/*
 * status.c: names of status codes, and the last failure of each thread.
 *
 * A thread's sentence lies on the heap and only its address in thread-local storage: the library's
 * hot variables are of the initial-exec model, so its whole block comes out of the small reserve
 * that a process keeps for libraries it loads later. Does not know who fails or why.
 */
#include "fl/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failures.h"
#include "base/text.h"

/* Long enough for a sentence with two paths in it; longer ones end in "...". */
enum { MESSAGE_MAX = 2048 };

typedef struct failure {
    int32_t vendor_code;
    char message[MESSAGE_MAX];
} failure;

FL_THREAD_LOCAL_HOT uint32_t fl__failures;

static FL_THREAD_LOCAL_HOT failure *last; /* NULL until the thread's first failure. */
static pthread_key_t key;                 /* Its destructor frees `last`. */
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool has_key;

static void end_failure(void *argument) {
    last = NULL;
    free(argument);
}

static void make_key(void) {
    has_key = pthread_key_create(&key, end_failure) == 0;
}

/* The calling thread's record; NULL on exhaustion of memory, when the sentence is lost. */
static failure *own_failure(void) {
    if (!last) {
        (void)pthread_once(&key_once, make_key);
        failure *made = has_key ? calloc(1, sizeof(*made)) : NULL;
        if (made && pthread_setspecific(key, made) != 0) {
            free(made);
            made = NULL;
        }
        last = made;
    }
    return last;
}

static const char *const names[FL_STATUS_COUNT] = {
#define STATUS_NAME(code, name) [FL_##code] = name,
    FL_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
};

const char *fl_status_name(fl_status status) {
    unsigned index = (unsigned)status;
    return index < FL_STATUS_COUNT ? names[index] : "unknown status";
}

const char *fl_last_message(void) {
    return last ? last->message : "";
}

int32_t fl_last_vendor_code(void) {
    return last ? last->vendor_code : 0;
}

static void record(const char *text, int32_t code) {
    fl__failures++;
    failure *own = own_failure();
    if (own) {
        memcpy(own->message, text, strlen(text) + 1);
        own->vendor_code = code;
    }
}

/* Shortens a text that fills its room, so that it ends in "..." behind a whole character. */
static void end_in_dots(char text[MESSAGE_MAX]) {
    text[MESSAGE_MAX - 4] = '\0';
    fl__text_mend(text, true);
    memcpy(text + strlen(text), "...", 4);
}

/* Formats into `text`; the arguments may point into the message itself, so it is not the target.
 * Words of vendors and names of files come in here, whatever their encoding. */
static void format_into(char text[MESSAGE_MAX], const char *format, va_list arguments) {
    int length = vsnprintf(text, MESSAGE_MAX, format, arguments);
    if (length < 0) {
        /* A format that libc refuses is still better shown than lost. */
        length = snprintf(text, MESSAGE_MAX, "%s", format);
    }
    if (length >= MESSAGE_MAX) {
        end_in_dots(text);
    } else {
        fl__text_mend(text, false);
    }
}

fl_status fl_fail(fl_status status, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    format_into(text, format, arguments);
    va_end(arguments);
    record(text, 0);
    return status;
}

fl_status fl_fail_vendor(fl_status status, int32_t code, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    format_into(text, format, arguments);
    va_end(arguments);
    record(text, code);
    return status;
}

fl_status fl_fail_context(fl_status status, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    format_into(text, format, arguments);
    va_end(arguments);
    failure *own = own_failure();
    if (!own) {
        return status;
    }
    size_t length = strlen(text), old = strlen(own->message);
    /* The cause, which comes last, is what gets cut: its beginning says most. */
    bool is_cut = length + old >= MESSAGE_MAX;
    size_t kept = is_cut ? MESSAGE_MAX - 1 - length : old;
    memmove(own->message + length, own->message, kept);
    memcpy(own->message, text, length);
    own->message[length + kept] = '\0';
    if (is_cut) {
        end_in_dots(own->message);
    }
    return status;
}
