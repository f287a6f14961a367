/*
 * cudalike_memory.c: devices, memory and copies of a driver over a runtime of CUDA's shape.
 *
 * Each slot makes the device current for the vendor, calls one function, and puts the thread's
 * device back, so that another framework in the process finds its own. The runtime is asked for the
 * current device each time: a value of ours would go stale when others set it. Must not know any
 * vendor; differences are in the row.
 */
#include "driver/cudalike_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* --- the current device ----------------------------------------------------------------------- */

enum { NOTHING_TO_RESTORE = -1 };

/* After a failure that is not reported: the runtime has kept it for the thread. */
static void clear(const fl__cudalike *c) {
    if (c->call.get_last_error) {
        (void)c->call.get_last_error();
    }
}

/* Going back to a device on which nobody has made a context would make one there, and take some
 * hundred megabytes of it. */
static bool has_context(const fl__cudalike *c, int device) {
    unsigned flags = 0;
    int active = 1;
    if (!c->call.context_state) {
        return true;
    }
    if (c->call.context_state(device, &flags, &active) != 0) {
        clear(c);
        return true;
    }
    return active != 0;
}

fl_status fl__cudalike_enter(const fl__cudalike *c, fl_device device, int *out_previous) {
    int previous = NOTHING_TO_RESTORE;
    *out_previous = NOTHING_TO_RESTORE;
    if (c->call.get_device(&previous) == 0) {
        if (previous == device) {
            return FL_OK;
        }
    } else {
        clear(c); /* The next call tells what is wrong, if anything is. */
        previous = NOTHING_TO_RESTORE;
    }
    int code = c->call.set_device(device);
    if (code) {
        return fl__cudalike_failed(c, code, FL__SYM_set_device,
                                   "making device %d current: ", device);
    }
    if (previous != NOTHING_TO_RESTORE && has_context(c, previous)) {
        *out_previous = previous;
    }
    return FL_OK;
}

void fl__cudalike_leave(const fl__cudalike *c, int previous) {
    if (previous != NOTHING_TO_RESTORE && c->call.set_device(previous) != 0) {
        clear(c);
    }
}

/* --- devices ---------------------------------------------------------------------------------- */

static fl_status slot_init(void *ctx) {
    const fl__cudalike *c = ctx;
    int code = c->call.init ? c->call.init(0) : 0;
    /* No device is not a failure yet: device_count says so. */
    if (code && code != 100) {
        return fl__cudalike_failed(c, code, FL__SYM_init, "initialising: ");
    }
    return FL_OK;
}

static bool means_no_device(const fl__cudalike *c, int code) {
    bool answer = code == 100;
    for (int i = 0; i < FL__ROW_ERRORS && c->row->errors[i].code; i++) {
        answer |= c->row->errors[i].code == code && c->row->errors[i].status == FL_UNAVAILABLE;
    }
    return answer;
}

static fl_status slot_device_count(void *ctx, int32_t *out_count) {
    const fl__cudalike *c = ctx;
    int count = 0;
    int code = c->call.get_device_count(&count);
    if (code && !means_no_device(c, code)) {
        return fl__cudalike_failed(c, code, FL__SYM_get_device_count, "counting devices: ");
    }
    if (code) {
        count = 0;
        clear(c);
    }
    *out_count = count;
    return FL_OK;
}

static int32_t attribute(const fl__cudalike *c, int32_t number, fl_device device) {
    int value = 0;
    if (number < 0 || !c->call.get_attribute) {
        return 0;
    }
    if (c->call.get_attribute(&value, number, device) != 0) {
        value = 0;
        clear(c);
    }
    return value;
}

static void write_uuid(const unsigned char *bytes, char *out) {
    static const char digits[] = "0123456789abcdef";
    memcpy(out, "GPU-", 4);
    out += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            *out++ = '-';
        }
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

/* Name, size and uuid from the vendor's struct, of which only a few offsets are known; its size
 * differs between versions, hence the generous room. */
static fl_status from_struct(const fl__cudalike *c, fl_device device, fl_device_properties *out) {
    _Alignas(16) char room[4096] = "";
    int code = c->call.get_properties(room, device);
    if (code) {
        return fl__cudalike_failed(c, code, FL__SYM_get_properties,
                                   "reading the properties of device %d: ", device);
    }
    memcpy(out->name, room, sizeof(out->name) - 1);
    size_t total = 0;
    memcpy(&total, room + c->row->properties_total, sizeof(total));
    out->total_memory = total;
    if (c->row->properties_uuid >= 0) {
        write_uuid((const unsigned char *)room + c->row->properties_uuid, out->uuid);
    }
    return FL_OK;
}

