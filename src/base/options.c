/*
 * options.c: the values of the options, and the only file that reads the environment.
 *
 * The table itself is FL_OPTION_LIST in fl/debug.h. The environment is read once; a value that
 * cannot be used is remembered, so that the first function that can report an error does. Does not
 * know who uses an option, but for the two that configure log.c.
 */
#include "base/options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"

extern char **environ;

static const fl_option_info table[FL_OPTION_COUNT] = {
#define OPTION_ROW(id, variable, type, standard, least, most, unit, meaning) \
    [FL_OPT_##id] = {variable, FL_OPTION_##type, standard, least, most, unit, meaning},
    FL_OPTION_LIST(OPTION_ROW)
#undef OPTION_ROW
};

/* Text that a reader may still hold is never freed; the list keeps it reachable. */
typedef struct kept_text {
    struct kept_text *next;
    char text[];
} kept_text;

typedef struct option_value {
    const char *text; /* What was set or the default; NULL: neither. */
    int64_t number;   /* The parsed text; for TORCH_FL_TRACE a mask. */
    bool is_set;
    const char *refused; /* What the environment said and parse() refused. */
} option_value;

static option_value values[FL_OPTION_COUNT];
static kept_text *kept;
static fl__mutex lock = FL__MUTEX_INIT; /* Guards writes to the three. */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* --- parsing --------------------------------------------------------------------------------- */

static bool parse_bool(const char *text, int64_t *out) {
    static const char *const words[2][4] = {{"0", "off", "false", "no"},
                                            {"1", "on", "true", "yes"}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; i < 4; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value;
                return true;
            }
        }
    }
    return false;
}

/* `suffixes` allows K, M, G and T. */
static bool parse_number(const char *text, bool suffixes, int64_t *out) {
    if ((*text < '0' || *text > '9') && *text != '-') {
        return false; /* strtoimax would skip spaces and take a plus. */
    }
    char *end = NULL;
    errno = 0;
    intmax_t number = strtoimax(text, &end, 10);
    if (errno != 0 || end == text || number > INT64_MAX || number < INT64_MIN) {
        return false;
    }
    if (suffixes && *end != '\0') {
        static const char letters[] = "KMGT";
        const char *letter = strchr(letters, *end & ~0x20);
        if (!letter) {
            return false;
        }
        int64_t factor = INT64_C(1) << (10 * (letter - letters + 1));
        if (__builtin_mul_overflow((int64_t)number, factor, &number)) {
            return false;
        }
        end++;
    }
    *out = (int64_t)number;
    return *end == '\0';
}

/* "driver,copy" or "all" to a mask. */
static bool parse_categories(const char *text, int64_t *out) {
    int64_t mask = 0;
    while (*text) {
        size_t length = strcspn(text, ",");
        bool known = length == 0;
        if (length == 3 && memcmp(text, "all", 3) == 0) {
            mask = (INT64_C(1) << FL_TRACE_COUNT) - 1;
            known = true;
        }
        for (int i = 0; i < FL_TRACE_COUNT; i++) {
            const char *word = fl_trace_word((fl_trace_category)i);
            if (strlen(word) == length && memcmp(text, word, length) == 0) {
                mask |= INT64_C(1) << i;
                known = true;
            }
        }
        if (!known) {
            return false;
        }
        text += length + (text[length] == ',');
    }
    *out = mask;
    return true;
}

static bool parse(fl_option option, const char *text, int64_t *out) {
    const fl_option_info *info = &table[option];
    *out = 0;
    switch (info->type) {
    case FL_OPTION_STRING:
        return option != FL_OPT_TRACE || parse_categories(text, out);
    case FL_OPTION_BOOL:
        return parse_bool(text, out);
    case FL_OPTION_INT:
    case FL_OPTION_BYTES:
        return parse_number(text, info->type == FL_OPTION_BYTES, out) && *out >= info->least &&
               *out <= info->most;
    }
    return false;
}

