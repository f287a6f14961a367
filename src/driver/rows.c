/*
 * rows.c: reads rows of cudalike.h from a text.
 *
 * A line is "[name]", which begins a row, "key = value", or empty; behind a '#' that begins the
 * line or follows a space stands a comment. A mistake is an error with file and line, never
 * ignored. Must not know any vendor.
 */
#define _GNU_SOURCE /* strndup */
#include "driver/rows.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "driver/registry.h"
#include "fl/debug.h"

/* A row with its platform, in the order of the text. */
typedef struct parsed {
    struct parsed *next;
    fl__cudalike_row row;
    fl_platform platform;
    char *text;    /* In the first row of a text: the copy that all of them refer to. */
    int line;      /* Where it began. */
    uint32_t keys; /* Bits of the keys that may be given once and were. */
} parsed;

/* Every row that was given away; they live as long as the process. */
static parsed *all_rows;
static fl__mutex all_lock = FL__MUTEX_INIT;

typedef struct reader {
    const char *file;
    int line;
    parsed *first, **end, *current;
} reader;

static fl_status wrong(const reader *r, const char *what, const char *word) {
    return fl_fail(FL_INVALID_ARGUMENT, "%s:%d: %s%s%s%s", r->file, r->line, what,
                   word ? " \"" : "", word ? word : "", word ? "\"" : "");
}

/* --- words ------------------------------------------------------------------------------------ */

static char *skip_spaces(char *text) {
    return text + strspn(text, " \t\r");
}

static void cut_trailing_spaces(char *text) {
    size_t length = strlen(text);
    while (length && strchr(" \t\r", text[length - 1])) {
        text[--length] = '\0';
    }
}

