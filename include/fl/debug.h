/*
 * debug.h: options, trace lines and assertions, as far as they can be seen from outside.
 *
 * The list of options is written once, here, and expanded where the environment is read (the only
 * place), where options are listed for people, and where the documents are checked. Knows nothing
 * of who uses an option.
 */
#ifndef FL_DEBUG_H
#define FL_DEBUG_H

#include "fl/status.h"
#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* --- options --------------------------------------------------------------------------------- */

typedef enum fl_option_type {
    FL_OPTION_STRING, /* Any text; NULL where it is not set and has no default. */
    FL_OPTION_INT,    /* A whole number within a range. */
    FL_OPTION_BYTES,  /* The same, with an optional suffix K, M, G or T (powers of 1024). */
    FL_OPTION_BOOL,   /* 0 or 1; also off/on, false/true, no/yes. */
} fl_option_type;

/* id, variable, type, default as text (NULL: none), smallest, largest, unit, meaning */
#define FL_OPTION_LIST(X)                                                                         \
    X(PLATFORM, "TORCH_FL_PLATFORM", STRING, NULL, 0, 0, "name",                                  \
      "platform to run on; without it the first one in probe order that works")                   \
    X(AUTOLOAD, "TORCH_FL_AUTOLOAD", BOOL, NULL, 0, 1, "",                                        \
      "load with `import torch`: 1 always, 0 never; without it, unless a CUDA device is present") \
    X(STRICT, "TORCH_FL_STRICT", BOOL, "0", 0, 1, "",                                             \
      "raise where an operator would fall back to the CPU")                                       \
    X(LAUNCH_BLOCKING, "TORCH_FL_LAUNCH_BLOCKING", BOOL, "0", 0, 1, "",                           \
      "wait for each operator, so that an error shows where it was made")                         \
    X(QUEUE, "TORCH_FL_QUEUE", BOOL, NULL, 0, 1, "",                                              \
      "queue operators for a worker thread: 1 yes, 0 no; without it, where the twin is no host")  \
    X(QUEUE_ALWAYS, "TORCH_FL_QUEUE_ALWAYS", BOOL, "0", 0, 1, "",                                 \
      "queue also for a thread that has lately waited after each operator, and would call it")    \
    X(QUEUE_SPIN_US, "TORCH_FL_QUEUE_SPIN_US", INT, "60", 0, 1000000, "microseconds",             \
      "how long the launch queue's threads look for work, or for its end, before they sleep")     \
    X(QUEUE_BYTES, "TORCH_FL_QUEUE_BYTES", BYTES, "64M", 0, INT64_C(1) << 46, "bytes",            \
      "new memory that operators in the launch queue may hold before the caller waits")           \
    X(QUEUE_LINES, "TORCH_FL_QUEUE_LINES", BOOL, "0", 0, 1, "",                                   \
      "let a failure in the launch queue name the Python line that queued it; costs time")        \
    X(QUEUE_DELAY_US, "TORCH_FL_QUEUE_DELAY_US", INT, "0", 0, 1000000, "microseconds",            \
      "for tests: upper bound of the random delay before each task of the launch queue")          \
    X(TRACE, "TORCH_FL_TRACE", STRING, NULL, 0, 0, "categories",                                  \
      "comma-separated categories of trace lines on the standard error stream, or `all`")         \
    X(DEBUG, "TORCH_FL_DEBUG", INT, NULL, 0, 3, "level",                                          \
      "assertions at run time, at most those compiled in: 0 none, 1 cheap, 2 internal, 3 walks")  \
    X(DRIVER_PATH, "TORCH_FL_DRIVER_PATH", STRING, NULL, 0, 0, "paths",                           \
      "colon-separated shared objects, each a driver that becomes a platform of its own")         \
    X(VENDOR_PATH, "TORCH_FL_VENDOR_PATH", STRING, NULL, 0, 0, "directories",                     \
      "colon-separated directories that are searched first for vendors' runtimes")                \
    X(VENDOR_ROWS, "TORCH_FL_VENDOR_ROWS", STRING, NULL, 0, 0, "path",                            \
      "file of rows, each a chip whose runtime has the usual shape under another prefix")         \
    X(VENDOR_NOT_READY, "TORCH_FL_VENDOR_NOT_READY", INT, NULL, INT32_MIN, INT32_MAX, "number",   \
      "a runtime's number for work that still runs, where its headers are not public")            \
    X(SIM_DEVICES, "TORCH_FL_SIM_DEVICES", INT, "2", 1, FL_DEVICE_MAX, "devices",                 \
      "number of devices of the platform `sim`")                                                  \
    X(SIM_MEMORY, "TORCH_FL_SIM_MEMORY", BYTES, "2G", 1 << 20, INT64_C(1) << 46, "bytes",         \
      "memory of each device of the platform `sim`")                                              \
    X(SIM_DELAY_US, "TORCH_FL_SIM_DELAY_US", INT, "0", 0, 1000000, "microseconds",                \
      "upper bound of the random delay before each task of a `sim` stream")                       \
    X(ALLOC_CONF, "PYTORCH_ALLOC_CONF", STRING, NULL, 0, 0, "settings",                           \
      "settings of the device cache, in the grammar that torch.cuda has for them")                \
    X(TWIN_FASTBINS, "TORCH_FL_TWIN_FASTBINS", BOOL, "1", 0, 1, "",                               \
      "keep freed blocks of the twin's allocator for the next request of their size")             \
    X(MEMORY_POISON, "TORCH_FL_MEMORY_POISON", BOOL, "0", 0, 1, "",                               \
      "fill freed device memory with 0xFF, so that a use after free shows as NaN")                \
    X(LOG_FALLBACK, "FLAGOS_LOG_FALLBACK", BOOL, "0", 0, 1, "",                                   \
      "trace each operator that falls back to the CPU; like TORCH_FL_TRACE=fallback")             \
    X(LOG_DISPATCH, "FLAGOS_LOG_DISPATCH", BOOL, "0", 0, 1, "",                                   \
      "trace the route of each operator; like TORCH_FL_TRACE=dispatch")

