/*
 * engine_streams.c: streams, events, copies and code of the fakes. See engine.h.
 */
#include "engine_internal.h"

#include <stdlib.h>
#include <string.h>

/* Every handle that was given out and not destroyed. Handles are never reused: memory of destroyed
 * ones is kept, so that a stale handle is always noticed. */
typedef enum handle_kind { STREAM, EVENT } handle_kind;

typedef struct handle {
    struct handle *next;
    handle_kind kind;
    bool alive;
    int device;
    void *native; /* Sim's. */
    bool timed, recorded, can_be_waited_for;
    int capturing;
} handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* Guards the list and default streams. */
static handle *handles;
static handle *default_streams[FL_DEVICE_MAX];

static handle *keep(handle_kind kind, int device, void *native) {
    handle *h = calloc(1, sizeof(*h));
    if (!h) {
        abort();
    }
    h->kind = kind;
    h->alive = true;
    h->device = device;
    h->native = native;
    h->next = handles;
    handles = h;
    return h;
}

static handle *find(void *pointer, handle_kind kind) {
    pthread_mutex_lock(&lock);
    handle *h = handles;
    while (h && (h != pointer || h->kind != kind || !h->alive)) {
        h = h->next;
    }
    pthread_mutex_unlock(&lock);
    return h;
}

/* Removes a handle from those that are valid; false if it was none. */
static bool retire(handle *h) {
    pthread_mutex_lock(&lock);
    bool was_alive = h->alive;
    h->alive = false;
    pthread_mutex_unlock(&lock);
    return was_alive;
}

/* --- streams ---------------------------------------------------------------------------------- */

static handle *default_stream(int device) {
    const fl_driver *s = fake_sim();
    pthread_mutex_lock(&lock);
    if (!default_streams[device]) {
        fl_native_stream native = NULL;
        if (s->stream_create(s->ctx, device, 0, &native)) {
            abort();
        }
        default_streams[device] = keep(STREAM, device, native);
    }
    handle *h = default_streams[device];
    pthread_mutex_unlock(&lock);
    return h;
}

static handle *stream_of(void *stream) {
    return stream ? find(stream, STREAM) : default_stream(fake_current());
}

fake_result fake_stream_create(void **out_stream, int priority) {
    const fl_driver *s = fake_sim();
    fl_native_stream native = NULL;
    int device = fake_current();
    fake_result result = fake_from_status(s->stream_create(s->ctx, device, priority, &native));
    if (result == FAKE_OK) {
        pthread_mutex_lock(&lock);
        *out_stream = keep(STREAM, device, native);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

fake_result fake_stream_destroy(void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = find(stream, STREAM);
    if (!h || !retire(h)) {
        return FAKE_INVALID_HANDLE;
    }
    return fake_from_status(s->stream_destroy(s->ctx, h->device, h->native));
}

fake_result fake_stream_query(void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    return h ? fake_from_status(s->stream_query(s->ctx, h->device, h->native))
             : FAKE_INVALID_HANDLE;
}

fake_result fake_stream_synchronize(void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    return h ? fake_from_status(s->stream_synchronize(s->ctx, h->device, h->native))
             : FAKE_INVALID_HANDLE;
}

int fake_stream_device(void *stream) {
    handle *h = stream_of(stream);
    return h ? h->device : FAKE_NONE;
}

fake_result fake_stream_wait(void *stream, void *event) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream), *e = find(event, EVENT);
    if (!h || !e) {
        return FAKE_INVALID_HANDLE;
    }
    if (!e->can_be_waited_for) {
        return FAKE_INVALID_VALUE;
    }
    return fake_from_status(s->stream_wait_event(s->ctx, h->device, h->native, e->native));
}

typedef struct host_call {
    void (*function)(void *);
    void *argument;
} host_call;

static void run_host_call(void *argument) {
    host_call call = *(host_call *)argument;
    free(argument);
    fake_enter_host_function(true);
    call.function(call.argument);
    fake_enter_host_function(false);
}

fake_result fake_stream_host_call(void *stream, void (*function)(void *), void *argument) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    if (!h) {
        return FAKE_INVALID_HANDLE;
    }
    host_call *call = malloc(sizeof(*call));
    if (!call) {
        return FAKE_OUT_OF_MEMORY;
    }
    *call = (host_call){.function = function, .argument = argument};
    fake_result result =
        fake_from_status(s->stream_host_call(s->ctx, h->device, h->native, run_host_call, call));
    if (result) {
        free(call);
    }
    return result;
}