static fl_status from_functions(const fl__cudalike *c, fl_device device,
                                fl_device_properties *out) {
    if (c->call.get_name) {
        int code = c->call.get_name(out->name, (int)sizeof(out->name) - 1, device);
        if (code) {
            return fl__cudalike_failed(c, code, FL__SYM_get_name,
                                       "reading the name of device %d: ", device);
        }
    }
    size_t total = 0, available = 0;
    int code = 0;
    fl__cudalike_symbol asked = FL__SYM_total_memory;
    if (c->call.total_memory) {
        code = c->call.total_memory(&total, device);
    } else if (c->call.mem_info) {
        int previous;
        FL_TRY(fl__cudalike_enter(c, device, &previous));
        asked = FL__SYM_mem_info;
        code = c->call.mem_info(&available, &total);
        fl__cudalike_leave(c, previous);
    }
    if (code) {
        return fl__cudalike_failed(c, code, asked,
                                   "reading the memory size of device %d: ", device);
    }
    out->total_memory = total;
    return FL_OK;
}

static fl_status slot_device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    const fl__cudalike *c = ctx;
    memset(out, 0, sizeof(*out));
    bool readable = c->call.get_properties && c->row->properties_total >= 0;
    FL_TRY(readable ? from_struct(c, device, out) : from_functions(c, device, out));
    if (!out->name[0]) {
        (void)fl__text_print(out->name, sizeof(out->name), "%s", c->row->maker);
    }
    const fl__cudalike_attributes *number = &c->row->attributes;
    out->major = attribute(c, number->major, device);
    out->minor = attribute(c, number->minor, device);
    out->processor_count = attribute(c, number->processors, device);
    out->warp_size = attribute(c, number->warp, device);
    out->integrated = attribute(c, number->integrated, device) != 0;
    return FL_OK;
}

static fl_status slot_device_synchronize(void *ctx, fl_device device) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.device_synchronize();
    return fl__cudalike_finish(c, previous, code, FL__SYM_device_synchronize,
                               "waiting for device %d: ", device);
}

static fl_status slot_mem_info(void *ctx, fl_device device, uint64_t *out_free,
                               uint64_t *out_total) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    size_t available = 0, total = 0;
    int code = c->call.mem_info(&available, &total);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_mem_info,
                                           "asking for the free memory of device %d: ", device);
    if (status == FL_OK) {
        *out_free = available;
        *out_total = total;
    }
    return status;
}

/* --- memory ----------------------------------------------------------------------------------- */

static fl_status slot_mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    void *ptr = NULL;
    int code = c->call.malloc(&ptr, bytes);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_malloc,
                                           "allocating %zu bytes on device %d: ", bytes, device);
    if (status == FL_OK) {
        *out_ptr = ptr;
    }
    return status;
}

static fl_status slot_mem_free(void *ctx, fl_device device, void *ptr) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.free(ptr);
    return fl__cudalike_finish(c, previous, code, FL__SYM_free, "freeing %p on device %d: ", ptr,
                               device);
}

static fl_status slot_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    const fl__cudalike *c = ctx;
    enum { PORTABLE = 1 }; /* Page-locked for every device. */
    void *ptr = NULL;
    int code = c->call.host_alloc(&ptr, bytes,
                                  c->row->quirks & FL__QUIRK_HOST_FLAGS_ARE_ZERO ? 0 : PORTABLE);
    if (code) {
        return fl__cudalike_failed(c, code, FL__SYM_host_alloc,
                                   "allocating %zu bytes of page-locked memory: ", bytes);
    }
    *out_ptr = ptr;
    return FL_OK;
}

static fl_status slot_host_free(void *ctx, void *ptr) {
    const fl__cudalike *c = ctx;
    int code = c->call.host_free(ptr);
    return code ? fl__cudalike_failed(c, code, FL__SYM_host_free,
                                      "freeing page-locked memory at %p: ", ptr)
                : FL_OK;
}

static fl_status slot_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                           fl_copy_kind kind, fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.memcpy_async(dst, src, bytes, (int)kind, stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_memcpy_async,
                               "copying %zu bytes from %p to %p (kind %d) on device %d: ", bytes,
                               src, dst, (int)kind, device);
}

/* Without a fill of the runtime's: copies from pageable memory, which the runtime has read when the
 * call returns. Page-locked memory would have to be freed, which waits for the whole device. */
