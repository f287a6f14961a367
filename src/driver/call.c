/*
 * call.c: the one place that calls through the driver table.
 *
 * Relies on registry.c to have checked the required slots. Does not know which vendor answers and
 * keeps no state.
 */
#include "driver/call.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/failures.h"
#include "base/log.h"
#include "base/text.h"

/*
 * A driver is foreign code: a number that is no status must not travel further, nor a failure under
 * words that belong to an older one. `before` is fl__failures as it was when the slot was called.
 */
static fl_status failed(const fl_driver *drv, const char *slot, uint32_t before, fl_status status) {
    if ((unsigned)status >= FL_STATUS_COUNT) {
        return fl_fail(FL_INTERNAL, "driver %s: %s returned %d, which is no status", drv->name,
                       slot, (int)status);
    }
    bool has_words = fl__has_words_since(before);
    if (status == FL_NOT_READY) {
        return has_words ? fl_fail_context(FL_INTERNAL,
                                           "driver %s: %s asks nothing and was answered \"not "
                                           "ready\": ",
                                           drv->name, slot)
                         : fl_fail(FL_INTERNAL,
                                   "driver %s: %s asks nothing and was answered \"not ready\"",
                                   drv->name, slot);
    }
    return has_words
               ? status
               : fl_fail(status, "driver %s: %s: %s", drv->name, slot, fl_status_name(status));
}

static fl_status checked(const fl_driver *drv, const char *slot, uint32_t before,
                         fl_status status) {
    if (__builtin_expect(status != FL_OK, 0)) {
        status = failed(drv, slot, before, status);
    }
    if (fl__trace_on(FL_TRACE_CALL)) {
        fl_trace(FL_TRACE_CALL, "%s: %s: %s", drv->name, slot, fl_status_name(status));
    }
    return status;
}

/* The same for a slot that asks whether work is done: "not ready" is an answer, without words. */
static fl_status checked_answer(const fl_driver *drv, const char *slot, uint32_t before,
                                fl_status status) {
    if (status != FL_NOT_READY) {
        return checked(drv, slot, before, status);
    }
    if (fl__trace_on(FL_TRACE_CALL)) {
        fl_trace(FL_TRACE_CALL, "%s: %s: %s", drv->name, slot, fl_status_name(status));
    }
    return status;
}

static fl_status fail_missing(const fl_driver *drv, const char *what) {
    return fl_fail(FL_NOT_SUPPORTED, "driver %s cannot do this: it has no %s", drv->name, what);
}

static bool is_device(fl_device device) {
    return device >= 0 && device < FL_DEVICE_MAX;
}

static bool is_kind(fl_copy_kind kind) {
    return (unsigned)kind <= FL_COPY_DEVICE_TO_DEVICE;
}

/* --- devices --------------------------------------------------------------------------------- */

fl_status fl__drv_init(const fl_driver *drv) {
    uint32_t before = fl__failures;
    return checked(drv, "init", before, drv->init(drv->ctx));
}

fl_status fl__drv_device_count(const fl_driver *drv, int32_t *out_count) {
    int32_t count = 0;
    uint32_t before = fl__failures;
    FL_TRY(checked(drv, "device_count", before, drv->device_count(drv->ctx, &count)));
    if (count < 0) {
        return fl_fail(FL_INTERNAL, "driver %s: device_count says %d", drv->name, count);
    }
    if (count > FL_DEVICE_MAX) {
        fl_trace(FL_TRACE_DRIVER, "%s has %d devices, the first %d are used", drv->name, count,
                 FL_DEVICE_MAX);
        count = FL_DEVICE_MAX;
    }
    *out_count = count;
    return FL_OK;
}

/* A vendor's text in a field: one that fills it may have been cut, and by bytes. */
static void own_text(char *field, size_t size) {
    bool may_be_cut = memchr(field, '\0', size - 1) == NULL;
    field[size - 1] = '\0';
    fl__text_mend(field, may_be_cut);
}

