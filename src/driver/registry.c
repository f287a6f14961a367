/*
 * registry.c: the list of platforms, the choice of one, and the check of its driver's table.
 *
 * The choice is made once a process, by name or in probe order; each decision is one trace line
 * (category `driver`). Probes and opens run without a lock held, by one thread at a time. Relies on
 * the platforms for what they can do. Does not know vendors' functions.
 */
#include "driver/registry.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dl.h"
#include "base/failures.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/rows.h"
#include "fl/debug.h"

enum { PLATFORM_MAX = 64, REASON_MAX = 512 };

static fl__mutex lock = FL__MUTEX_INIT; /* Guards everything below. */
static pthread_cond_t choice_made = PTHREAD_COND_INITIALIZER;
static const fl_platform *platforms[PLATFORM_MAX]; /* Sorted, see comes_before. */
static size_t platform_count;
static bool is_filled;         /* The built-in ones are in. */
static bool choosing;          /* A thread is at it, without the lock. */
static pthread_t choosing_who; /* Which one. */

/* Set once, together; read without the lock. The table is a copy of the driver's, with NULL in the
 * slots that a driver compiled against an older header does not have. */
static const fl_platform *chosen;
static fl_driver chosen_driver;

/* --- the table's check ----------------------------------------------------------------------- */

static_assert(offsetof(fl_driver, limits) + sizeof(const fl_driver_limit *) == sizeof(fl_driver),
              "a slot was appended: raise FL_DRIVER_VERSION and keep the size of version 1 here");
enum { SIZE_OF_VERSION_1 = sizeof(fl_driver) };

typedef struct slot_row {
    const char *name;
    size_t offset;
} slot_row;

static const slot_row required_slots[] = {
#define SLOT(name) \
    { #name, offsetof(fl_driver, name) }
    SLOT(init),
    SLOT(device_count),
    SLOT(device_properties),
    SLOT(device_synchronize),
    SLOT(mem_alloc),
    SLOT(mem_free),
    SLOT(host_alloc),
    SLOT(host_free),
    SLOT(copy),
    SLOT(fill),
    SLOT(stream_create),
    SLOT(stream_destroy),
    SLOT(stream_query),
    SLOT(stream_synchronize),
    SLOT(event_create),
    SLOT(event_destroy),
    SLOT(event_record),
    SLOT(event_query),
    SLOT(event_synchronize),
    SLOT(stream_wait_event),
#undef SLOT
};

bool fl__is_platform_name(const char *name) {
    size_t length = strlen(name);
    return length && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == length;
}

fl_status fl_driver_check(const fl_driver *driver) {
    if (!driver) {
        return fl_fail(FL_INVALID_ARGUMENT, "driver: there is no table");
    }
    /* Size and version are read before anything whose place depends on them. */
    if (driver->version < 1 || driver->version > FL_DRIVER_VERSION) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "driver: its table has version %u, this library knows versions 1 to %u",
                       driver->version, FL_DRIVER_VERSION);
    }
    if (driver->struct_size < SIZE_OF_VERSION_1) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "driver: its table has %u bytes, version %u has %zu; was it compiled "
                       "against this fl/driver.h?",
                       driver->struct_size, driver->version, (size_t)SIZE_OF_VERSION_1);
    }
    if (!driver->name || !driver->name[0]) {
        return fl_fail(FL_INVALID_ARGUMENT, "driver: its table has no name");
    }
    if (!fl__is_platform_name(driver->name)) {
        return fl_fail(FL_INVALID_ARGUMENT, "driver: " FL__PLATFORM_NAME_RULE ", found \"%s\"",
                       driver->name);
    }
    char missing[REASON_MAX] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof(required_slots) / sizeof(required_slots[0]); i++) {
        void (*slot)(void);
        memcpy(&slot, (const char *)driver + required_slots[i].offset, sizeof(slot));
        if (!slot && used < sizeof(missing)) {
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s",
                                     used ? ", " : "", required_slots[i].name);
        }
    }
    if (used) {
        return fl_fail(FL_NOT_SUPPORTED, "driver %s: required slots are missing: %s", driver->name,
                       missing);
    }
    return FL_OK;
}

/* --- the list -------------------------------------------------------------------------------- */

