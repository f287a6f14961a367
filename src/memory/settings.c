/*
 * settings.c: PYTORCH_ALLOC_CONF, in PyTorch's grammar.
 *
 * "key:value,key:[size:value,...]", blanks ignored. Knows which keys PyTorch has, and which of them
 * mean something here. Every cache holds a copy of what is in force, so that the hot path reads it
 * under the lock that it holds anyway.
 */
#include "memory/block.h"

#include "fl/debug.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const fl_memory_settings standard = {
    .max_split_size = SIZE_MAX,
    .max_non_split_rounding = 20 * FL__MIB,
    .large_segment_size = 20 * FL__MIB,
};

/* Guarded by the lock of fl__caches_each and of making caches. */
static fl_memory_settings in_force;
static bool are_read;
static bool poison;

/* --- parsing ------------------------------------------------------------------------------------
 */

typedef struct parser {
    const char *at;
    const char *text; /* The whole, for messages. */
} parser;

typedef struct word {
    const char *start;
    size_t length;
} word;

static void skip_blanks(parser *in) {
    while (isspace((unsigned char)*in->at)) {
        in->at++;
    }
}

static bool accept(parser *in, char wanted) {
    skip_blanks(in);
    if (*in->at != wanted) {
        return false;
    }
    in->at++;
    skip_blanks(in);
    return true;
}

static word next_word(parser *in) {
    skip_blanks(in);
    word found = {in->at, 0};
    while (*in->at && !strchr(",:[] \t\r\n", *in->at)) {
        in->at++;
        found.length++;
    }
    skip_blanks(in);
    return found;
}

static bool is(word found, const char *name) {
    return strlen(name) == found.length && memcmp(found.start, name, found.length) == 0;
}

static fl_status refuse(const parser *in, word key, const char *wanted) {
    return fl_fail(FL_INVALID_ARGUMENT, "PYTORCH_ALLOC_CONF \"%s\": %.*s wants %s", in->text,
                   (int)key.length, key.start, wanted);
}

/* A whole number of MiB, at least `least`; bytes come out. */
static fl_status parse_mib(parser *in, word key, size_t least, const char *wanted, size_t *out) {
    word value = next_word(in);
    size_t number = 0;
    for (size_t i = 0; i < value.length; i++) {
        char digit = value.start[i];
        if (digit < '0' || digit > '9' || number > (size_t)1 << 30) {
            return refuse(in, key, wanted);
        }
        number = number * 10 + (size_t)(digit - '0');
    }
    if (value.length == 0 || number < least) {
        return refuse(in, key, wanted);
    }
    *out = number * FL__MIB;
    return FL_OK;
}

/* A number above 0 and below or, if `whole` is allowed, at 1. */
static fl_status parse_share(parser *in, word key, bool whole, double *out) {
    word value = next_word(in);
    char *end = NULL;
    double number = value.length ? strtod(value.start, &end) : -1.0;
    if (end != value.start + value.length || !(number > 0.0 && number <= 1.0) ||
        (number == 1.0 && !whole)) {
        return refuse(in, key,
                      whole ? "a number above 0, at most 1"
                            : "a number between 0 and 1, both excluded");
    }
    *out = number;
    return FL_OK;
}

static fl_status parse_bool(parser *in, word key, bool *out) {
    word value = next_word(in);
    *out = is(value, "True") || is(value, "true");
    if (!*out && !is(value, "False") && !is(value, "false")) {
        return refuse(in, key, "True or False");
    }
    return FL_OK;
}

static fl_status parse_power(parser *in, word key, size_t *out) {
    static const char wanted[] = "powers of two";
    size_t mib;
    FL_TRY(parse_mib(in, key, 1, wanted, &mib));
    *out = mib / FL__MIB;
    return (*out & (*out - 1)) ? refuse(in, key, wanted) : FL_OK;
}

/* One number for all sizes, or a list: [256:1,512:2,>:4] means 1 below 256 MiB, 2 from there to
 * below 512 MiB, and 4 from there on. */
static fl_status parse_divisions(parser *in, word key, fl_memory_settings *out) {
    size_t divisions = 0;
    if (!accept(in, '[')) {
        FL_TRY(parse_power(in, key, &divisions));
        for (size_t i = 0; i < FL_MEMORY_ROUNDUP_INTERVALS; i++) {
            out->roundup_power2_divisions[i] = (uint32_t)divisions;
        }
        return FL_OK;
    }
    size_t filled = 0;
    do {
        size_t end = FL_MEMORY_ROUNDUP_INTERVALS;
        if (!accept(in, '>')) {
            size_t bound;
            FL_TRY(parse_power(in, key, &bound));
            end = (size_t)__builtin_ctzll(bound);
            end = end > FL_MEMORY_ROUNDUP_INTERVALS ? FL_MEMORY_ROUNDUP_INTERVALS : end;
        }
        if (!accept(in, ':')) {
            return refuse(in, key, "a list such as [256:1,512:2,>:4]");
        }
        FL_TRY(parse_power(in, key, &divisions));
        for (; filled < end; filled++) {
            out->roundup_power2_divisions[filled] = (uint32_t)divisions;
        }
    } while (accept(in, ','));
    return accept(in, ']') ? FL_OK : refuse(in, key, "a list that ends with ]");
}

/* Step over a value that nobody here reads. */
static void skip_value(parser *in) {
    int depth = 0;
    while (*in->at && (depth > 0 || *in->at != ',')) {
        depth += *in->at == '[' ? 1 : *in->at == ']' ? -1 : 0;
        in->at++;
    }
}