typedef enum fl_option {
#define FL_OPTION_ENUM(id, variable, type, standard, least, most, unit, meaning) FL_OPT_##id,
    FL_OPTION_LIST(FL_OPTION_ENUM)
#undef FL_OPTION_ENUM
        FL_OPTION_COUNT
} fl_option;

/* One row of the table. Static. */
typedef struct fl_option_info {
    const char *variable; /* The environment variable's name. */
    fl_option_type type;
    const char *standard; /* Default as text, NULL where there is none. */
    int64_t least, most;  /* Range of numbers, both ends included. */
    const char *unit;
    const char *meaning; /* Half a sentence in lower case. */
} fl_option_info;

FL_API const fl_option_info *fl_option_describe(fl_option option); /* NULL for a bad number. */

/* Values. The environment is read once, at the first call of any of these. A value that cannot be
 * parsed counts as not set and makes fl_options_check fail. Strings live as long as the process. */
FL_API const char *fl_option_string(fl_option option);
FL_API int64_t fl_option_int(fl_option option); /* 0 where it is not set and has no default. */
FL_API bool fl_option_bool(fl_option option);   /* false where it is not set and has no default. */
/* Whether the environment or fl_option_set gave a value. */
FL_API bool fl_option_is_set(fl_option option);

/* FL_INVALID_ARGUMENT for the first value that the environment gave and that cannot be used; the
 * message names the variable, the value and what is accepted. */
FL_API fl_status fl_options_check(void);

/* As if the environment had said so; NULL takes the value away. On a bad value nothing changes. */
FL_API fl_status fl_option_set(fl_option option, const char *value);

/* One call of `visit` for each variable of the environment that begins with TORCH_FL_ and is no
 * option: most likely a misspelling. */
FL_API void fl_options_each_unknown(void (*visit)(void *user, const char *variable), void *user);

/* One call of `visit` for each variable of the environment that begins with `prefix`; `rest` is
 * its name after the prefix. Serves families of variables, such as FLAGOS_OP_<operator>. */
FL_API void fl_options_each_with_prefix(
    const char *prefix, void (*visit)(void *user, const char *rest, const char *value), void *user);

/* --- trace ----------------------------------------------------------------------------------- */

/* id, word in TORCH_FL_TRACE, what is traced */
#define FL_TRACE_LIST(X)                                                  \
    X(OPTIONS, "options", "options that were set, and unknown names")     \
    X(DRIVER, "driver", "platforms and libraries: chosen, or why not")    \
    X(CALL, "call", "each call of a driver")                              \
    X(DEVICE, "device", "initialisation, current device")                 \
    X(STREAM, "stream", "streams and events that are made")               \
    X(MEMORY, "memory", "blocks taken from and given back to the driver") \
    X(COPY, "copy", "plans of copies")                                    \
    X(ROUTE, "route", "routes offered and chosen")                        \
    X(FALLBACK, "fallback", "each operator that falls back to the CPU")   \
    X(DISPATCH, "dispatch", "the route of each operator call")            \
    X(QUEUE, "queue", "workers of the launch queue, and failures there")

typedef enum fl_trace_category {
#define FL_TRACE_ENUM(id, word, meaning) FL_TRACE_##id,
    FL_TRACE_LIST(FL_TRACE_ENUM)
#undef FL_TRACE_ENUM
        FL_TRACE_COUNT
} fl_trace_category;

FL_API const char *fl_trace_word(fl_trace_category category);
FL_API const char *fl_trace_meaning(fl_trace_category category);

/* Ask before making expensive arguments; costs one load. */
FL_API bool fl_trace_on(fl_trace_category category);
/* One line, without a line break, if the category is on. */
FL_API void fl_trace(fl_trace_category category, const char *format, ...) FL_PRINTF(2, 3);

/* Where lines go; NULL brings back the standard error stream. `line` is valid during the call. The
 * sink may be called from any thread, by several at once, and must not call fl_trace. */
typedef void (*fl_trace_sink)(void *user, fl_trace_category category, const char *line);
FL_API void fl_trace_set_sink(fl_trace_sink sink, void *user);

/* --- assertions ------------------------------------------------------------------------------ */

/* Compiled in and wanted at run time, the smaller of both. */
FL_API int32_t fl_debug_level(void);

FL_EXTERN_C_END
#endif
