/*
 * engine.c: devices, counted and failing calls, and memory of the fakes. See engine.h.
 */
#define _GNU_SOURCE
#include "engine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/sim.h"

/* --- calls ------------------------------------------------------------------------------------ */

typedef struct function_state {
    struct function_state *next;
    char name[64];
    int calls;
    int fail_at; /* Of the calls; 0: never. */
    int code;
} function_state;

static pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;
static function_state *functions;
static int all_calls;
static bool environment_read;
static _Thread_local bool in_host_function;

/* Under the lock. */
static function_state *function_of(const char *name) {
    function_state *f = functions;
    while (f && strcmp(f->name, name) != 0) {
        f = f->next;
    }
    if (!f) {
        f = calloc(1, sizeof(*f));
        if (!f) {
            abort();
        }
        (void)snprintf(f->name, sizeof(f->name), "%s", name);
        f->next = functions;
        functions = f;
    }
    return f;
}

/* Under the lock: "function:n[:code],..." */
static void read_environment(void) {
    environment_read = true;
    const char *text = getenv("FL_FAKE_FAIL");
    while (text && *text) {
        char name[64];
        int nth = 0, code = FAKE_DEFAULT_CODE;
        if (sscanf(text, "%63[^:,]:%d:%d", name, &nth, &code) >= 2) {
            function_state *f = function_of(name);
            f->fail_at = f->calls + nth;
            f->code = code;
        }
        text += strcspn(text, ",");
        text += *text == ',';
    }
}

int fake_begin(const char *function, bool *out_in_host_function) {
    *out_in_host_function = in_host_function;
    pthread_mutex_lock(&call_lock);
    if (!environment_read) {
        read_environment();
    }
    function_state *f = function_of(function);
    f->calls++;
    all_calls++;
    int code = f->calls == f->fail_at ? f->code : FAKE_PASS;
    pthread_mutex_unlock(&call_lock);
    return code;
}

void fl_fake_fail(const char *function, int nth, int code) {
    pthread_mutex_lock(&call_lock);
    function_state *f = function_of(function);
    f->fail_at = nth ? f->calls + nth : 0;
    f->code = code;
    pthread_mutex_unlock(&call_lock);
}

int fl_fake_calls(const char *function) {
    pthread_mutex_lock(&call_lock);
    int calls = function ? function_of(function)->calls : all_calls;
    pthread_mutex_unlock(&call_lock);
    return calls;
}

void fl_fake_each(void (*visit)(void *user, const char *function, int calls), void *user) {
    pthread_mutex_lock(&call_lock);
    for (function_state *f = functions; f; f = f->next) {
        visit(user, f->name, f->calls);
    }
    pthread_mutex_unlock(&call_lock);
}

void fake_enter_host_function(bool enter) {
    in_host_function = enter;
}

/* --- devices ---------------------------------------------------------------------------------- */

static pthread_once_t sim_once = PTHREAD_ONCE_INIT;
static const fl_driver *sim;
static int device_count;
static _Thread_local int current = FAKE_NONE;
static atomic_bool active[FL_DEVICE_MAX];

static void open_sim(void) {
    const char *wanted = getenv("FL_FAKE_DEVICES");
    int32_t count = 0;
    sim = fl__sim_driver();
    if (sim->init(sim->ctx) || sim->device_count(sim->ctx, &count)) {
        fprintf(stderr, "a fake cannot start sim: %s\n", fl_last_message());
        abort();
    }
    device_count = wanted && atoi(wanted) < count ? atoi(wanted) : count;
}

const fl_driver *fake_sim(void) {
    pthread_once(&sim_once, open_sim);
    return sim;
}

int fake_device_count(void) {
    (void)fake_sim();
    return device_count;
}

int fake_current_raw(void) {
    return current;
}

int fake_current(void) {
    return current == FAKE_NONE ? 0 : current;
}

fake_result fake_set_current(int device) {
    if (device < 0 || device >= fake_device_count()) {
        return FAKE_INVALID_DEVICE;
    }
    current = device;
    fake_activate();
    return FAKE_OK;
}

bool fake_device_is_active(int device) {
    return atomic_load(&active[device]);
}

void fake_activate(void) {
    atomic_store(&active[fake_current()], true);
}

fake_result fake_from_status(fl_status status) {
    switch (status) {
    case FL_OK:
        return FAKE_OK;
    case FL_NOT_READY:
        return FAKE_NOT_READY;
    case FL_OUT_OF_MEMORY:
        return FAKE_OUT_OF_MEMORY;
    case FL_INVALID_ARGUMENT:
        return FAKE_INVALID_VALUE;
    case FL_WRONG_STATE:
        return FAKE_BUSY;
    default:
        fprintf(stderr, "sim behind a fake: %s\n", fl_last_message());
        return FAKE_UNKNOWN;
    }
}