fake_result fake_stream_capture(void *stream, int state) {
    handle *h = find(stream, STREAM); /* Nobody captures the default stream. */
    if (!h || h->capturing == state) {
        return FAKE_NOT_PERMITTED;
    }
    h->capturing = state;
    return FAKE_OK;
}

fake_result fake_stream_capturing(void *stream, int *out_state) {
    handle *h = stream_of(stream);
    if (!h) {
        return FAKE_INVALID_HANDLE;
    }
    *out_state = h->capturing;
    return FAKE_OK;
}

/* --- events ----------------------------------------------------------------------------------- */

fake_result fake_event_create(void **out_event, bool timed, bool can_be_waited_for) {
    const fl_driver *s = fake_sim();
    fl_native_event native = NULL;
    int device = fake_current();
    fake_result result = fake_from_status(
        s->event_create(s->ctx, device, timed ? (uint32_t)FL_EVENT_TIMING : 0u, &native));
    if (result == FAKE_OK) {
        pthread_mutex_lock(&lock);
        handle *h = keep(EVENT, device, native);
        h->timed = timed;
        h->can_be_waited_for = can_be_waited_for;
        pthread_mutex_unlock(&lock);
        *out_event = h;
    }
    return result;
}

fake_result fake_event_destroy(void *event) {
    const fl_driver *s = fake_sim();
    handle *e = find(event, EVENT);
    if (!e || !retire(e)) {
        return FAKE_INVALID_HANDLE;
    }
    return fake_from_status(s->event_destroy(s->ctx, e->device, e->native));
}

fake_result fake_event_record(void *event, void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream), *e = find(event, EVENT);
    if (!h || !e) {
        return FAKE_INVALID_HANDLE;
    }
    if (h->device != e->device) {
        return FAKE_OTHER_CONTEXT;
    }
    e->recorded = true;
    return fake_from_status(s->event_record(s->ctx, e->device, e->native, h->native));
}

fake_result fake_event_query(void *event) {
    const fl_driver *s = fake_sim();
    handle *e = find(event, EVENT);
    return e ? fake_from_status(s->event_query(s->ctx, e->device, e->native)) : FAKE_INVALID_HANDLE;
}

fake_result fake_event_synchronize(void *event) {
    const fl_driver *s = fake_sim();
    handle *e = find(event, EVENT);
    return e ? fake_from_status(s->event_synchronize(s->ctx, e->device, e->native))
             : FAKE_INVALID_HANDLE;
}

fake_result fake_event_elapsed(float *out_ms, void *start, void *end) {
    const fl_driver *s = fake_sim();
    handle *a = find(start, EVENT), *b = find(end, EVENT);
    if (!a || !b) {
        return FAKE_INVALID_HANDLE;
    }
    if (!a->timed || !b->timed || !a->recorded || !b->recorded) {
        return FAKE_NOT_TIMED;
    }
    if (fake_event_query(start) || fake_event_query(end)) {
        return FAKE_NOT_READY;
    }
    double ms = 0;
    fake_result result =
        fake_from_status(s->event_elapsed_ms(s->ctx, a->device, a->native, b->native, &ms));
    *out_ms = (float)ms;
    return result;
}

