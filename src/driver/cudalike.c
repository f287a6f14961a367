/*
 * cudalike.c: finds the functions of a vendor whose runtime has CUDA's shape and makes a driver
 * table of them. The calls themselves are in cudalike_memory.c and cudalike_streams.c, what
 * vendors do differently is in rows. Must not know any vendor.
 */
#include "driver/cudalike_table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/thread.h"
#include "driver/library.h"
#include "fl/debug.h"

static_assert(sizeof(void *) == sizeof(void (*)(void)), "dlsym gives functions as data pointers");

typedef enum need { REQUIRED, OPTIONAL, MODULE } need;

static const struct {
    const char *suffix;
    need need;
} symbols[FL__SYM_COUNT] = {
#define FL_CUDALIKE(field, suffix_, signature, need_) [FL__SYM_##field] = {suffix_, need_},
#include "driver/cudalike.inc"
#undef FL_CUDALIKE
};

/* --- names ------------------------------------------------------------------------------------ */

/* The vendor's suffix of a function; "" where the row drops it. */
static const char *own_suffix(const fl__cudalike_row *row, fl__cudalike_symbol symbol) {
    for (int i = 0; i < FL__ROW_RENAMES && row->renames[i].usual; i++) {
        if (strcmp(row->renames[i].usual, symbols[symbol].suffix) == 0) {
            return row->renames[i].own;
        }
    }
    return symbols[symbol].suffix;
}

static const char *own_prefix(const fl__cudalike_row *row, fl__cudalike_symbol symbol) {
    bool in_modules = symbols[symbol].need == MODULE && row->module_prefix;
    return in_modules ? row->module_prefix : row->prefix;
}

/* "cudaMalloc"; false where the row drops the function. */
static bool symbol_name(const fl__cudalike_row *row, fl__cudalike_symbol symbol, char *out) {
    const char *suffix = own_suffix(row, symbol);
    (void)snprintf(out, FL__ROW_NAME_MAX, "%s%s", own_prefix(row, symbol), suffix);
    return *suffix != '\0';
}

bool fl__cudalike_has_function(const char *suffix) {
    for (int i = 0; i < FL__SYM_COUNT; i++) {
        if (strcmp(symbols[i].suffix, suffix) == 0) {
            return true;
        }
    }
    return false;
}

bool fl__cudalike_names_fit(const fl__cudalike_row *row) {
    for (int i = 0; i < FL__SYM_COUNT; i++) {
        fl__cudalike_symbol symbol = (fl__cudalike_symbol)i;
        if (strlen(own_prefix(row, symbol)) + strlen(own_suffix(row, symbol)) >= FL__ROW_NAME_MAX) {
            return false;
        }
    }
    return true;
}

/* --- errors ----------------------------------------------------------------------------------- */

/* The numbers on which every runtime of this shape agrees. */
static fl_status usual_status(int code) {
    switch (code) {
    case 1:
        return FL_INVALID_ARGUMENT;
    case 2:
        return FL_OUT_OF_MEMORY;
    case 3:   /* not initialised */
    case 4:   /* unloading */
    case 34:  /* a link stub in the runtime's place */
    case 35:  /* the kernel's driver is too old */
    case 36:  /* or this library is */
    case 46:  /* devices are busy or forbidden */
    case 100: /* no device */
    case 803: /* versions of driver and library differ */
    case 804:
        return FL_UNAVAILABLE;
    case 101:
        return FL_OUT_OF_RANGE;
    case 600:
        return FL_NOT_READY;
    case 217: /* peer access */
    case 801:
        return FL_NOT_SUPPORTED;
    case 214: /* uncorrectable memory error, link error */
    case 220:
    case 700: /* illegal address, and its neighbours: the context is gone */
    case 702:
    case 709:
    case 710:
    case 714:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:
        return FL_DEVICE_LOST;
    default:
        return FL_DEVICE_ERROR;
    }
}

static fl_status status_of(const fl__cudalike_row *row, int code) {
    for (int i = 0; i < FL__ROW_ERRORS && row->errors[i].code; i++) {
        if (row->errors[i].code == code) {
            return row->errors[i].status;
        }
    }
    return usual_status(code);
}