/* Lower probe order first, platforms that only answer to their name last. */
static bool comes_before(const fl_platform *a, const fl_platform *b) {
    if ((a->probe_order < 0) != (b->probe_order < 0)) {
        return b->probe_order < 0;
    }
    return a->probe_order < b->probe_order;
}

static const fl_platform *find(const char *name) {
    for (size_t i = 0; i < platform_count; i++) {
        if (strcmp(platforms[i]->name, name) == 0) {
            return platforms[i];
        }
    }
    return NULL;
}

/* Under the lock. */
static fl_status insert(const fl_platform *platform) {
    if (find(platform->name)) {
        return fl_fail(FL_WRONG_STATE, "platform %s: the name is taken", platform->name);
    }
    if (platform_count == PLATFORM_MAX) {
        return fl_fail(FL_OUT_OF_RANGE, "platform %s: there are %d already", platform->name,
                       PLATFORM_MAX);
    }
    size_t place = platform_count++;
    for (; place > 0 && comes_before(platform, platforms[place - 1]); place--) {
        platforms[place] = platforms[place - 1];
    }
    platforms[place] = platform;
    return FL_OK;
}

/* Under the lock. */
static void fill(void) {
    if (is_filled) {
        return;
    }
    is_filled = true;
    for (size_t i = 0; fl__platforms_builtin[i]; i++) {
        (void)insert(fl__platforms_builtin[i]);
    }
}

fl_status fl_platform_register(const fl_platform *platform) {
    if (!platform || !platform->name || !platform->name[0] || !platform->probe || !platform->open) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "fl_platform_register: a platform needs a name, a probe and an open");
    }
    fl_status status = FL_OK;
    fl__lock(&lock);
    fill();
    if (chosen || choosing) {
        status = fl_fail(FL_WRONG_STATE, "platform %s: comes too late, %s was chosen",
                         platform->name, chosen ? chosen->name : "another one");
    } else {
        status = insert(platform);
    }
    fl__unlock(&lock);
    return status;
}

/* A failure of a platform's own code since `before`, with words where it gave none. */
static fl_status with_reason(uint32_t before, fl_status status) {
    return status && !fl__has_words_since(before)
               ? fl_fail(status, "it gives no reason (%s)", fl_status_name(status))
               : status;
}

fl_status fl__platform_probe(const fl_platform *platform) {
    uint32_t before = fl__failures;
    fl_status status = platform->probe(platform);
    return with_reason(before, status);
}

/* A copy of the list, so that probes run without the lock. */
static size_t list_copy(const fl_platform *out_list[PLATFORM_MAX]) {
    fl__lock(&lock);
    fill();
    size_t count = platform_count;
    memcpy(out_list, platforms, count * sizeof(platforms[0]));
    fl__unlock(&lock);
    return count;
}

/* --- drivers from outside -------------------------------------------------------------------- */

/* A shared object named in TORCH_FL_DRIVER_PATH; never freed, as the platform's name is in it. */
typedef struct external {
    fl_platform platform;
    const fl_driver *driver;
    fl__dl library;
    char path[]; /* Keeps the library's name. */
} external;

/* It was loaded and its table checked, or it would not be in the list. */
static fl_status external_probe(const fl_platform *platform) {
    const external *self = platform->data;
    FL_TRY(fl__drv_init(self->driver));
    int32_t count = 0;
    FL_TRY(fl__drv_device_count(self->driver, &count));
    return count ? FL_OK : fl_fail(FL_UNAVAILABLE, "the driver from %s sees no device", self->path);
}

static fl_status external_open(const fl_platform *platform, const fl_driver **out_driver) {
    const external *self = platform->data;
    *out_driver = self->driver;
    return FL_OK;
}

/* The table that the library offers. */
static fl_status query_table(external *self) {
    void *address = NULL;
    FL_TRY(fl__dl_require(&self->library, FL_DRIVER_QUERY_SYMBOL, &address));
    fl_driver_query_function query;
    static_assert(sizeof(query) == sizeof(address), "a symbol's address is a function's");
    memcpy(&query, &address, sizeof(query));
    uint32_t before = fl__failures;
    self->driver = query(FL_DRIVER_VERSION);
    if (!self->driver && fl__has_words_since(before)) {
        return fl_fail_context(FL_UNAVAILABLE,
                               "the driver offers no table of version %u: ", FL_DRIVER_VERSION);
    }
    if (!self->driver) {
        return fl_fail(FL_UNAVAILABLE,
                       "the driver offers no table of version %u and does not say why",
                       FL_DRIVER_VERSION);
    }
    return fl_driver_check(self->driver);
}