/* Cuts the first word off, NULL at the end. */
static char *next_word(char **text) {
    char *word = skip_spaces(*text);
    if (!*word) {
        return NULL;
    }
    char *end = word + strcspn(word, " \t\r");
    *text = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

/* A word that must be the only one of its value. */
static fl_status read_word(const reader *r, const char *key, char *value, const char **out) {
    const char *word = next_word(&value), *second = next_word(&value);
    if (second) {
        return fl_fail(FL_INVALID_ARGUMENT, "%s:%d: %s takes one word, found another one, \"%s\"",
                       r->file, r->line, key, second);
    }
    *out = word;
    return FL_OK;
}

static fl_status read_number(const reader *r, const char *word, int32_t *out) {
    char *end = NULL;
    errno = 0;
    long number = word ? strtol(word, &end, 0) : 0;
    if (!word || !*word || *end || errno || number < INT32_MIN || number > INT32_MAX) {
        return wrong(r, "expected a number, found", word ? word : "");
    }
    *out = (int32_t)number;
    return FL_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

/* A list of names, which may be given in several lines. */
static fl_status read_list(const reader *r, char *value, const char **list, size_t max) {
    size_t count = 0;
    while (count < max && list[count]) {
        count++;
    }
    for (char *word; (word = next_word(&value));) {
        if (count == max) {
            return wrong(r, "there is no room for", word);
        }
        list[count++] = word;
    }
    return FL_OK;
}

static fl_status read_rename(const reader *r, char *value, bool drop) {
    fl__cudalike_row *row = &r->current->row;
    char *usual = next_word(&value), *own = drop ? NULL : next_word(&value);
    if (!usual || (!drop && !own) || next_word(&value)) {
        return wrong(r, drop ? "drop takes one suffix" : "rename takes two suffixes", NULL);
    }
    if (!fl__cudalike_has_function(usual)) {
        return wrong(r, "no function has the suffix", usual);
    }
    for (int i = 0; i < FL__ROW_RENAMES; i++) {
        if (row->renames[i].usual && strcmp(row->renames[i].usual, usual) == 0) {
            return wrong(r, "renamed or dropped before:", usual);
        }
        if (!row->renames[i].usual) {
            row->renames[i].usual = usual;
            row->renames[i].own = drop ? "" : own;
            return FL_OK;
        }
    }
    return wrong(r, "there is no room for", usual);
}

/* "10007 out of memory" */
static fl_status read_error(const reader *r, char *value) {
    fl__cudalike_row *row = &r->current->row;
    int32_t code;
    FL_TRY(read_number(r, next_word(&value), &code));
    char *name = skip_spaces(value);
    int status = FL_OK + 1;
    while (status < FL_STATUS_COUNT && strcmp(fl_status_name((fl_status)status), name) != 0) {
        status++;
    }
    if (!code || status == FL_STATUS_COUNT) {
        return wrong(r, code ? "no status is called" : "0 is no error, found", name);
    }
    for (int i = 0; i < FL__ROW_ERRORS; i++) {
        if (row->errors[i].code == code) {
            return wrong(r, "the number had a status before", name);
        }
        if (!row->errors[i].code) {
            row->errors[i].code = code;
            row->errors[i].status = (fl_status)status;
            return FL_OK;
        }
    }
    return wrong(r, "there is no room for", name);
}

/* "stream.priority the runtime has one" */
static fl_status read_limit(const reader *r, char *value) {
    fl__cudalike_row *row = &r->current->row;
    char *name = next_word(&value), *reason = skip_spaces(value);
    if (!name || !*reason) {
        return wrong(r, "limit takes a case and a reason", NULL);
    }
    for (int i = 0; i < FL__ROW_LIMITS - 1; i++) { /* The last one ends the list. */
        if (row->limits[i].case_name && strcmp(row->limits[i].case_name, name) == 0) {
            return wrong(r, "declared before:", name);
        }
        if (!row->limits[i].case_name) {
            row->limits[i] = (fl_driver_limit){.case_name = name, .reason = reason};
            return FL_OK;
        }
    }
    return wrong(r, "there is no room for", name);
}

static fl_status read_quirk(const reader *r, const char *value) {
    static const struct {
        const char *word;
        uint32_t bit;
    } quirks[] = {
        {"peer_copy_waits", FL__QUIRK_PEER_COPY_WAITS},
        {"host_flags_are_zero", FL__QUIRK_HOST_FLAGS_ARE_ZERO},
        {"directories_first", FL__QUIRK_DIRECTORIES_FIRST},
    };
    for (size_t i = 0; i < sizeof(quirks) / sizeof(quirks[0]); i++) {
        if (strcmp(quirks[i].word, value) == 0) {
            if (r->current->row.quirks & quirks[i].bit) {
                return wrong(r, "given before:", value);
            }
            r->current->row.quirks |= quirks[i].bit;
            return FL_OK;
        }
    }
    return wrong(r, "no quirk is called", value);
}

/* Notes that a key was given which may be given once; `bit` is its own. */
static fl_status note_key(const reader *r, const char *key, size_t bit) {
    if (r->current->keys & (1u << bit)) {
        return wrong(r, "given before:", key);
    }
    r->current->keys |= 1u << bit;
    return FL_OK;
}

/* The keys whose values are a text or a number. False where `key` is none of them. */
static bool read_single(const reader *r, const char *key, char *value, fl_status *out_status) {
    fl__cudalike_row *row = &r->current->row;
    const struct {
        const char *key;
        const char **word;
    } words[] = {
        {"prefix", &row->prefix},
        {"module_prefix", &row->module_prefix},
    };
    const struct {
        const char *key;
        int32_t *number;
    } numbers[] = {
        {"min_version", &row->min_version},
        {"properties_total", &row->properties_total},
        {"properties_uuid", &row->properties_uuid},
        {"attribute_major", &row->attributes.major},
        {"attribute_minor", &row->attributes.minor},
        {"attribute_processors", &row->attributes.processors},
        {"attribute_warp", &row->attributes.warp},
        {"attribute_integrated", &row->attributes.integrated},
        {"probe_order", &r->current->platform.probe_order},
    };
    size_t bit = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++, bit++) {
        if (strcmp(words[i].key, key) == 0) {
            *out_status = note_key(r, key, bit);
            *out_status = *out_status ? *out_status : read_word(r, key, value, words[i].word);
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++, bit++) {
        if (strcmp(numbers[i].key, key) == 0) {
            *out_status = note_key(r, key, bit);
            *out_status = *out_status ? *out_status : read_number(r, value, numbers[i].number);
            return true;
        }
    }
    if (strcmp(key, "maker") == 0) {
        row->maker = value;
        *out_status = note_key(r, key, bit);
        return true;
    }
    return false;
}

static fl_status read_key(const reader *r, const char *key, char *value) {
    fl__cudalike_row *row = &r->current->row;
    const struct {
        const char *key;
        const char **list;
        size_t max;
    } lists[] = {
        {"libraries", row->libraries, FL__ROW_LIBRARIES},
        {"module_libraries", row->module_libraries, FL__ROW_LIBRARIES},
        {"directories", row->directories, FL__ROW_DIRECTORIES},
    };
    fl_status status = FL_OK;
    if (read_single(r, key, value, &status)) {
        return status;
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (strcmp(lists[i].key, key) == 0) {
            return read_list(r, value, lists[i].list, lists[i].max);
        }
    }
    if (strcmp(key, "rename") == 0 || strcmp(key, "drop") == 0) {
        return read_rename(r, value, *key == 'd');
    }
    if (strcmp(key, "error") == 0) {
        return read_error(r, value);
    }
    if (strcmp(key, "limit") == 0) {
        return read_limit(r, value);
    }
    if (strcmp(key, "quirk") == 0) {
        return read_quirk(r, value);
    }
    return wrong(r, "no key is called", key);
}

/* --- lines ------------------------------------------------------------------------------------ */

static fl_status begin_row(reader *r, char *text) {
    size_t length = strcspn(text, "]");
    if (text[length] != ']' || *skip_spaces(text + length + 1)) {
        return wrong(r, "expected [name], found [", text);
    }
    text[length] = '\0';
    if (!fl__is_platform_name(text)) {
        return wrong(r, FL__PLATFORM_NAME_RULE ", found", text);
    }
    for (const parsed *p = r->first; p; p = p->next) {
        if (strcmp(p->row.name, text) == 0) {
            return wrong(r, "there is a row before that is called", text);
        }
    }
    parsed *row = calloc(1, sizeof(*row));
    if (!row) {
        return fl_fail(FL_OUT_OF_MEMORY, "%s:%d: no memory for a row", r->file, r->line);
    }
    row->line = r->line;
    row->row = (fl__cudalike_row){
        .name = text,
        .properties_total = -1,
        .properties_uuid = -1,
        .attributes = {.major = -1, .minor = -1, .processors = -1, .warp = -1, .integrated = -1},
    };
    row->platform = (fl_platform){
        .name = text,
        .twin = FL_TWIN_NONE,
        .probe_order = 50,
        .probe = fl__cudalike_probe,
        .open = fl__cudalike_open,
        .data = &row->row,
    };
    r->current = row;
    *r->end = row;
    r->end = &row->next;
    return FL_OK;
}

static void cut_comment(char *line) {
    for (char *at = line; (at = strchr(at, '#')); at++) {
        if (at == line || strchr(" \t", at[-1])) {
            *at = '\0';
            return;
        }
    }
}

static fl_status read_line(reader *r, char *line) {
    cut_comment(line);
    cut_trailing_spaces(line);
    line = skip_spaces(line);
    if (!*line) {
        return FL_OK;
    }
    if (*line == '[') {
        return begin_row(r, line + 1);
    }
    char *value = strchr(line, '=');
    if (!value) {
        return wrong(r, "expected key = value, found", line);
    }
    *value = '\0';
    value = skip_spaces(value + 1);
    cut_trailing_spaces(line);
    if (!r->current) {
        return wrong(r, "before a [name] there is no place for", line);
    }
    return *value ? read_key(r, line, value) : wrong(r, "there is no value for", line);
}

enum { STRUCT_ROOM = 4096 }; /* Of the properties struct, see cudalike_memory.c. */

static fl_status check_row(reader *r, parsed *p) {
    r->line = p->line;
    if (!p->row.prefix || !p->row.libraries[0]) {
        return wrong(r, p->row.prefix ? "libraries are missing for" : "prefix is missing for",
                     p->row.name);
    }
    if (p->row.properties_total > STRUCT_ROOM - 8 || p->row.properties_uuid > STRUCT_ROOM - 16 ||
        p->row.properties_total < -1 || p->row.properties_uuid < -1) {
        return wrong(r, "an offset lies outside of the properties of", p->row.name);
    }
    if (!fl__cudalike_names_fit(&p->row)) {
        return wrong(r, "prefix and suffix make too long a function's name in", p->row.name);
    }
    if (!p->row.maker) {
        p->row.maker = p->row.name;
    }
    return FL_OK;
}

/* Where the row of a platform began. */
static int line_of(const fl_platform *platform) {
    int line = 0;
    fl__lock(&all_lock);
    for (const parsed *p = all_rows; p; p = p->next) {
        line = &p->platform == platform ? p->line : line;
    }
    fl__unlock(&all_lock);
    return line;
}

/* Reads the lines of a text that ends with a zero byte; `bytes` tells it from one within. */
static fl_status read_lines(reader *r, char *text, size_t bytes) {
    size_t length = strlen(text);
    fl_status status = FL_OK;
    for (char *line = text, *next; line && status == FL_OK; line = next) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = '\0';
        }
        r->line++;
        status = next || length == bytes ? read_line(r, line)
                                         : wrong(r, "a zero byte in the text", NULL);
    }
    for (parsed *p = r->first; p && status == FL_OK; p = p->next) {
        status = check_row(r, p);
    }
    return status;
}