/* The functions that may say "not ready" about work. From any other one it is a failure. */
static bool may_be_not_ready(fl__cudalike_symbol symbol) {
    return symbol == FL__SYM_stream_query || symbol == FL__SYM_event_query ||
           symbol == FL__SYM_event_elapsed;
}

static fl_status failed(const fl__cudalike *c, int code, fl__cudalike_symbol symbol,
                        const char *what, va_list arguments) {
    fl_status status = status_of(c->row, code);
    bool is_answer = status == FL_NOT_READY && may_be_not_ready(symbol);
    if (status == FL_NOT_READY && !is_answer) {
        status = FL_INTERNAL;
    }
    if (!is_answer) {
        char did[256], name[FL__ROW_NAME_MAX];
        (void)fl__text_vprint(did, sizeof(did), what, arguments);
        (void)symbol_name(c->row, symbol, name);
        const char *words = c->call.error_string ? c->call.error_string(code) : NULL;
        const char *title = c->call.error_name ? c->call.error_name(code) : NULL;
        (void)fl_fail_vendor(status, code, "%s: %s%s: %s (%s%s%d)", c->row->name, did, name,
                             words ? words : "no text", title ? title : "", title ? ", " : "",
                             code);
    }
    if (c->call.get_last_error) {
        (void)c->call.get_last_error();
    }
    return status;
}

fl_status fl__cudalike_failed(const fl__cudalike *c, int code, fl__cudalike_symbol symbol,
                              const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    fl_status status = failed(c, code, symbol, what, arguments);
    va_end(arguments);
    return status;
}

fl_status fl__cudalike_finish(const fl__cudalike *c, int previous, int code,
                              fl__cudalike_symbol symbol, const char *what, ...) {
    fl_status status = FL_OK;
    if (__builtin_expect(code != 0, 0)) {
        va_list arguments;
        va_start(arguments, what);
        status = failed(c, code, symbol, what, arguments);
        va_end(arguments);
    }
    fl__cudalike_leave(c, previous);
    return status;
}

/* --- loading ---------------------------------------------------------------------------------- */

/* Every function of the list, the missing required ones by name. */
static fl_status find_symbols(fl__cudalike *c) {
    void *found[FL__SYM_COUNT];
    char missing[512] = "";
    size_t used = 0;
    for (int i = 0; i < FL__SYM_COUNT; i++) {
        char name[FL__ROW_NAME_MAX];
        bool wanted = symbol_name(c->row, (fl__cudalike_symbol)i, name);
        const fl__dl *library =
            symbols[i].need == MODULE && c->row->module_prefix ? &c->modules : &c->runtime;
        found[i] = wanted && library->handle ? fl__dl_symbol(library, name) : NULL;
        if (!found[i] && symbols[i].need == REQUIRED && used < sizeof(missing)) {
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s",
                                     used ? ", " : "", name);
        }
    }
    if (used) {
        return fl_fail(FL_UNAVAILABLE, "%s has no symbol %s", c->runtime.name, missing);
    }
    int at = 0;
#define FL_CUDALIKE(field, suffix, signature, need) \
    memcpy(&c->call.field, &found[at++], sizeof(found[0]));
#include "driver/cudalike.inc"
#undef FL_CUDALIKE
    return FL_OK;
}

static fl_status check_version(const fl__cudalike *c) {
    int version = 0;
    if (!c->row->min_version || !c->call.runtime_version ||
        c->call.runtime_version(&version) != 0 || version >= c->row->min_version) {
        return FL_OK;
    }
    return fl_fail(FL_UNAVAILABLE, "%s has version %d, and %s needs %d or newer", c->runtime.name,
                   version, c->row->name, c->row->min_version);
}

