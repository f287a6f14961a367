/*
 * zephyr_driver.c: a driver in a file of its own, as docs/driver.md describes it. It is what the
 * maker of a chip would write: linked against their runtime, with fl/driver.h and nothing else of
 * this project, and named in TORCH_FL_DRIVER_PATH.
 */
#include "fl/driver.h"

#include <string.h>

/* The runtime's header, as far as it is used here. */
int zx_rtGetDeviceCount(int *count);
int zx_rtSetDevice(int device);
int zx_rtDeviceSynchronize(void);
int zx_rtDeviceGetName(char *name, int length, int device);
int zx_rtMemGetInfo(size_t *available, size_t *total);
int zx_rtMalloc(void **ptr, size_t bytes);
int zx_rtFree(void *ptr);
int zx_rtGrabHost(void **ptr, size_t bytes, unsigned flags);
int zx_rtDropHost(void *ptr);
int zx_rtMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream);
int zx_rtMemset(void *dst, int value, size_t bytes);
int zx_rtStreamCreateWithFlags(void **stream, unsigned flags);
int zx_rtStreamDestroy(void *stream);
int zx_rtStreamQuery(void *stream);
int zx_rtStreamSynchronize(void *stream);
int zx_rtStreamWaitEvent(void *stream, void *event, unsigned flags);
int zx_rtEventCreateWithFlags(void **event, unsigned flags);
int zx_rtEventDestroy(void *event);
int zx_rtEventRecord(void *event, void *stream);
int zx_rtEventQuery(void *event);
int zx_rtEventSynchronize(void *event);
int zx_rtEventElapsedTime(float *ms, void *start, void *end);
int zx_rtLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
int zx_rtGetLastError(void);
const char *zx_rtGetErrorString(int code);

/* --- errors ----------------------------------------------------------------------------------- */

/* One place turns the vendor's numbers into ours, keeps the words, and clears what sticks. */
static fl_status status_of(int code, const char *function) {
    enum { OUT_OF_MEMORY = 77, NO_DEVICE = 100, NO_SUCH_DEVICE = 101, NOT_READY = 600 };
    if (code == 0) {
        return FL_OK;
    }
    (void)zx_rtGetLastError();
    if (code == NOT_READY) {
        return FL_NOT_READY; /* An answer, not a failure: no message. */
    }
    fl_status status = code == OUT_OF_MEMORY    ? FL_OUT_OF_MEMORY
                       : code == NO_DEVICE      ? FL_UNAVAILABLE
                       : code == NO_SUCH_DEVICE ? FL_OUT_OF_RANGE
                                                : FL_DEVICE_ERROR;
    return fl_fail_vendor(status, code, "zephyr: %s: %s", function, zx_rtGetErrorString(code));
}

static fl_status use(fl_device device) {
    return status_of(zx_rtSetDevice(device), "zx_rtSetDevice");
}

/* --- devices ---------------------------------------------------------------------------------- */

static fl_status init(void *ctx) {
    (void)ctx;
    return FL_OK;
}

static fl_status device_count(void *ctx, int32_t *out_count) {
    (void)ctx;
    int count = 0;
    fl_status status = status_of(zx_rtGetDeviceCount(&count), "zx_rtGetDeviceCount");
    if (status && status != FL_UNAVAILABLE) {
        return status;
    }
    *out_count = count;
    return FL_OK;
}

static fl_status device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    memset(out, 0, sizeof(*out));
    FL_TRY(
        status_of(zx_rtDeviceGetName(out->name, FL_DEVICE_NAME_MAX, device), "zx_rtDeviceGetName"));
    size_t available = 0, total = 0;
    FL_TRY(use(device));
    FL_TRY(status_of(zx_rtMemGetInfo(&available, &total), "zx_rtMemGetInfo"));
    out->total_memory = total;
    return FL_OK;
}

static fl_status device_synchronize(void *ctx, fl_device device) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtDeviceSynchronize(), "zx_rtDeviceSynchronize");
}

/* --- memory ----------------------------------------------------------------------------------- */

static fl_status mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    void *ptr = NULL;
    FL_TRY(use(device));
    FL_TRY(status_of(zx_rtMalloc(&ptr, bytes), "zx_rtMalloc"));
    *out_ptr = ptr; /* Results are written on success only. */
    return FL_OK;
}

static fl_status mem_free(void *ctx, fl_device device, void *ptr) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtFree(ptr), "zx_rtFree");
}

static fl_status host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    (void)ctx;
    void *ptr = NULL;
    FL_TRY(status_of(zx_rtGrabHost(&ptr, bytes, 0), "zx_rtGrabHost"));
    *out_ptr = ptr;
    return FL_OK;
}