fl_status fl__drv_device_properties(const fl_driver *drv, fl_device device,
                                    fl_device_properties *out) {
    FL_ASSERT(is_device(device) && out);
    fl_device_properties properties;
    memset(&properties, 0, sizeof(properties));
    uint32_t before = fl__failures;
    FL_TRY(checked(drv, "device_properties", before,
                   drv->device_properties(drv->ctx, device, &properties)));
    own_text(properties.name, sizeof(properties.name));
    own_text(properties.uuid, sizeof(properties.uuid));
    if (properties.name[0] == '\0') {
        (void)fl__text_print(properties.name, sizeof(properties.name), "%s device", drv->name);
    }
    *out = properties;
    return FL_OK;
}

fl_status fl__drv_device_synchronize(const fl_driver *drv, fl_device device) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "device_synchronize", before, drv->device_synchronize(drv->ctx, device));
}

/* --- memory ---------------------------------------------------------------------------------- */

fl_status fl__drv_mem_alloc(const fl_driver *drv, fl_device device, size_t bytes, void **out_ptr) {
    FL_ASSERT(is_device(device) && out_ptr);
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    void *ptr = NULL;
    uint32_t before = fl__failures;
    FL_TRY(checked(drv, "mem_alloc", before, drv->mem_alloc(drv->ctx, device, bytes, &ptr)));
    if (!ptr) {
        return fl_fail(FL_INTERNAL, "driver %s: mem_alloc of %zu bytes gave NULL and success",
                       drv->name, bytes);
    }
    fl_trace(FL_TRACE_MEMORY, "%s:%d: mem_alloc %zu bytes: %p", drv->name, device, bytes, ptr);
    *out_ptr = ptr;
    return FL_OK;
}

fl_status fl__drv_mem_free(const fl_driver *drv, fl_device device, void *ptr) {
    FL_ASSERT(is_device(device));
    if (!ptr) {
        return FL_OK;
    }
    fl_trace(FL_TRACE_MEMORY, "%s:%d: mem_free %p", drv->name, device, ptr);
    uint32_t before = fl__failures;
    return checked(drv, "mem_free", before, drv->mem_free(drv->ctx, device, ptr));
}

fl_status fl__drv_host_alloc(const fl_driver *drv, size_t bytes, void **out_ptr) {
    FL_ASSERT(out_ptr);
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    void *ptr = NULL;
    uint32_t before = fl__failures;
    FL_TRY(checked(drv, "host_alloc", before, drv->host_alloc(drv->ctx, bytes, &ptr)));
    if (!ptr) {
        return fl_fail(FL_INTERNAL, "driver %s: host_alloc of %zu bytes gave NULL and success",
                       drv->name, bytes);
    }
    *out_ptr = ptr;
    return FL_OK;
}

fl_status fl__drv_host_free(const fl_driver *drv, void *ptr) {
    if (!ptr) {
        return FL_OK;
    }
    uint32_t before = fl__failures;
    return checked(drv, "host_free", before, drv->host_free(drv->ctx, ptr));
}

fl_status fl__drv_mem_info(const fl_driver *drv, fl_device device, uint64_t *out_free,
                           uint64_t *out_total) {
    FL_ASSERT(is_device(device) && out_free && out_total);
    if (!drv->mem_info) {
        return fail_missing(drv, "memory information");
    }
    uint32_t before = fl__failures;
    uint64_t available = 0, total = 0;
    FL_TRY(checked(drv, "mem_info", before, drv->mem_info(drv->ctx, device, &available, &total)));
    if (available > total) {
        return fl_fail(FL_INTERNAL,
                       "driver %s: mem_info says that %" PRIu64 " of %" PRIu64 " bytes are free",
                       drv->name, available, total);
    }
    *out_free = available;
    *out_total = total;
    return FL_OK;
}

fl_status fl__drv_copy(const fl_driver *drv, fl_device device, void *dst, const void *src,
                       size_t bytes, fl_copy_kind kind, fl_native_stream stream) {
    FL_ASSERT(is_device(device) && is_kind(kind));
    if (bytes == 0) {
        return FL_OK;
    }
    FL_ASSERT(dst && src);
    uint32_t before = fl__failures;
    return checked(drv, "copy", before, drv->copy(drv->ctx, device, dst, src, bytes, kind, stream));
}

