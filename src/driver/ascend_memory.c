/*
 * ascend_memory.c: memory and copies of the driver over AscendCL. Must not know other vendors.
 */
#include "driver/ascend_table.h"

#include <stdatomic.h>
#include <string.h>

#include "driver/aligned.h"

/* --- memory ----------------------------------------------------------------------------------- */

enum { HUGE_PAGES_FIRST = 0 };

/* The runtime promises 64 bytes. A block that needs more is asked for again with room. */
static fl_status alloc_moved(fl_device device, size_t bytes, void **out_ptr) {
    void *base = NULL;
    int code = fl__acl.malloc(&base, bytes + FL__BLOCK_ALIGNMENT, HUGE_PAGES_FIRST);
    if (code) {
        return fl__acl_failed(code, "aclrtMalloc",
                              "allocating %zu bytes on device %d: ", bytes + FL__BLOCK_ALIGNMENT,
                              device);
    }
    void *ptr = fl__aligned_up(base);
    fl_status status = fl__aligned_keep(device, ptr, base);
    if (status) {
        (void)fl__acl.free(base);
        return status;
    }
    *out_ptr = ptr;
    return FL_OK;
}

/* A block that came unaligned and whose free fails is given up: the runtime refuses a pointer that
 * it has just given only when the context is gone, and the memory with it. */
static fl_status slot_mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    void *ptr = NULL;
    int code = fl__acl.malloc(&ptr, bytes, HUGE_PAGES_FIRST);
    fl_status status = FL_OK;
    if (code) {
        status = fl__acl_failed(code, "aclrtMalloc", "allocating %zu bytes on device %d: ", bytes,
                                device);
    } else if (!fl__aligned_is(ptr)) {
        code = fl__acl.free(ptr);
        status = code ? fl__acl_failed(code, "aclrtFree", "freeing %p on device %d: ", ptr, device)
                      : alloc_moved(device, bytes, &ptr);
    }
    fl__acl_leave(previous);
    if (status == FL_OK) {
        *out_ptr = ptr;
    }
    return status;
}

static fl_status slot_mem_free(void *ctx, fl_device device, void *ptr) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int code = fl__acl.free(fl__aligned_base(device, ptr));
    if (code == 0) {
        fl__aligned_forget(device, ptr);
    }
    return fl__acl_finish(previous, code, "aclrtFree", "freeing %p on device %d: ", ptr, device);
}

/* Host memory belongs to no device, but a thread needs one before it can ask. */
static fl_status enter_any(int32_t *out_previous) {
    int32_t current = FL__ACL_NO_DEVICE;
    *out_previous = FL__ACL_NO_DEVICE;
    if (fl__acl.get_device(&current) == 0) {
        return FL_OK;
    }
    (void)fl__acl_take_words();
    return fl__acl_enter(0, out_previous);
}

static fl_status slot_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    (void)ctx;
    int32_t previous;
    FL_TRY(enter_any(&previous));
    void *ptr = NULL;
    int code = fl__acl.malloc_host(&ptr, bytes);
    fl_status status = fl__acl_finish(previous, code, "aclrtMallocHost",
                                      "allocating %zu bytes of page-locked memory: ", bytes);
    if (status == FL_OK) {
        *out_ptr = ptr;
    }
    return status;
}

static fl_status slot_host_free(void *ctx, void *ptr) {
    (void)ctx;
    int32_t previous;
    FL_TRY(enter_any(&previous));
    return fl__acl_finish(previous, fl__acl.free_host(ptr), "aclrtFreeHost",
                          "freeing page-locked memory at %p: ", ptr);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* The synchronous copy waits for no stream, so the stream is waited for first. */
static int copy_and_wait(void *dst, const void *src, size_t bytes, fl_copy_kind kind,
                         fl_native_stream stream) {
    int code = fl__acl.synchronize_stream(stream);
    if (code) {
        return code;
    }
    if (kind == FL_COPY_HOST_TO_HOST) { /* Refused by the runtime, and no work of its. */
        memcpy(dst, src, bytes);
        return 0;
    }
    return fl__acl.memcpy(dst, bytes, src, bytes, (int)kind);
}

/* The header asks for 64 bytes of alignment inside a device; what the runtime makes of other
 * addresses differs between chips, so it is asked, and its refusal is answered with the synchronous
 * copy. */
static int copy(void *dst, const void *src, size_t bytes, fl_copy_kind kind,
                fl_native_stream stream) {
    enum { WRONG_PARAMETER = 107000, ALIGNMENT = 64 };
    if (kind == FL_COPY_HOST_TO_HOST) {
        return copy_and_wait(dst, src, bytes, kind, stream);
    }
    int code = fl__acl.memcpy_async(dst, bytes, src, bytes, (int)kind, stream);
    bool refused = code == WRONG_PARAMETER && kind == FL_COPY_DEVICE_TO_DEVICE &&
                   ((uintptr_t)dst | (uintptr_t)src) % ALIGNMENT != 0;
    if (refused) {
        (void)fl__acl_take_words();
        code = copy_and_wait(dst, src, bytes, kind, stream);
    }
    return code;
}

static fl_status slot_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                           fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int code = copy(dst, src, bytes, kind, stream);
    return fl__acl_finish(previous, code, "aclrtMemcpyAsync",
                          "copying %zu bytes from %p to %p (kind %d) on device %d: ", bytes, src,
                          dst, (int)kind, device);
}

