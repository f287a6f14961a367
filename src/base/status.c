/*
 * status.c: names of status codes, and the last failure of each thread.
 *
 * Relies on thread-local storage only. Does not know who fails or why.
 */
#include "fl/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

/* Long enough for a sentence with two paths in it; longer ones end in "...". */
enum { MESSAGE_MAX = 2048 };

static FL_THREAD_LOCAL char message[MESSAGE_MAX];
static FL_THREAD_LOCAL int32_t vendor_code;

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
    return message;
}

int32_t fl_last_vendor_code(void) {
    return vendor_code;
}

/* Formats into `text`; the arguments may point into the message itself, so it is not the target. */
static size_t format_into(char text[MESSAGE_MAX], const char *format, va_list arguments) {
    int length = vsnprintf(text, MESSAGE_MAX, format, arguments);
    if (length < 0) {
        /* A format that libc refuses is still better shown than lost. */
        length = snprintf(text, MESSAGE_MAX, "%s", format);
    }
    if (length >= MESSAGE_MAX) {
        memcpy(text + MESSAGE_MAX - 4, "...", 4);
        length = MESSAGE_MAX - 1;
    }
    return (size_t)length;
}

fl_status fl_fail(fl_status status, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    memcpy(message, text, length + 1);
    vendor_code = 0;
    return status;
}

fl_status fl_fail_vendor(fl_status status, int32_t code, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    memcpy(message, text, length + 1);
    vendor_code = code;
    return status;
}

fl_status fl_fail_context(fl_status status, const char *format, ...) {
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    size_t old = strlen(message);
    size_t kept = old;
    if (length + kept >= MESSAGE_MAX) {
        /* The cause, which comes last, is what gets cut: its beginning says most. */
        kept = MESSAGE_MAX - 1 - length;
    }
    memmove(message + length, message, kept);
    memcpy(message, text, length);
    message[length + kept] = '\0';
    if (kept < old && length + kept >= 3) {
        memcpy(message + length + kept - 3, "...", 3);
    }
    return status;
}
