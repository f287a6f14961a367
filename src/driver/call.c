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

/* Calls a slot, whose failure is checked, or one that asks whether work is done. A macro, because
 * the count of failures must be read before the driver runs, and a slot's name is a member and a
 * text. */
#define CHECKED_BY(check, drv, slot, ...)                                   \
    __extension__({                                                         \
        uint32_t before_ = fl__failures;                                    \
        check(drv, #slot, before_, (drv)->slot((drv)->ctx, ##__VA_ARGS__)); \
    })
#define CALL(drv, slot, ...) CHECKED_BY(checked, drv, slot, ##__VA_ARGS__)
#define ASK(drv, slot, ...) CHECKED_BY(checked_answer, drv, slot, ##__VA_ARGS__)

/* --- devices --------------------------------------------------------------------------------- */

fl_status fl__drv_init(const fl_driver *drv) {
    return CALL(drv, init);
}

fl_status fl__drv_device_count(const fl_driver *drv, int32_t *out_count) {
    int32_t count = 0;
    FL_TRY(CALL(drv, device_count, &count));
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

/* A vendor's text in a field: one that fills it may have been cut, and by bytes. A vendor that was
 * told to leave room for an end mark of ours fills one byte less. */
static void own_text(char *field, size_t size) {
    field[size - 1] = '\0';
    fl__text_mend(field, strlen(field) + 2 >= size);
}

fl_status fl__drv_device_properties(const fl_driver *drv, fl_device device,
                                    fl_device_properties *out) {
    FL_ASSERT(is_device(device) && out);
    fl_device_properties properties;
    memset(&properties, 0, sizeof(properties));
    FL_TRY(CALL(drv, device_properties, device, &properties));
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
    return CALL(drv, device_synchronize, device);
}

/* --- memory ---------------------------------------------------------------------------------- */

fl_status fl__drv_mem_alloc(const fl_driver *drv, fl_device device, size_t bytes, void **out_ptr) {
    FL_ASSERT(is_device(device) && out_ptr);
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    void *ptr = NULL;
    FL_TRY(CALL(drv, mem_alloc, device, bytes, &ptr));
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
    return CALL(drv, mem_free, device, ptr);
}

fl_status fl__drv_host_alloc(const fl_driver *drv, size_t bytes, void **out_ptr) {
    FL_ASSERT(out_ptr);
    if (bytes == 0) {
        *out_ptr = NULL;
        return FL_OK;
    }
    void *ptr = NULL;
    FL_TRY(CALL(drv, host_alloc, bytes, &ptr));
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
    return CALL(drv, host_free, ptr);
}

fl_status fl__drv_mem_info(const fl_driver *drv, fl_device device, uint64_t *out_free,
                           uint64_t *out_total) {
    FL_ASSERT(is_device(device) && out_free && out_total);
    if (!drv->mem_info) {
        return fail_missing(drv, "memory information");
    }
    uint64_t available = 0, total = 0;
    FL_TRY(CALL(drv, mem_info, device, &available, &total));
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
    return CALL(drv, copy, device, dst, src, bytes, kind, stream);
}

fl_status fl__drv_fill(const fl_driver *drv, fl_device device, void *dst, uint8_t value,
                       size_t bytes, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    if (bytes == 0) {
        return FL_OK;
    }
    FL_ASSERT(dst);
    return CALL(drv, fill, device, dst, value, bytes, stream);
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
    return CALL(drv, copy_peer, dst, dst_device, src, src_device, bytes, stream);
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
        return CALL(drv, copy_2d, device, dst, dst_pitch, src, src_pitch, width, rows, kind,
                    stream);
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
    return CALL(drv, peer_can_access, device, peer, out_can);
}

/* --- streams --------------------------------------------------------------------------------- */

fl_status fl__drv_stream_create(const fl_driver *drv, fl_device device, int32_t priority,
                                fl_native_stream *out_stream) {
    FL_ASSERT(is_device(device) && out_stream);
    return CALL(drv, stream_create, device, priority, out_stream);
}

fl_status fl__drv_stream_destroy(const fl_driver *drv, fl_device device, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    return CALL(drv, stream_destroy, device, stream);
}

fl_status fl__drv_stream_query(const fl_driver *drv, fl_device device, fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    return ASK(drv, stream_query, device, stream);
}

fl_status fl__drv_stream_synchronize(const fl_driver *drv, fl_device device,
                                     fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    return CALL(drv, stream_synchronize, device, stream);
}

fl_status fl__drv_stream_wait_event(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                    fl_native_event event) {
    FL_ASSERT(is_device(device));
    return CALL(drv, stream_wait_event, device, stream, event);
}

fl_status fl__drv_stream_priority_range(const fl_driver *drv, fl_device device, int32_t *out_least,
                                        int32_t *out_greatest) {
    FL_ASSERT(is_device(device) && out_least && out_greatest);
    if (!drv->stream_priority_range) {
        *out_least = 0;
        *out_greatest = 0;
        return FL_OK;
    }
    return CALL(drv, stream_priority_range, device, out_least, out_greatest);
}

fl_status fl__drv_stream_host_call(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                   void (*function)(void *argument), void *argument) {
    FL_ASSERT(is_device(device) && function);
    if (!drv->stream_host_call) {
        return fail_missing(drv, "host function in stream order");
    }
    return CALL(drv, stream_host_call, device, stream, function, argument);
}

fl_status fl__drv_stream_is_capturing(const fl_driver *drv, fl_device device,
                                      fl_native_stream stream, bool *out_capturing) {
    FL_ASSERT(is_device(device) && out_capturing);
    if (!drv->stream_is_capturing) {
        *out_capturing = false;
        return FL_OK;
    }
    return CALL(drv, stream_is_capturing, device, stream, out_capturing);
}

/* --- events ---------------------------------------------------------------------------------- */

fl_status fl__drv_event_create(const fl_driver *drv, fl_device device, uint32_t flags,
                               fl_native_event *out_event) {
    FL_ASSERT(is_device(device) && out_event);
    return CALL(drv, event_create, device, flags, out_event);
}

fl_status fl__drv_event_destroy(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    return CALL(drv, event_destroy, device, event);
}

fl_status fl__drv_event_record(const fl_driver *drv, fl_device device, fl_native_event event,
                               fl_native_stream stream) {
    FL_ASSERT(is_device(device));
    return CALL(drv, event_record, device, event, stream);
}

fl_status fl__drv_event_query(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    return ASK(drv, event_query, device, event);
}

fl_status fl__drv_event_synchronize(const fl_driver *drv, fl_device device, fl_native_event event) {
    FL_ASSERT(is_device(device));
    return CALL(drv, event_synchronize, device, event);
}

fl_status fl__drv_event_elapsed_ms(const fl_driver *drv, fl_device device, fl_native_event start,
                                   fl_native_event end, double *out_ms) {
    FL_ASSERT(is_device(device) && out_ms);
    if (!drv->event_elapsed_ms) {
        return fail_missing(drv, "elapsed time between events");
    }
    return ASK(drv, event_elapsed_ms, device, start, end, out_ms);
}

/* --- code ------------------------------------------------------------------------------------ */

fl_status fl__drv_module_load(const fl_driver *drv, fl_device device, const void *image,
                              size_t bytes, void **out_module) {
    FL_ASSERT(is_device(device) && image && bytes > 0 && out_module);
    if (!drv->module_load) {
        return fail_missing(drv, "loader of code objects");
    }
    return CALL(drv, module_load, device, image, bytes, out_module);
}

fl_status fl__drv_module_function(const fl_driver *drv, fl_device device, void *module,
                                  const char *name, void **out_function) {
    FL_ASSERT(is_device(device) && name && out_function);
    if (!drv->module_function) {
        return fail_missing(drv, "look-up of functions in code objects");
    }
    return CALL(drv, module_function, device, module, name, out_function);
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
    return CALL(drv, launch, device, function, grid, block, shared_bytes, stream, arguments);
}