/* `path` has `length` bytes and no end mark. */
static fl_status load_external(const char *path, size_t length) {
    fl_status status = FL_OK;
    external *self = calloc(1, sizeof(*self) + length + 1);
    if (!self) {
        return fl_fail(FL_OUT_OF_MEMORY, "no memory for the driver %.*s", (int)length, path);
    }
    memcpy(self->path, path, length);
    const char *names[] = {self->path};
    status = fl__dl_open(names, 1, &self->library);
    if (status) {
        goto fail;
    }
    status = query_table(self);
    if (status) {
        goto fail;
    }
    self->platform = (fl_platform){
        .name = self->driver->name,
        .twin = FL_TWIN_NONE,
        .probe_order = 0, /* Somebody named its file, so it goes first. */
        .probe = external_probe,
        .open = external_open,
        .data = self,
    };
    fl__lock(&lock);
    fill(); /* The names of our own platforms are taken, whoever comes first. */
    const fl_platform *same = find(self->platform.name);
    /* A file that an earlier attempt loaded is there already. */
    bool again = same && same->open == external_open &&
                 strcmp(((const external *)same->data)->path, self->path) == 0;
    status = again ? FL_OK : insert(&self->platform);
    fl__unlock(&lock);
    if (status || again) {
        goto fail;
    }
    fl_trace(FL_TRACE_DRIVER, "%s: driver from %s", self->platform.name, self->path);
    return FL_OK;

fail:
    if (status) {
        status = fl_fail_context(
            status, "%s=%s: ", fl_option_describe(FL_OPT_DRIVER_PATH)->variable, self->path);
        fl_trace(FL_TRACE_DRIVER, "%s", fl_last_message());
    }
    /* The library stays loaded: what it may have started cannot be stopped. */
    free(self);
    return status;
}

/* All of TORCH_FL_DRIVER_PATH; the first failure is returned after the others were tried. */
static fl_status load_externals(void) {
    fl_status first = FL_OK;
    char first_message[REASON_MAX] = "";
    const char *paths = fl_option_string(FL_OPT_DRIVER_PATH);
    while (paths && *paths) {
        size_t length = strcspn(paths, ":");
        if (length > 0) {
            fl_status status = load_external(paths, length);
            if (status && !first) {
                first = status;
                (void)fl__text_print(first_message, sizeof(first_message), "%s", fl_last_message());
            }
        }
        paths += length + (paths[length] == ':');
    }
    return first ? fl_fail(first, "%s", first_message) : FL_OK;
}

/* A row of a file, each time the file is asked for. */
static fl_status take_row(const fl_platform *platform) {
    fl__lock(&lock);
    fill();
    fl_status status = find(platform->name) == platform ? FL_OK : insert(platform);
    fl__unlock(&lock);
    return status;
}

/* --- the choice ------------------------------------------------------------------------------ */

static fl_status open_checked(const fl_platform *platform, const fl_driver **out_driver) {
    const fl_driver *driver = NULL;
    uint32_t before = fl__failures;
    fl_status status = platform->open(platform, &driver);
    status = status ? with_reason(before, status) : fl_driver_check(driver);
    if (status) {
        fl_trace(FL_TRACE_DRIVER, "%s: cannot be opened: %s", platform->name, fl_last_message());
        return status;
    }
    *out_driver = driver;
    return FL_OK;
}

static fl_status fail_unknown(const char *name, bool by_option, const fl_platform *const *list,
                              size_t count) {
    char known[REASON_MAX] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof(known); i++) {
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
                                 list[i]->name);
    }
    return fl_fail(FL_NOT_FOUND, "%s\"%s\" is no platform; known are: %s",
                   by_option ? "TORCH_FL_PLATFORM: " : "", name, known);
}

