/*
 * vendor_test.c: fakes on the path, every slot in turn, every call failing once; see
 * vendor_test.h. Must not know which vendor is tested.
 */
#define _GNU_SOURCE /* dlsym */
#include "vendor_test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "fl/debug.h"
#include "harness.h"

void use_fakes(const char *folder) {
    char path[512];
    (void)snprintf(path, sizeof(path), "%s%s%s", FAKES, *folder ? "/" : "", folder);
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, path));
}

const fl_driver *open_platform(const char *name) {
    CHECK_OK(fl_platform_choose(name, NULL));
    const fl_driver *driver = fl_platform_driver();
    CHECK_OK(driver->init(driver->ctx));
    return driver;
}

void *fake_of(const char *file) {
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", FAKES, file);
    void *fake = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!fake) {
        test_fail(__FILE__, __LINE__, "%s was not loaded", path);
    }
    return fake;
}

void *fake_symbol(void *fake, const char *name) {
    void *symbol = dlsym(fake, name);
    if (!symbol) {
        test_fail(__FILE__, __LINE__, "the fake has no %s", name);
    }
    return symbol;
}

void fake_fail(void *fake, const char *function, int nth, int code) {
    void (*fail)(const char *, int, int);
    void *symbol = fake_symbol(fake, "fl_fake_fail");
    memcpy(&fail, &symbol, sizeof(fail));
    fail(function, nth, code);
}

int fake_calls(void *fake, const char *function) {
    int (*calls)(const char *);
    void *symbol = fake_symbol(fake, "fl_fake_calls");
    memcpy(&calls, &symbol, sizeof(calls));
    return calls(function);
}

fl_status choose_fails(const char *name) {
    fl_status status = fl_platform_choose(name, NULL);
    CHECK(status != FL_OK);
    CHECK(fl_platform_chosen() == NULL);
    return status;
}

/* --- every slot ------------------------------------------------------------------------------- */

typedef struct used {
    const fl_driver *d;
    fl_device device;
    void *one, *two, *host;
    fl_native_stream stream;
    fl_native_event start, end;
} used;

static void nothing(void *argument) {
    (void)argument;
}

static fl_status use_copies(const used *u) {
    const fl_driver *d = u->d;
    FL_TRY(d->copy(d->ctx, u->device, u->one, u->host, 4096, FL_COPY_HOST_TO_DEVICE, u->stream));
    FL_TRY(d->fill(d->ctx, u->device, u->two, 1, 4096, u->stream));
    FL_TRY(d->copy(d->ctx, u->device, u->two, u->one, 4096, FL_COPY_DEVICE_TO_DEVICE, u->stream));
    FL_TRY(d->copy(d->ctx, u->device, u->host, u->two, 4096, FL_COPY_DEVICE_TO_HOST, u->stream));
    if (d->copy_2d) {
        FL_TRY(d->copy_2d(d->ctx, u->device, u->one, 128, u->host, 64, 64, 16,
                          FL_COPY_HOST_TO_DEVICE, u->stream));
    }
    return FL_OK;
}

static fl_status use_peer(const used *u) {
    const fl_driver *d = u->d;
    int32_t count = 0;
    FL_TRY(d->device_count(d->ctx, &count));
    fl_device peer = (u->device + 1) % count;
    if (!d->copy_peer || peer == u->device) {
        return FL_OK;
    }
    bool can = false;
    void *there = NULL;
    FL_TRY(d->peer_can_access(d->ctx, u->device, peer, &can));
    FL_TRY(d->mem_alloc(d->ctx, peer, 4096, &there));
    fl_status status = d->copy_peer(d->ctx, there, peer, u->one, u->device, 4096, u->stream);
    if (!status) {
        status = d->stream_synchronize(d->ctx, u->device, u->stream);
    }
    fl_status freed = d->mem_free(d->ctx, peer, there);
    if (freed) { /* It was told to fail; the second time it is not. */
        (void)d->mem_free(d->ctx, peer, there);
    }
    return status ? status : freed;
}

static fl_status use_streams(const used *u) {
    const fl_driver *d = u->d;
    int32_t least, greatest;
    bool capturing;
    if (d->stream_priority_range) {
        FL_TRY(d->stream_priority_range(d->ctx, u->device, &least, &greatest));
    }
    if (d->stream_is_capturing) {
        FL_TRY(d->stream_is_capturing(d->ctx, u->device, u->stream, &capturing));
    }
    if (d->stream_host_call) {
        FL_TRY(d->stream_host_call(d->ctx, u->device, u->stream, nothing, NULL));
    }
    FL_TRY(d->event_record(d->ctx, u->device, u->end, u->stream));
    FL_TRY(d->stream_wait_event(d->ctx, u->device, u->stream, u->end));
    FL_TRY(d->event_synchronize(d->ctx, u->device, u->end));
    FL_TRY(d->stream_synchronize(d->ctx, u->device, u->stream));
    FL_TRY(d->event_query(d->ctx, u->device, u->end));
    FL_TRY(d->stream_query(d->ctx, u->device, u->stream));
    double ms;
    if (d->event_elapsed_ms) {
        FL_TRY(d->event_elapsed_ms(d->ctx, u->device, u->start, u->end, &ms));
    }
    return d->device_synchronize(d->ctx, u->device);
}

static fl_status use_code(const used *u) {
    const fl_driver *d = u->d;
    static const char image[] = FAKE_IMAGE;
    void *module, *function;
    if (!d->module_load) {
        return FL_OK;
    }
    uint32_t count = 1024, addend = 5;
    void *data = u->one;
    void *arguments[] = {&data, &count, &addend};
    const uint32_t grid[3] = {4, 1, 1}, block[3] = {256, 1, 1};
    FL_TRY(d->module_load(d->ctx, u->device, image, sizeof(image), &module));
    FL_TRY(d->module_function(d->ctx, u->device, module, "add_u32", &function));
    FL_TRY(d->launch(d->ctx, u->device, function, grid, block, 100 * 1024, u->stream, arguments));
    return d->stream_synchronize(d->ctx, u->device, u->stream);
}