static fl_status host_free(void *ctx, void *ptr) {
    (void)ctx;
    return status_of(zx_rtDropHost(ptr), "zx_rtDropHost");
}

static fl_status copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                      fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtMemcpyAsync(dst, src, bytes, (int)kind, stream), "zx_rtMemcpyAsync");
}

/* The runtime fills only on its default stream: what came before on ours, the fill, its end. */
static fl_status fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                      fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    FL_TRY(status_of(zx_rtStreamSynchronize(stream), "zx_rtStreamSynchronize"));
    FL_TRY(status_of(zx_rtMemset(dst, value, bytes), "zx_rtMemset"));
    return status_of(zx_rtStreamSynchronize(NULL), "zx_rtStreamSynchronize");
}

/* --- streams ---------------------------------------------------------------------------------- */

static fl_status stream_create(void *ctx, fl_device device, int32_t priority,
                               fl_native_stream *out_stream) {
    (void)ctx;
    (void)priority; /* Clamped to a range of one. */
    void *stream = NULL;
    FL_TRY(use(device));
    FL_TRY(status_of(zx_rtStreamCreateWithFlags(&stream, 1), "zx_rtStreamCreateWithFlags"));
    *out_stream = stream;
    return FL_OK;
}

static fl_status stream_destroy(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtStreamDestroy(stream), "zx_rtStreamDestroy");
}

static fl_status stream_query(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtStreamQuery(stream), "zx_rtStreamQuery");
}

static fl_status stream_synchronize(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtStreamSynchronize(stream), "zx_rtStreamSynchronize");
}

static fl_status stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                   fl_native_event event) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtStreamWaitEvent(stream, event, 0), "zx_rtStreamWaitEvent");
}

static fl_status stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                  void (*function)(void *argument), void *argument) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtLaunchHostFunc(stream, function, argument), "zx_rtLaunchHostFunc");
}

/* --- events ----------------------------------------------------------------------------------- */

static fl_status event_create(void *ctx, fl_device device, uint32_t flags,
                              fl_native_event *out_event) {
    (void)ctx;
    enum { DISABLE_TIMING = 2 };
    void *event = NULL;
    if (flags & FL_EVENT_INTERPROCESS) {
        return fl_fail(FL_NOT_SUPPORTED, "zephyr: events cannot be shared between processes");
    }
    FL_TRY(use(device));
    FL_TRY(
        status_of(zx_rtEventCreateWithFlags(&event, flags & FL_EVENT_TIMING ? 0u : DISABLE_TIMING),
                  "zx_rtEventCreateWithFlags"));
    *out_event = event;
    return FL_OK;
}

static fl_status event_destroy(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtEventDestroy(event), "zx_rtEventDestroy");
}

static fl_status event_record(void *ctx, fl_device device, fl_native_event event,
                              fl_native_stream stream) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtEventRecord(event, stream), "zx_rtEventRecord");
}

static fl_status event_query(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtEventQuery(event), "zx_rtEventQuery");
}

static fl_status event_synchronize(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    FL_TRY(use(device));
    return status_of(zx_rtEventSynchronize(event), "zx_rtEventSynchronize");
}

static fl_status event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                  fl_native_event end, double *out_ms) {
    (void)ctx;
    float ms = 0;
    FL_TRY(use(device));
    FL_TRY(status_of(zx_rtEventElapsedTime(&ms, start, end), "zx_rtEventElapsedTime"));
    *out_ms = (double)ms;
    return FL_OK;
}

/* --- the table -------------------------------------------------------------------------------- */

static const fl_driver_limit limits[] = {
    {"stream.priority", "the runtime has one priority"},
    {"copy.two_dimensional", "the runtime has no pitched copy"},
    {"copy.peer", "copies between devices go through the host"},
    {"copy.peer_order", "copies between devices go through the host"},
    {NULL, NULL},
};

static const fl_driver table = {
    .struct_size = sizeof(fl_driver),
    .version = FL_DRIVER_VERSION,
    .name = "zephyr-file",
    .ctx = NULL,
    .capabilities = 0,
    .init = init,
    .device_count = device_count,
    .device_properties = device_properties,
    .device_synchronize = device_synchronize,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .stream_wait_event = stream_wait_event,
    .event_elapsed_ms = event_elapsed_ms,
    .stream_host_call = stream_host_call,
    .limits = limits,
};

FL_API const fl_driver *fl_driver_query(uint32_t version);
FL_API const fl_driver *fl_driver_query(uint32_t version) {
    if (version < FL_DRIVER_VERSION) {
        (void)fl_fail(FL_NOT_SUPPORTED, "this driver needs tables of version %u",
                      FL_DRIVER_VERSION);
        return NULL;
    }
    return &table;
}