fl_status fl__drv_fill(const fl_driver *drv, fl_device device, void *dst, uint8_t value,
                       size_t bytes, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    if (bytes == 0) {
        return FL_OK;
    }
    FL_ASSERT(dst);
    uint32_t before = fl__failures;
    return checked(drv, "fill", before, drv->fill(drv->ctx, device, dst, value, bytes, stream));
}

fl_status fl__drv_copy_peer(const fl_driver *drv, void *dst, fl_device dst_device, const void *src,
                            fl_device src_device, size_t bytes, fl_native_stream stream) {
    FL_ASSERT(is_device(dst_device) && is_device(src_device));
    if (bytes == 0) {
        return FL_OK;
    }
    FL_ASSERT(dst && src);
    if (!drv->copy_peer) {
        return fail_missing(drv, "copy between devices");
    }
    uint32_t before = fl__failures;
    return checked(drv, "copy_peer", before,
                   drv->copy_peer(drv->ctx, dst, dst_device, src, src_device, bytes, stream));
}

fl_status fl__drv_copy_2d(const fl_driver *drv, fl_device device, void *dst, size_t dst_pitch,
                          const void *src, size_t src_pitch, size_t width, size_t rows,
                          fl_copy_kind kind, fl_native_stream stream) {
    FL_ASSERT(is_device(device) && is_kind(kind));
    if (width == 0 || rows == 0) {
        return FL_OK;
    }
    FL_ASSERT(dst && src && (rows == 1 || (dst_pitch >= width && src_pitch >= width)));
    if (drv->copy_2d) {
        uint32_t before = fl__failures;
        return checked(drv, "copy_2d", before,
                       drv->copy_2d(drv->ctx, device, dst, dst_pitch, src, src_pitch, width, rows,
                                    kind, stream));
    }
    if (dst_pitch == width && src_pitch == width) {
        return fl__drv_copy(drv, device, dst, src, width * rows, kind, stream);
    }
    for (size_t row = 0; row < rows; row++) {
        FL_TRY(fl__drv_copy(drv, device, (char *)dst + row * dst_pitch,
                            (const char *)src + row * src_pitch, width, kind, stream));
    }
    return FL_OK;
}

fl_status fl__drv_peer_can_access(const fl_driver *drv, fl_device device, fl_device peer,
                                  bool *out_can) {
    FL_ASSERT(is_device(device) && is_device(peer) && out_can);
    if (device == peer || !drv->peer_can_access) {
        *out_can = device == peer;
        return FL_OK;
    }
    uint32_t before = fl__failures;
    return checked(drv, "peer_can_access", before,
                   drv->peer_can_access(drv->ctx, device, peer, out_can));
}

/* --- streams --------------------------------------------------------------------------------- */

fl_status fl__drv_stream_create(const fl_driver *drv, fl_device device, int32_t priority,
                                fl_native_stream *out_stream) {
    FL_ASSERT(is_device(device) && out_stream);
    uint32_t before = fl__failures;
    return checked(drv, "stream_create", before,
                   drv->stream_create(drv->ctx, device, priority, out_stream));
}

fl_status fl__drv_stream_destroy(const fl_driver *drv, fl_device device, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "stream_destroy", before, drv->stream_destroy(drv->ctx, device, stream));
}

fl_status fl__drv_stream_query(const fl_driver *drv, fl_device device, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked_answer(drv, "stream_query", before, drv->stream_query(drv->ctx, device, stream));
}

fl_status fl__drv_stream_synchronize(const fl_driver *drv, fl_device device,
                                     fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "stream_synchronize", before,
                   drv->stream_synchronize(drv->ctx, device, stream));
}

fl_status fl__drv_stream_wait_event(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                    fl_native_event event) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "stream_wait_event", before,
                   drv->stream_wait_event(drv->ctx, device, stream, event));
}

fl_status fl__drv_stream_priority_range(const fl_driver *drv, fl_device device, int32_t *out_least,
                                        int32_t *out_greatest) {
    FL_ASSERT(is_device(device) && out_least && out_greatest);
    if (!drv->stream_priority_range) {
        *out_least = 0;
        *out_greatest = 0;
        return FL_OK;
    }
    uint32_t before = fl__failures;
    return checked(drv, "stream_priority_range", before,
                   drv->stream_priority_range(drv->ctx, device, out_least, out_greatest));
}