fl_status fl__rows_parse(const char *text, size_t bytes, const char *file,
                         fl_status (*take)(const fl_platform *platform)) {
    reader r = {.file = file, .line = 0, .first = NULL, .current = NULL};
    r.end = &r.first;
    /* Rows refer to it; kept with them. */
    char *copy = strndup(text, bytes);
    if (!copy) {
        return fl_fail(FL_OUT_OF_MEMORY, "%s: no memory for %zu bytes", file, bytes);
    }
    fl_status status = read_lines(&r, copy, bytes);
    if (status != FL_OK || !r.first) {
        goto fail;
    }
    r.first->text = copy;
    fl__lock(&all_lock);
    parsed *older = all_rows;
    *r.end = older;
    all_rows = r.first;
    fl__unlock(&all_lock);
    for (parsed *p = r.first; p != older && status == FL_OK; p = p->next) {
        status = take(&p->platform);
    }
    return status;

fail:
    for (parsed *p = r.first, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(copy);
    return status;
}

/* --- the file of the option ------------------------------------------------------------------- */

enum { MAX_FILE = 1 << 20, MAX_ROWS = 16 };

static const fl_platform *rows[MAX_ROWS];
static size_t row_count;
static const char *loaded_file; /* The option's text, which is kept by the options. */
static fl__mutex lock = FL__MUTEX_INIT;

static fl_status keep(const fl_platform *platform) {
    if (row_count == MAX_ROWS) {
        return fl_fail(FL_OUT_OF_RANGE, "%s: more than %d rows", platform->name, MAX_ROWS);
    }
    rows[row_count++] = platform;
    return FL_OK;
}

static fl_status read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = malloc(MAX_FILE);
    size_t bytes = file && text ? fread(text, 1, MAX_FILE, file) : 0;
    fl_status status;
    if (!file || ferror(file)) {
        status = fl_fail(FL_UNAVAILABLE, "%s: %s", path, strerror(errno));
    } else if (!text) {
        status = fl_fail(FL_OUT_OF_MEMORY, "%s: no memory to read it", path);
    } else if (bytes == MAX_FILE) {
        status = fl_fail(FL_INVALID_ARGUMENT, "%s: longer than %d bytes", path, MAX_FILE);
    } else {
        status = fl__rows_parse(text, bytes, path, keep);
    }
    free(text);
    if (file) {
        (void)fclose(file);
    }
    return status;
}

fl_status fl__rows_load(fl_status (*take)(const fl_platform *platform)) {
    const char *path = fl_option_string(FL_OPT_VENDOR_ROWS);
    if (!path) {
        return FL_OK;
    }
    fl_status status = FL_OK;
    fl__lock(&lock);
    if (!loaded_file || strcmp(loaded_file, path) != 0) {
        row_count = 0;
        status = read_file(path);
        loaded_file = status == FL_OK ? path : NULL;
    }
    for (size_t i = 0; i < row_count && status == FL_OK; i++) {
        status = take(rows[i]);
        if (status != FL_OK) {
            status = fl_fail_context(status, "%s:%d: ", path, line_of(rows[i]));
        }
    }
    fl__unlock(&lock);
    if (status != FL_OK) {
        status = fl_fail_context(status, "TORCH_FL_VENDOR_ROWS: ");
        fl_trace(FL_TRACE_DRIVER, "%s", fl_last_message());
    }
    return status;
}