static fl_status slot_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                           fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int code = fl__acl.memset_async(dst, bytes, value, bytes, stream);
    return fl__acl_finish(previous, code, "aclrtMemsetAsync",
                          "filling %zu bytes at %p on device %d: ", bytes, dst, device);
}

static fl_status slot_copy_2d(void *ctx, fl_device device, void *dst, size_t dst_pitch,
                              const void *src, size_t src_pitch, size_t width, size_t rows,
                              fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int code = 0;
    if (kind == FL_COPY_HOST_TO_HOST) {
        for (size_t row = 0; row < rows && code == 0; row++) {
            code = copy_and_wait((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch,
                                 width, kind, stream);
        }
    } else {
        code =
            fl__acl.memcpy_2d_async(dst, dst_pitch, src, src_pitch, width, rows, (int)kind, stream);
    }
    return fl__acl_finish(previous, code, "aclrtMemcpy2dAsync",
                          "copying %zu runs of %zu bytes (kind %d) on device %d: ", rows, width,
                          (int)kind, device);
}

static fl_status slot_peer_can_access(void *ctx, fl_device device, fl_device peer, bool *out_can) {
    (void)ctx;
    int32_t can = 0;
    int code = fl__acl.can_access_peer(&can, device, peer);
    if (code) {
        return fl__acl_failed(code, "aclrtDeviceCanAccessPeer",
                              "asking whether device %d reaches device %d: ", device, peer);
    }
    *out_can = can != 0;
    return FL_OK;
}

/* Bit p of entry d: access from d to p was enabled. */
static _Atomic uint64_t peers[FL_DEVICE_MAX];

/* There is no copy between devices of its own: the plain one works once access was enabled in the
 * direction of use, from the current device. */
static int enable_peer(fl_device device, fl_device peer) {
    uint64_t bit = UINT64_C(1) << peer;
    if (device == peer || (atomic_load_explicit(&peers[device], memory_order_acquire) & bit)) {
        return 0;
    }
    int code = fl__acl.enable_peer(peer, 0);
    if (code == 0) {
        (void)atomic_fetch_or_explicit(&peers[device], bit, memory_order_release);
    }
    return code;
}

static fl_status slot_copy_peer(void *ctx, void *dst, fl_device dst_device, const void *src,
                                fl_device src_device, size_t bytes, fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(src_device, &previous));
    const char *function = "aclrtDeviceEnablePeerAccess";
    int code = enable_peer(src_device, dst_device);
    if (code == 0) {
        function = "aclrtMemcpyAsync";
        code = copy(dst, src, bytes, FL_COPY_DEVICE_TO_DEVICE, stream);
    }
    return fl__acl_finish(previous, code, function,
                          "copying %zu bytes from device %d to %d: ", bytes, src_device,
                          dst_device);
}

void fl__acl_memory_slots(fl_driver *table) {
    bool has_peer = fl__acl.can_access_peer && fl__acl.enable_peer;
    table->mem_alloc = slot_mem_alloc;
    table->mem_free = slot_mem_free;
    table->host_alloc = slot_host_alloc;
    table->host_free = slot_host_free;
    table->copy = slot_copy;
    table->fill = slot_fill;
    table->peer_can_access = has_peer ? slot_peer_can_access : NULL;
    table->copy_peer = has_peer ? slot_copy_peer : NULL;
    table->copy_2d = fl__acl.memcpy_2d_async ? slot_copy_2d : NULL;
}