static fl_status use_all(used *u) {
    const fl_driver *d = u->d;
    fl_device_properties properties;
    uint64_t available, total;
    FL_TRY(d->device_properties(d->ctx, u->device, &properties));
    if (d->mem_info) {
        FL_TRY(d->mem_info(d->ctx, u->device, &available, &total));
    }
    FL_TRY(d->mem_alloc(d->ctx, u->device, 4096, &u->one));
    FL_TRY(d->mem_alloc(d->ctx, u->device, 4096, &u->two));
    FL_TRY(d->host_alloc(d->ctx, 4096, &u->host));
    FL_TRY(d->stream_create(d->ctx, u->device, -1, &u->stream));
    FL_TRY(d->event_create(d->ctx, u->device, FL_EVENT_TIMING, &u->start));
    FL_TRY(d->event_create(d->ctx, u->device, FL_EVENT_TIMING, &u->end));
    FL_TRY(d->event_record(d->ctx, u->device, u->start, u->stream));
    FL_TRY(use_copies(u));
    FL_TRY(use_peer(u));
    FL_TRY(use_streams(u));
    return use_code(u);
}

/* Every release is tried twice, because the first one may be the call that fails. */
static fl_status release_all(used u) {
    const fl_driver *d = u.d;
    fl_status first = FL_OK;
    for (int round = 0; round < 2; round++) {
        fl_status status[7] = {FL_OK, FL_OK, FL_OK, FL_OK, FL_OK, FL_OK, FL_OK};
        if (u.stream) {
            status[6] = d->stream_synchronize(d->ctx, u.device, u.stream);
        }
        if (u.start && !(status[0] = d->event_destroy(d->ctx, u.device, u.start))) {
            u.start = NULL;
        }
        if (u.end && !(status[1] = d->event_destroy(d->ctx, u.device, u.end))) {
            u.end = NULL;
        }
        if (u.stream && !(status[2] = d->stream_destroy(d->ctx, u.device, u.stream))) {
            u.stream = NULL;
        }
        if (u.one && !(status[3] = d->mem_free(d->ctx, u.device, u.one))) {
            u.one = NULL;
        }
        if (u.two && !(status[4] = d->mem_free(d->ctx, u.device, u.two))) {
            u.two = NULL;
        }
        if (u.host && !(status[5] = d->host_free(d->ctx, u.host))) {
            u.host = NULL;
        }
        for (int i = 0; i < 7; i++) {
            first = first ? first : status[i];
            if (round == 1 && status[i]) {
                test_fail(__FILE__, __LINE__, "a release failed twice: %s", fl_last_message());
            }
        }
    }
    return first;
}

fl_status use_every_slot(const fl_driver *driver, fl_device device) {
    used u = {.d = driver, .device = device};
    fl_status status = use_all(&u);
    fl_status released = release_all(u);
    return status ? status : released;
}

/* --- failing every call ----------------------------------------------------------------------- */

typedef struct function_list {
    struct {
        char name[64];
        int calls;
    } rows[96];
    int count;
} function_list;

static void take_function(void *user, const char *name, int calls) {
    function_list *list = user;
    if (list->count < (int)(sizeof(list->rows) / sizeof(list->rows[0])) && calls > 0) {
        (void)snprintf(list->rows[list->count].name, sizeof(list->rows[0].name), "%s", name);
        list->rows[list->count++].calls = calls;
    }
}

static bool is_tolerated(const char *name, const char *const *tolerated) {
    for (; *tolerated; tolerated++) {
        if (strcmp(*tolerated, name) == 0) {
            return true;
        }
    }
    return false;
}

static uint64_t free_bytes(const fl_driver *d, fl_device device) {
    uint64_t available = 0, total = 0;
    CHECK_OK(d->mem_info(d->ctx, device, &available, &total));
    return available;
}

void fail_every_call(const fl_driver *driver, void *fake, int code, const char *const *tolerated,
                     const char *may_lose, void (*check)(void *fake)) {
    function_list before = {.count = 0}, after = {.count = 0};
    void (*each)(void (*)(void *, const char *, int), void *);
    void *symbol = fake_symbol(fake, "fl_fake_each");
    memcpy(&each, &symbol, sizeof(each));
    CHECK_OK(use_every_slot(driver, 1)); /* What is done once in a process. */
    each(take_function, &before);
    CHECK_OK(use_every_slot(driver, 1));
    each(take_function, &after);
    uint64_t available = free_bytes(driver, 1);
    CHECK(after.count > 20);
    for (int i = 0; i < after.count; i++) {
        const char *name = after.rows[i].name;
        int calls = after.rows[i].calls;
        for (int j = 0; j < before.count; j++) {
            if (strcmp(before.rows[j].name, name) == 0) {
                calls -= before.rows[j].calls;
            }
        }
        for (int nth = 1; nth <= calls; nth++) {
            test_note("call %d of %s", nth, name);
            fake_fail(fake, name, nth, code);
            fl_status status = use_every_slot(driver, 1);
            fake_fail(fake, name, 0, 0);
            if (!is_tolerated(name, tolerated)) {
                CHECK(status != FL_OK);
                CHECK(status != FL_NOT_READY);
            }
            check(fake);
            if (strcmp(name, may_lose) == 0) {
                available = free_bytes(driver, 1);
            }
            CHECK_UINT(free_bytes(driver, 1), available);
        }
    }
    CHECK_OK(use_every_slot(driver, 1));
}