static fl_status fail_value(fl_option option, const char *text) {
    const fl_option_info *info = &table[option];
    if (option == FL_OPT_TRACE) {
        char words[256] = "";
        size_t used = 0;
        for (int i = 0; i < FL_TRACE_COUNT; i++) {
            const char *word = fl_trace_word((fl_trace_category)i);
            size_t length = strlen(word);
            if (used + length + 3 < sizeof(words)) {
                memcpy(words + used, word, length);
                memcpy(words + used + length, ", ", 3);
                used += length + 2;
            }
        }
        return fl_fail(FL_INVALID_ARGUMENT,
                       "%s is \"%s\"; it takes a comma-separated list of %sall", info->variable,
                       text, words);
    }
    if (info->type == FL_OPTION_BOOL) {
        return fl_fail(FL_INVALID_ARGUMENT, "%s is \"%s\"; it takes 0 or 1", info->variable, text);
    }
    return fl_fail(FL_INVALID_ARGUMENT,
                   "%s is \"%s\"; it takes a whole number%s from %" PRId64 " to %" PRId64 " (%s)",
                   info->variable, text,
                   info->type == FL_OPTION_BYTES ? ", with K, M, G or T behind it if wanted," : "",
                   info->least, info->most, info->unit);
}

/* --- values ---------------------------------------------------------------------------------- */

/* Under the lock. NULL on exhaustion of memory. */
static const char *keep_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    kept_text *copy = malloc(sizeof(*copy) + bytes);
    if (!copy) {
        return NULL;
    }
    memcpy(copy->text, text, bytes);
    copy->next = kept;
    kept = copy;
    return copy->text;
}

/* Readers take no lock, hence the atomic stores. */
static void store(fl_option option, const char *text, int64_t number, bool is_set) {
    option_value *value = &values[option];
    __atomic_store_n(&value->text, text, __ATOMIC_RELEASE);
    __atomic_store_n(&value->number, number, __ATOMIC_RELEASE);
    __atomic_store_n(&value->is_set, is_set, __ATOMIC_RELEASE);
}

static void store_standard(fl_option option) {
    const char *text = table[option].standard;
    int64_t number = 0;
    if (text) {
        (void)parse(option, text, &number);
    }
    store(option, text, number, false);
}

static void configure_log(void) {
    uint32_t mask = (uint32_t)values[FL_OPT_TRACE].number;
    if (values[FL_OPT_LOG_FALLBACK].number) {
        mask |= 1u << FL_TRACE_FALLBACK;
    }
    if (values[FL_OPT_LOG_DISPATCH].number) {
        mask |= 1u << FL_TRACE_DISPATCH;
    }
    int32_t level =
        values[FL_OPT_DEBUG].is_set ? (int32_t)values[FL_OPT_DEBUG].number : TORCH_FL_DEBUG;
    fl__log_configure(mask, level);
}

static void load(void) {
    fl__lock(&lock);
    for (int i = 0; i < FL_OPTION_COUNT; i++) {
        fl_option option = (fl_option)i;
        store_standard(option);
        const char *text = getenv(table[i].variable);
        if (!text || !*text) {
            continue;
        }
        text = keep_text(text);
        int64_t number = 0;
        if (text && parse(option, text, &number)) {
            store(option, text, number, true);
        } else {
            values[i].refused = text;
        }
    }
    configure_log();
    fl__unlock(&lock);
}

static void trace_unknown(void *user, const char *variable) {
    (void)user;
    fl_trace(FL_TRACE_OPTIONS, "%s is no option; misspelled?", variable);
}

static void trace_options(void) {
    for (int i = 0; i < FL_OPTION_COUNT; i++) {
        if (values[i].is_set) {
            fl_trace(FL_TRACE_OPTIONS, "%s=%s", table[i].variable, values[i].text);
        } else if (values[i].refused) {
            fl_trace(FL_TRACE_OPTIONS, "%s=%s is not understood", table[i].variable,
                     values[i].refused);
        }
    }
    fl_options_each_unknown(trace_unknown, NULL);
}