int fake_event_device(void *event) {
    handle *e = find(event, EVENT);
    return e ? e->device : FAKE_NONE;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Whether each side is where `kind` says. */
static fake_result check_sides(const void *dst, size_t dst_bytes, const void *src, size_t src_bytes,
                               fl_copy_kind kind, bool *out_pageable) {
    fake_kind to, from;
    int to_device, from_device;
    bool to_is_device = kind == FL_COPY_HOST_TO_DEVICE || kind == FL_COPY_DEVICE_TO_DEVICE;
    bool from_is_device = kind == FL_COPY_DEVICE_TO_HOST || kind == FL_COPY_DEVICE_TO_DEVICE;
    fake_result result = fake_range(dst, dst_bytes, &to, &to_device);
    if (!result) {
        result = fake_range(src, src_bytes, &from, &from_device);
    }
    if (!result &&
        ((to == FAKE_DEVICE) != to_is_device || (from == FAKE_DEVICE) != from_is_device)) {
        result = FAKE_INVALID_VALUE;
    }
    if (!result) {
        *out_pageable = to == FAKE_PAGEABLE || from == FAKE_PAGEABLE;
    }
    return result;
}

fake_result fake_copy(void *dst, const void *src, size_t bytes, fl_copy_kind kind, void *stream) {
    return fake_copy_2d(dst, bytes, src, bytes, bytes, 1, kind, stream);
}

fake_result fake_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t rows, fl_copy_kind kind, void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    if (!h) {
        return FAKE_INVALID_HANDLE;
    }
    if (width == 0 || rows == 0) {
        return FAKE_OK;
    }
    if (dst_pitch < width || src_pitch < width) {
        return FAKE_INVALID_VALUE;
    }
    bool pageable = false;
    fake_result result = check_sides(dst, (rows - 1) * dst_pitch + width, src,
                                     (rows - 1) * src_pitch + width, kind, &pageable);
    for (size_t row = 0; row < rows && !result; row++) {
        result =
            fake_from_status(s->copy(s->ctx, h->device, (char *)dst + row * dst_pitch,
                                     (const char *)src + row * src_pitch, width, kind, h->native));
    }
    if (!result && pageable) {
        result = fake_stream_synchronize(stream);
    }
    return result;
}

fake_result fake_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                           void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    if (!h) {
        return FAKE_INVALID_HANDLE;
    }
    fake_kind to, from;
    int to_device, from_device;
    if (fake_range(dst, bytes, &to, &to_device) || fake_range(src, bytes, &from, &from_device) ||
        to_device != dst_device || from_device != src_device || to != FAKE_DEVICE ||
        from != FAKE_DEVICE) {
        return FAKE_INVALID_VALUE;
    }
    return fake_from_status(
        s->copy_peer(s->ctx, dst, dst_device, src, src_device, bytes, h->native));
}

fake_result fake_fill(void *dst, int value, size_t bytes, void *stream) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    fake_kind kind;
    int device;
    if (!h) {
        return FAKE_INVALID_HANDLE;
    }
    if (bytes == 0) {
        return FAKE_OK;
    }
    if (fake_range(dst, bytes, &kind, &device) || kind != FAKE_DEVICE) {
        return FAKE_INVALID_VALUE;
    }
    return fake_from_status(s->fill(s->ctx, h->device, dst, (uint8_t)value, bytes, h->native));
}

/* --- code ------------------------------------------------------------------------------------- */

static const char module_mark[] = FAKE_IMAGE;
static const char function_mark[] = "add_u32";

fake_result fake_module_load(void **out_module, const void *image) {
    if (memcmp(image, module_mark, sizeof(module_mark)) != 0) {
        return FAKE_INVALID_VALUE;
    }
    *out_module = (void *)(uintptr_t)module_mark;
    return FAKE_OK;
}

fake_result fake_module_function(void **out_function, void *module, const char *name) {
    if (module != module_mark) {
        return FAKE_INVALID_HANDLE;
    }
    if (strcmp(name, function_mark) != 0) {
        return FAKE_INVALID_VALUE;
    }
    *out_function = (void *)(uintptr_t)function_mark;
    return FAKE_OK;
}

typedef struct addition {
    uint32_t *data;
    uint32_t count, addend;
    uint64_t threads;
} addition;

/* On the stream's thread, where sim allows device memory to be touched. */
static void run_addition(void *argument) {
    addition a = *(addition *)argument;
    free(argument);
    for (uint64_t i = 0; i < a.threads && i < a.count; i++) {
        a.data[i] += a.addend;
    }
}

fake_result fake_launch(void *function, uint64_t threads, void *stream, void **arguments) {
    const fl_driver *s = fake_sim();
    handle *h = stream_of(stream);
    if (!h || function != function_mark) {
        return FAKE_INVALID_HANDLE;
    }
    addition *a = malloc(sizeof(*a));
    if (!a) {
        return FAKE_OUT_OF_MEMORY;
    }
    memcpy(&a->data, arguments[0], sizeof(a->data));
    memcpy(&a->count, arguments[1], sizeof(a->count));
    memcpy(&a->addend, arguments[2], sizeof(a->addend));
    a->threads = threads;
    fake_result result =
        fake_from_status(s->stream_host_call(s->ctx, h->device, h->native, run_addition, a));
    if (result) {
        free(a);
    }
    return result;
}
