/*
 * log.c: the only file that prints.
 *
 * A line goes to the standard error stream in one write, so that lines of several threads do not
 * mix, or to the sink that was set. Relies on the options for the categories that are on. Does not
 * know devices.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/thread.h"

enum { LINE_MAX_BYTES = 2048 };

uint32_t fl__trace_mask = FL__TRACE_UNREAD;
int32_t fl__debug_level_cache = -1;

static_assert(FL_TRACE_COUNT < 32, "a category is a bit of the mask, and all bits mean unread");

static fl__mutex sink_lock = FL__MUTEX_INIT;
static fl_trace_sink sink;
static void *sink_user;

typedef struct category_row {
    const char *word;
    const char *meaning;
} category_row;

static const category_row categories[FL_TRACE_COUNT] = {
#define CATEGORY_ROW(id, word, meaning) [FL_TRACE_##id] = {word, meaning},
    FL_TRACE_LIST(CATEGORY_ROW)
#undef CATEGORY_ROW
};

const char *fl_trace_word(fl_trace_category category) {
    return (unsigned)category < FL_TRACE_COUNT ? categories[category].word : "unknown";
}

const char *fl_trace_meaning(fl_trace_category category) {
    return (unsigned)category < FL_TRACE_COUNT ? categories[category].meaning : "";
}

void fl__log_configure(uint32_t trace_mask, int32_t debug_level) {
    int32_t bounded = debug_level < TORCH_FL_DEBUG ? debug_level : TORCH_FL_DEBUG;
    __atomic_store_n(&fl__debug_level_cache, bounded, __ATOMIC_RELAXED);
    __atomic_store_n(&fl__trace_mask, trace_mask, __ATOMIC_RELAXED);
}

uint32_t fl__trace_mask_slow(void) {
    fl__options_load();
    uint32_t mask = __atomic_load_n(&fl__trace_mask, __ATOMIC_RELAXED);
    /* Unread here means that the options are being loaded by this very thread. */
    return mask == FL__TRACE_UNREAD ? 0 : mask;
}

int32_t fl__debug_level_slow(void) {
    fl__options_load();
    int32_t level = __atomic_load_n(&fl__debug_level_cache, __ATOMIC_RELAXED);
    return level < 0 ? 0 : level;
}

int32_t fl_debug_level(void) {
    return fl__debug_level_get();
}

bool fl_trace_on(fl_trace_category category) {
    return (unsigned)category < FL_TRACE_COUNT && fl__trace_on(category);
}

void fl_trace_set_sink(fl_trace_sink new_sink, void *user) {
    fl__lock(&sink_lock);
    sink = new_sink;
    sink_user = user;
    fl__unlock(&sink_lock);
}

static void write_all(const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, text, length);
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            return; /* Nobody listens; a trace line is not worth an error. */
        }
        text += written;
        length -= (size_t)written;
    }
}

/* Ends the text with a line break, whatever was cut before. */
static size_t end_line(char *line, size_t size, int length) {
    size_t used = length < 0 ? 0 : (size_t)length;
    if (used > size - 2) {
        used = size - 2;
        memcpy(line + used - 3, "...", 3);
    }
    line[used] = '\n';
    line[used + 1] = '\0';
    return used + 1;
}

void fl_trace(fl_trace_category category, const char *format, ...) {
    if (!fl_trace_on(category)) {
        return;
    }
    int saved_errno = errno;
    char text[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length < 0) {
        text[0] = '\0';
    }

    fl__lock(&sink_lock);
    fl_trace_sink function = sink;
    void *user = sink_user;
    fl__unlock(&sink_lock);
    if (function) {
        function(user, category, text);
    } else {
        char line[LINE_MAX_BYTES + 32];
        length = snprintf(line, sizeof(line), "torch_fl[%s]: %s", categories[category].word, text);
        write_all(line, end_line(line, sizeof(line), length));
    }
    errno = saved_errno;
}

_Noreturn void fl__assert_failed(const char *condition, const char *file, int line_number,
                                 const char *function) {
    char line[LINE_MAX_BYTES];
    int length = snprintf(line, sizeof(line), "torch_fl: assertion failed: %s (%s:%d, %s)",
                          condition, file, line_number, function);
    write_all(line, end_line(line, sizeof(line), length));
    abort();
}