fake_result fake_device_synchronize(void) {
    const fl_driver *s = fake_sim();
    return fake_from_status(s->device_synchronize(s->ctx, fake_current()));
}

/* --- memory ----------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    char *base, *ptr;
    size_t bytes;
    fake_kind kind;
    int device;
} block;

static pthread_mutex_t block_lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;

static void link_block(block *b) {
    pthread_mutex_lock(&block_lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&block_lock);
}

static fake_result keep(void *base, size_t offset, size_t bytes, fake_kind kind, int device,
                        void **out_ptr) {
    block *b = malloc(sizeof(*b));
    if (!b) {
        abort();
    }
    *b = (block){
        .base = base, .ptr = (char *)base + offset, .bytes = bytes, .kind = kind, .device = device};
    *out_ptr = b->ptr;
    link_block(b);
    return FAKE_OK;
}

/* Takes the block that begins at `ptr` out of the list; NULL if there is none. It must be out
 * before sim has it back, since another thread may get the same address at once. */
static block *take(const void *ptr, fake_kind kind) {
    pthread_mutex_lock(&block_lock);
    block **at = &blocks;
    while (*at && ((*at)->ptr != ptr || (*at)->kind != kind)) {
        at = &(*at)->next;
    }
    block *b = *at;
    if (b) {
        *at = b->next;
    }
    pthread_mutex_unlock(&block_lock);
    return b;
}

/* A block that could not be freed is one again. */
static fake_result end_free(block *b, fake_result result) {
    if (result) {
        link_block(b);
    } else {
        free(b);
    }
    return result;
}

fake_result fake_malloc(void **out_ptr, size_t bytes, size_t offset) {
    const fl_driver *s = fake_sim();
    void *base = NULL;
    int device = fake_current();
    if (bytes > SIZE_MAX / 2) {
        return FAKE_OUT_OF_MEMORY;
    }
    fake_result result = fake_from_status(s->mem_alloc(s->ctx, device, bytes + offset, &base));
    return result ? result : keep(base, offset, bytes, FAKE_DEVICE, device, out_ptr);
}

fake_result fake_free(void *ptr, bool waits) {
    const fl_driver *s = fake_sim();
    fake_result result = FAKE_OK;
    for (int device = 0; device < device_count && waits && !result; device++) {
        result = fake_from_status(s->device_synchronize(s->ctx, device));
    }
    block *b = result ? NULL : take(ptr, FAKE_DEVICE);
    if (!b) {
        return result ? result : FAKE_INVALID_VALUE;
    }
    return end_free(b, fake_from_status(s->mem_free(s->ctx, b->device, b->base)));
}

fake_result fake_host_alloc(void **out_ptr, size_t bytes) {
    const fl_driver *s = fake_sim();
    void *base = NULL;
    fake_result result = fake_from_status(s->host_alloc(s->ctx, bytes, &base));
    return result ? result : keep(base, 0, bytes, FAKE_HOST, FAKE_NONE, out_ptr);
}

fake_result fake_host_free(void *ptr) {
    const fl_driver *s = fake_sim();
    block *b = take(ptr, FAKE_HOST);
    return b ? end_free(b, fake_from_status(s->host_free(s->ctx, b->base))) : FAKE_INVALID_VALUE;
}

fake_result fake_range(const void *ptr, size_t bytes, fake_kind *out_kind, int *out_device) {
    fake_result result = FAKE_OK;
    *out_kind = FAKE_PAGEABLE;
    *out_device = FAKE_NONE;
    pthread_mutex_lock(&block_lock);
    for (block *b = blocks; b; b = b->next) {
        const char *start = ptr;
        if (start >= b->ptr && start < b->ptr + b->bytes) {
            *out_kind = b->kind;
            *out_device = b->device;
            if (bytes > (size_t)(b->ptr + b->bytes - start)) {
                result = FAKE_INVALID_VALUE;
            }
            break;
        }
    }
    pthread_mutex_unlock(&block_lock);
    return result;
}

void fake_mem_info(size_t *out_free, size_t *out_total) {
    const fl_driver *s = fake_sim();
    uint64_t available = 0, total = 0;
    (void)s->mem_info(s->ctx, fake_current(), &available, &total);
    *out_free = available;
    *out_total = total;
}

/* --- peers ------------------------------------------------------------------------------------ */

static _Atomic uint64_t peers[FL_DEVICE_MAX];

fake_result fake_enable_peer(int peer) {
    int device = fake_current();
    if (peer < 0 || peer >= fake_device_count() || peer == device) {
        return FAKE_INVALID_DEVICE;
    }
    uint64_t before = atomic_fetch_or(&peers[device], UINT64_C(1) << peer);
    return before >> peer & 1 ? FAKE_PEER_ALREADY_ENABLED : FAKE_OK;
}

bool fake_peer_enabled(int device, int peer) {
    return device == peer || (atomic_load(&peers[device]) >> peer & 1);
}