static int fill_from_host(const fl__cudalike *c, char *dst, uint8_t value, size_t bytes,
                          fl_native_stream stream) {
    enum { PIECE = 1 << 20, NO_MEMORY = 2 };
    size_t piece = bytes < PIECE ? bytes : PIECE;
    void *source = malloc(piece);
    if (!source) {
        return NO_MEMORY;
    }
    memset(source, value, piece);
    int code = 0;
    for (size_t done = 0; done < bytes && !code; done += piece) {
        size_t left = bytes - done;
        code = c->call.memcpy_async(dst + done, source, left < piece ? left : piece,
                                    FL_COPY_HOST_TO_DEVICE, stream);
    }
    free(source);
    return code;
}

static fl_status slot_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                           fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    bool direct = c->call.memset_async != NULL;
    int code = direct ? c->call.memset_async(dst, value, bytes, stream)
                      : fill_from_host(c, dst, value, bytes, stream);
    return fl__cudalike_finish(c, previous, code,
                               direct ? FL__SYM_memset_async : FL__SYM_memcpy_async,
                               "filling %zu bytes at %p on device %d: ", bytes, dst, device);
}

static fl_status slot_copy_2d(void *ctx, fl_device device, void *dst, size_t dst_pitch,
                              const void *src, size_t src_pitch, size_t width, size_t rows,
                              fl_copy_kind kind, fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code =
        c->call.memcpy_2d_async(dst, dst_pitch, src, src_pitch, width, rows, (int)kind, stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_memcpy_2d_async,
                               "copying %zu runs of %zu bytes (kind %d) on device %d: ", rows,
                               width, (int)kind, device);
}

/* --- peers ------------------------------------------------------------------------------------ */

static fl_status slot_peer_can_access(void *ctx, fl_device device, fl_device peer, bool *out_can) {
    const fl__cudalike *c = ctx;
    int can = 0;
    int code = c->call.can_access_peer(&can, device, peer);
    if (code) {
        return fl__cudalike_failed(c, code, FL__SYM_can_access_peer,
                                   "asking whether device %d reaches device %d: ", device, peer);
    }
    *out_can = can != 0; /* Some answer with a mask of links. */
    return FL_OK;
}

/* Asks once that `device`, which is current, may write to `peer`. A refusal only makes the copy
 * slower, so it is not reported. */
static void enable_peer(fl__cudalike *c, fl_device device, fl_device peer) {
    uint64_t bit = UINT64_C(1) << peer;
    if (!c->call.enable_peer || !c->call.can_access_peer || device == peer ||
        (atomic_load_explicit(&c->peers[device], memory_order_acquire) & bit)) {
        return;
    }
    int can = 0;
    int code = c->call.can_access_peer(&can, device, peer);
    if (!code && can) {
        code = c->call.enable_peer(peer, 0);
    }
    if (code) {
        clear(c); /* 704, enabled already, is the usual one. */
    }
    (void)atomic_fetch_or_explicit(&c->peers[device], bit, memory_order_release);
}

static fl_status slot_copy_peer(void *ctx, void *dst, fl_device dst_device, const void *src,
                                fl_device src_device, size_t bytes, fl_native_stream stream) {
    fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, src_device, &previous));
    enable_peer(c, src_device, dst_device);
    int code;
    fl__cudalike_symbol asked = FL__SYM_memcpy_peer_async;
    if (c->row->quirks & FL__QUIRK_PEER_COPY_WAITS) {
        asked = FL__SYM_stream_synchronize;
        code = c->call.stream_synchronize(stream);
        if (!code) {
            asked = FL__SYM_memcpy_peer;
            code = c->call.memcpy_peer(dst, dst_device, src, src_device, bytes);
        }
    } else {
        code = c->call.memcpy_peer_async(dst, dst_device, src, src_device, bytes, stream);
    }
    return fl__cudalike_finish(c, previous, code, asked,
                               "copying %zu bytes from device %d to %d: ", bytes, src_device,
                               dst_device);
}

void fl__cudalike_memory_slots(fl_driver *table) {
    table->init = slot_init;
    table->device_count = slot_device_count;
    table->device_properties = slot_device_properties;
    table->device_synchronize = slot_device_synchronize;
    table->mem_alloc = slot_mem_alloc;
    table->mem_free = slot_mem_free;
    table->host_alloc = slot_host_alloc;
    table->host_free = slot_host_free;
    table->copy = slot_copy;
    table->fill = slot_fill;
    table->mem_info = slot_mem_info;
    table->peer_can_access = slot_peer_can_access;
    table->copy_peer = slot_copy_peer;
    table->copy_2d = slot_copy_2d;
}