fl_status fl__drv_stream_host_call(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                   void (*function)(void *argument), void *argument) {
    FL_ASSERT(is_device(device) && function);
    if (!drv->stream_host_call) {
        return fail_missing(drv, "host function in stream order");
    }
    uint32_t before = fl__failures;
    return checked(drv, "stream_host_call", before,
                   drv->stream_host_call(drv->ctx, device, stream, function, argument));
}

fl_status fl__drv_stream_is_capturing(const fl_driver *drv, fl_device device,
                                      fl_native_stream stream, bool *out_capturing) {
    FL_ASSERT(is_device(device) && out_capturing);
    if (!drv->stream_is_capturing) {
        *out_capturing = false;
        return FL_OK;
    }
    uint32_t before = fl__failures;
    return checked(drv, "stream_is_capturing", before,
                   drv->stream_is_capturing(drv->ctx, device, stream, out_capturing));
}

/* --- events ---------------------------------------------------------------------------------- */

fl_status fl__drv_event_create(const fl_driver *drv, fl_device device, uint32_t flags,
                               fl_native_event *out_event) {
    FL_ASSERT(is_device(device) && out_event);
    uint32_t before = fl__failures;
    return checked(drv, "event_create", before,
                   drv->event_create(drv->ctx, device, flags, out_event));
}

fl_status fl__drv_event_destroy(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "event_destroy", before, drv->event_destroy(drv->ctx, device, event));
}

fl_status fl__drv_event_record(const fl_driver *drv, fl_device device, fl_native_event event,
                               fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "event_record", before, drv->event_record(drv->ctx, device, event, stream));
}

fl_status fl__drv_event_query(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked_answer(drv, "event_query", before, drv->event_query(drv->ctx, device, event));
}

fl_status fl__drv_event_synchronize(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    uint32_t before = fl__failures;
    return checked(drv, "event_synchronize", before,
                   drv->event_synchronize(drv->ctx, device, event));
}

fl_status fl__drv_event_elapsed_ms(const fl_driver *drv, fl_device device, fl_native_event start,
                                   fl_native_event end, double *out_ms) {
    FL_ASSERT(is_device(device) && out_ms);
    if (!drv->event_elapsed_ms) {
        return fail_missing(drv, "elapsed time between events");
    }
    uint32_t before = fl__failures;
    return checked_answer(drv, "event_elapsed_ms", before,
                          drv->event_elapsed_ms(drv->ctx, device, start, end, out_ms));
}

/* --- code ------------------------------------------------------------------------------------ */

fl_status fl__drv_module_load(const fl_driver *drv, fl_device device, const void *image,
                              size_t bytes, void **out_module) {
    FL_ASSERT(is_device(device) && image && bytes > 0 && out_module);
    if (!drv->module_load) {
        return fail_missing(drv, "loader of code objects");
    }
    uint32_t before = fl__failures;
    return checked(drv, "module_load", before,
                   drv->module_load(drv->ctx, device, image, bytes, out_module));
}

fl_status fl__drv_module_function(const fl_driver *drv, fl_device device, void *module,
                                  const char *name, void **out_function) {
    FL_ASSERT(is_device(device) && name && out_function);
    if (!drv->module_function) {
        return fail_missing(drv, "look-up of functions in code objects");
    }
    uint32_t before = fl__failures;
    return checked(drv, "module_function", before,
                   drv->module_function(drv->ctx, device, module, name, out_function));
}

fl_status fl__drv_launch(const fl_driver *drv, fl_device device, void *function,
                         const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                         fl_native_stream stream, void **arguments) {
    FL_ASSERT(is_device(device) && function);
    if (!drv->launch) {
        return fail_missing(drv, "launch of loaded functions");
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
        return FL_OK;
    }
    uint32_t before = fl__failures;
    return checked(
        drv, "launch", before,
        drv->launch(drv->ctx, device, function, grid, block, shared_bytes, stream, arguments));
}