/* PyTorch has these for CUDA or for its own pinned allocator. */
static const char *const ignored_keys[] = {
    "backend",
    "expandable_segments",
    "pinned_use_background_threads",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
};

static fl_status parse_ignored(parser *in, word key, fl_memory_settings *out) {
    for (size_t i = 0; i < sizeof(ignored_keys) / sizeof(ignored_keys[0]); i++) {
        if (!is(key, ignored_keys[i])) {
            continue;
        }
        if (is(key, "expandable_segments")) {
            /* Asking for what is the case anyway is not worth a word. */
            bool on;
            FL_TRY(parse_bool(in, key, &on));
            if (!on) {
                return FL_OK;
            }
        } else {
            skip_value(in);
        }
        size_t used = strlen(out->ignored);
        if (used + key.length + 2 < sizeof(out->ignored)) {
            if (used) {
                out->ignored[used++] = ',';
            }
            memcpy(out->ignored + used, key.start, key.length);
            out->ignored[used + key.length] = '\0';
        }
        return FL_OK;
    }
    return fl_fail(FL_INVALID_ARGUMENT,
                   "PYTORCH_ALLOC_CONF \"%s\": unrecognized key '%.*s'; known are "
                   "max_split_size_mb, max_non_split_rounding_mb, large_segment_size_mb, "
                   "garbage_collection_threshold, roundup_power2_divisions, "
                   "per_process_memory_fraction, and some that mean nothing on this platform",
                   in->text, (int)key.length, key.start);
}

static fl_status parse_pair(parser *in, fl_memory_settings *out) {
    word key = next_word(in);
    if (!accept(in, ':')) {
        return refuse(in, key, "the form key:value");
    }
    if (is(key, "max_split_size_mb")) {
        return parse_mib(in, key, 20, "a number of MiB, at least 20", &out->max_split_size);
    }
    if (is(key, "max_non_split_rounding_mb")) {
        return parse_mib(in, key, 20, "a number of MiB, at least 20", &out->max_non_split_rounding);
    }
    if (is(key, "large_segment_size_mb")) {
        return parse_mib(in, key, 20, "a number of MiB, at least 20", &out->large_segment_size);
    }
    if (is(key, "garbage_collection_threshold")) {
        return parse_share(in, key, false, &out->garbage_collection_threshold);
    }
    if (is(key, "per_process_memory_fraction")) {
        return parse_share(in, key, true, &out->per_process_memory_fraction);
    }
    if (is(key, "roundup_power2_divisions")) {
        return parse_divisions(in, key, out);
    }
    return parse_ignored(in, key, out);
}

static fl_status parse(const char *text, fl_memory_settings *out) {
    parser in = {text, text};
    *out = standard;
    skip_blanks(&in);
    while (*in.at) {
        FL_TRY(parse_pair(&in, out));
        if (!accept(&in, ',') && *in.at) {
            return fl_fail(FL_INVALID_ARGUMENT,
                           "PYTORCH_ALLOC_CONF \"%s\": a comma is missing "
                           "before \"%s\"",
                           text, in.at);
        }
    }
    return FL_OK;
}

/* --- keeping ------------------------------------------------------------------------------------
 */

/* Read the option unless settings were given before. Under the lock of the caches. */
static fl_status read_option(void) {
    if (are_read) {
        return FL_OK;
    }
    const char *text = fl_option_string(FL_OPT_ALLOC_CONF);
    FL_TRY(parse(text ? text : "", &in_force));
    if (in_force.ignored[0]) {
        fl_trace(FL_TRACE_MEMORY, "PYTORCH_ALLOC_CONF: not served here: %s", in_force.ignored);
    }
    poison = fl_option_bool(FL_OPT_MEMORY_POISON);
    are_read = true;
    return FL_OK;
}

static void apply_settings(fl__cache *cache, void *user) {
    cache->settings = *(const fl_memory_settings *)user;
    double fraction = cache->settings.per_process_memory_fraction;
    if (fraction > 0.0 && cache->total) {
        fl__cache_set_fraction(cache, fraction);
    }
}

fl_status fl__settings_init(fl__cache *cache) {
    FL_TRY(read_option());
    apply_settings(cache, &in_force);
    cache->poison = poison;
    return FL_OK;
}

static void change_settings(void *user) {
    if (!are_read) {
        poison = fl_option_bool(FL_OPT_MEMORY_POISON);
    }
    in_force = *(const fl_memory_settings *)user;
    are_read = true;
}

fl_status fl_memory_configure(const char *settings) {
    fl_memory_settings wanted;
    FL_TRY(parse(settings, &wanted));
    fl__caches_each(change_settings, apply_settings, &wanted);
    return FL_OK;
}

static void look(void *user) {
    /* Settings that cannot be read stay the standard ones until the first allocation reports it. */
    *(fl_memory_settings *)user = read_option() ? standard : in_force;
}

static void change_nothing(fl__cache *cache, void *user) {
    (void)cache;
    (void)user;
}

void fl_memory_get_settings(fl_memory_settings *out_settings) {
    fl__caches_each(look, change_nothing, out_settings);
}

static void change_poison(void *user) {
    (void)read_option();
    poison = *(const bool *)user;
}

static void apply_poison(fl__cache *cache, void *user) {
    cache->poison = *(const bool *)user;
}

void fl_memory_set_poison(bool on) {
    fl__caches_each(change_poison, apply_poison, &on);
}