static fl_status choose_by_name(const char *name, bool by_option, const fl_platform **out_platform,
                                const fl_driver **out_driver) {
    const fl_platform *list[PLATFORM_MAX];
    size_t count = list_copy(list);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i]->name, name) == 0) {
            fl_status status = open_checked(list[i], out_driver);
            if (status) {
                return fl_fail_context(status, "platform %s, which was asked for by %s: ", name,
                                       by_option ? "TORCH_FL_PLATFORM" : "name");
            }
            fl_trace(FL_TRACE_DRIVER, "%s: chosen, asked for by %s", name,
                     by_option ? "TORCH_FL_PLATFORM" : "name");
            *out_platform = list[i];
            return FL_OK;
        }
    }
    return fail_unknown(name, by_option, list, count);
}

static fl_status choose_by_probe(const fl_platform **out_platform, const fl_driver **out_driver) {
    const fl_platform *list[PLATFORM_MAX];
    size_t count = list_copy(list);
    for (size_t i = 0; i < count && list[i]->probe_order >= 0; i++) {
        if (fl__platform_probe(list[i])) {
            fl_trace(FL_TRACE_DRIVER, "%s: passed over: %s", list[i]->name, fl_last_message());
        } else if (open_checked(list[i], out_driver) == FL_OK) {
            fl_trace(FL_TRACE_DRIVER, "%s: chosen, the first that works", list[i]->name);
            *out_platform = list[i];
            return FL_OK;
        }
    }
    return fl_fail(FL_UNAVAILABLE,
                   "no platform works here; TORCH_FL_TRACE=driver says why each was passed over");
}

/* By one thread at a time, without the lock. */
static fl_status decide(const char *name, const fl_platform **out_platform,
                        const fl_driver **out_driver) {
    FL_TRY(fl_options_check());
    FL_TRY(load_externals());
    FL_TRY(fl__rows_load(take_row));
    bool by_option = !name && fl_option_is_set(FL_OPT_PLATFORM);
    if (by_option) {
        name = fl_option_string(FL_OPT_PLATFORM);
    }
    return name ? choose_by_name(name, by_option, out_platform, out_driver)
                : choose_by_probe(out_platform, out_driver);
}

fl_status fl_platform_choose(const char *name, const fl_platform **out_platform) {
    fl_status status = FL_OK;
    const fl_platform *platform = NULL;
    const fl_driver *driver = NULL;

    fl__lock(&lock);
    if (choosing && pthread_equal(choosing_who, pthread_self())) {
        fl__unlock(&lock);
        return fl_fail(FL_WRONG_STATE, "fl_platform_choose: called by a platform's probe or open");
    }
    while (choosing) {
        (void)pthread_cond_wait(&choice_made, &lock);
    }
    if (!chosen) {
        choosing = true;
        choosing_who = pthread_self();
        fl__unlock(&lock);
        status = decide(name, &platform, &driver);
        fl__lock(&lock);
        choosing = false;
        if (!status) {
            size_t size = driver->struct_size;
            memset(&chosen_driver, 0, sizeof(chosen_driver));
            memcpy(&chosen_driver, driver,
                   size < sizeof(chosen_driver) ? size : sizeof(chosen_driver));
            __atomic_store_n(&chosen, platform, __ATOMIC_RELEASE);
        }
        (void)pthread_cond_broadcast(&choice_made);
    } else if (name && strcmp(name, chosen->name) != 0) {
        status = fl_fail(FL_WRONG_STATE,
                         "platform %s cannot be chosen: this process runs on %s, and the platform "
                         "is chosen once",
                         name, chosen->name);
    }
    if (!status && out_platform) {
        *out_platform = chosen;
    }
    fl__unlock(&lock);
    return status;
}

const fl_platform *fl_platform_chosen(void) {
    return __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
}

const fl_driver *fl_platform_driver(void) {
    return fl_platform_chosen() ? &chosen_driver : NULL;
}

void fl_platform_each(void (*visit)(void *user, const fl_platform *platform, const char *reason),
                      void *user) {
    /* What cannot be loaded is traced; fl_platform_choose reports it. */
    (void)load_externals();
    (void)fl__rows_load(take_row);
    const fl_platform *list[PLATFORM_MAX];
    size_t count = list_copy(list);
    for (size_t i = 0; i < count; i++) {
        char reason[REASON_MAX];
        bool works = fl__platform_probe(list[i]) == FL_OK;
        if (!works) {
            (void)fl__text_print(reason, sizeof(reason), "%s", fl_last_message());
        }
        visit(user, list[i], works ? NULL : reason);
    }
}