/* The slots whose functions are there. */
static void make_table(fl__cudalike *c) {
    fl_driver *table = &c->table;
    *table = (fl_driver){
        .struct_size = sizeof(fl_driver),
        .version = FL_DRIVER_VERSION,
        .name = c->row->name,
        .ctx = c,
        .capabilities = 0,
        .limits = c->row->limits,
    };
    fl__cudalike_memory_slots(table);
    fl__cudalike_stream_slots(table);
    if (!c->call.mem_info) {
        table->mem_info = NULL;
    }
    if (!c->call.priority_range || !c->call.stream_create_priority) {
        table->stream_priority_range = NULL;
    }
    if (!c->call.event_elapsed) {
        table->event_elapsed_ms = NULL;
    }
    if (!c->call.can_access_peer) {
        table->peer_can_access = NULL;
    }
    bool waits = (c->row->quirks & FL__QUIRK_PEER_COPY_WAITS) != 0;
    if (waits ? !c->call.memcpy_peer : !c->call.memcpy_peer_async) {
        table->copy_peer = NULL;
    }
    if (!c->call.memcpy_2d_async) {
        table->copy_2d = NULL;
    }
    if (!c->call.launch_host_func && !c->call.add_callback) {
        table->stream_host_call = NULL;
    }
    if (!c->call.is_capturing) {
        table->stream_is_capturing = NULL;
    }
    if (!c->call.module_load || !c->call.module_function || !c->call.launch) {
        table->module_load = NULL;
        table->module_function = NULL;
        table->launch = NULL;
    }
}

static fl_status open_libraries(fl__cudalike *c) {
    const fl__cudalike_row *row = c->row;
    fl__library_search search = {
        .maker = row->maker,
        .platform = row->name,
        .names = row->libraries,
        .max_names = FL__ROW_LIBRARIES,
        .directories = row->directories,
        .max_directories = FL__ROW_DIRECTORIES,
        .directories_first = (row->quirks & FL__QUIRK_DIRECTORIES_FIRST) != 0,
    };
    FL_TRY(fl__library_open(&search, &c->runtime));
    if (row->module_prefix) {
        search.names = row->module_libraries;
        if (fl__library_open(&search, &c->modules) != FL_OK) {
            fl_trace(FL_TRACE_DRIVER, "%s: no code objects: %s", row->name, fl_last_message());
        }
    }
    return FL_OK;
}

static fl_status load(const fl__cudalike_row *row, fl__cudalike *c) {
    c->row = row;
    FL_TRY(open_libraries(c));
    FL_TRY(find_symbols(c));
    make_table(c);
    return check_version(c);
}

static fl__cudalike *loaded; /* Newest first; never freed. */
static fl__mutex lock = FL__MUTEX_INIT;

fl_status fl__cudalike_load(const fl__cudalike_row *row, const fl_driver **out_driver) {
    fl_status status = FL_OK;
    fl__lock(&lock);
    fl__cudalike *c = loaded;
    while (c && c->row != row) {
        c = c->next;
    }
    if (!c) {
        c = calloc(1, sizeof(*c));
        status = c ? load(row, c)
                   : fl_fail(FL_OUT_OF_MEMORY, "fl__cudalike_load: no memory for the table of %s",
                             row->name);
        if (status == FL_OK) {
            c->next = loaded;
            loaded = c;
        } else {
            /* The library itself stays open: it may have started threads. */
            free(c);
        }
    }
    fl__unlock(&lock);
    if (status == FL_OK) {
        *out_driver = &c->table;
    }
    return status;
}

/* --- platforms -------------------------------------------------------------------------------- */

fl_status fl__cudalike_probe(const fl_platform *platform) {
    const fl__cudalike_row *row = platform->data;
    const fl_driver *driver = NULL;
    FL_TRY(fl__cudalike_load(row, &driver));
    FL_TRY(driver->init(driver->ctx));
    int32_t count = 0;
    FL_TRY(driver->device_count(driver->ctx, &count));
    if (count == 0) {
        return fl_fail(FL_UNAVAILABLE, "the runtime of %s is there, but it sees no device",
                       row->maker);
    }
    return FL_OK;
}

fl_status fl__cudalike_open(const fl_platform *platform, const fl_driver **out_driver) {
    return fl__cudalike_load(platform->data, out_driver);
}