static void load_and_trace(void) {
    load();
    if (fl__trace_on(FL_TRACE_OPTIONS)) {
        trace_options();
    }
}

void fl__options_load(void) {
    (void)pthread_once(&once, load_and_trace);
}

/* --- what others ask ------------------------------------------------------------------------- */

static bool is_option(fl_option option) {
    return (unsigned)option < FL_OPTION_COUNT;
}

const fl_option_info *fl_option_describe(fl_option option) {
    return is_option(option) ? &table[option] : NULL;
}

const char *fl_option_string(fl_option option) {
    fl__options_load();
    return is_option(option) ? __atomic_load_n(&values[option].text, __ATOMIC_ACQUIRE) : NULL;
}

int64_t fl_option_int(fl_option option) {
    fl__options_load();
    return is_option(option) ? __atomic_load_n(&values[option].number, __ATOMIC_ACQUIRE) : 0;
}

bool fl_option_bool(fl_option option) {
    return fl_option_int(option) != 0;
}

bool fl_option_is_set(fl_option option) {
    fl__options_load();
    return is_option(option) && __atomic_load_n(&values[option].is_set, __ATOMIC_ACQUIRE);
}

fl_status fl_options_check(void) {
    fl__options_load();
    for (int i = 0; i < FL_OPTION_COUNT; i++) {
        const char *refused = __atomic_load_n(&values[i].refused, __ATOMIC_ACQUIRE);
        if (refused) {
            return fail_value((fl_option)i, refused);
        }
    }
    return FL_OK;
}

fl_status fl_option_set(fl_option option, const char *value) {
    fl__options_load();
    if (!is_option(option)) {
        return fl_fail(FL_INVALID_ARGUMENT, "fl_option_set: %d is no option", (int)option);
    }
    if (value && !*value) {
        value = NULL; /* As in the environment: empty is not set. */
    }
    int64_t number = 0;
    if (value && !parse(option, value, &number)) {
        return fail_value(option, value);
    }

    fl_status status = FL_OK;
    fl__lock(&lock);
    const char *text = value ? keep_text(value) : NULL;
    if (value && !text) {
        status = fl_fail(FL_OUT_OF_MEMORY, "fl_option_set: no memory for the value of %s",
                         table[option].variable);
    } else {
        if (text) {
            store(option, text, number, true);
        } else {
            store_standard(option);
        }
        __atomic_store_n(&values[option].refused, NULL, __ATOMIC_RELEASE);
        configure_log();
    }
    fl__unlock(&lock);
    return status;
}

/* --- the environment as a whole -------------------------------------------------------------- */

void fl_options_each_unknown(void (*visit)(void *user, const char *variable), void *user) {
    static const char prefix[] = "TORCH_FL_";
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        char name[128];
        if (strncmp(*entry, prefix, sizeof(prefix) - 1) != 0 || length >= sizeof(name)) {
            continue;
        }
        memcpy(name, *entry, length);
        name[length] = '\0';
        bool known = false;
        for (int i = 0; i < FL_OPTION_COUNT && !known; i++) {
            known = strcmp(name, table[i].variable) == 0;
        }
        if (!known) {
            visit(user, name);
        }
    }
}

void fl_options_each_with_prefix(const char *prefix,
                                 void (*visit)(void *user, const char *rest, const char *value),
                                 void *user) {
    size_t prefix_length = strlen(prefix);
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        char rest[256];
        if (length < prefix_length || strncmp(*entry, prefix, prefix_length) != 0 ||
            (*entry)[length] != '=' || length - prefix_length >= sizeof(rest)) {
            continue;
        }
        memcpy(rest, *entry + prefix_length, length - prefix_length);
        rest[length - prefix_length] = '\0';
        visit(user, rest, *entry + length + 1);
    }
}

bool fl__environment_hides_devices(const char *variable) {
    const char *text = getenv(variable);
    if (!text) {
        return false;
    }
    text += strspn(text, " ");
    return *text == '\0' || strncmp(text, "-1", 2) == 0;
}
