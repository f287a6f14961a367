/*
 * tsingmicro.c: a driver over the TX runtime (libhpgr.so).
 *
 * Its headers are not public, and with them the numbers of its errors: what a code means is learnt
 * from the words that the runtime has for it, and the number for "not ready" may be given by the
 * option TORCH_FL_VENDOR_NOT_READY. Streams and events have no flags, host to host copies are
 * refused, fills in order came late, nothing is said about alignment or about other devices. Must
 * not know other vendors.
 */
#define _GNU_SOURCE /* strcasestr */
#include "driver/tsingmicro_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/thread.h"
#include "driver/aligned.h"
#include "driver/library.h"
#include "driver/vendors.h"
#include "fl/debug.h"

fl__tx_calls fl__tx;

/* --- errors ----------------------------------------------------------------------------------- */

static fl_status status_of(int code, const char *words) {
    static const struct {
        const char *part; /* Of the words, in whatever case. */
        fl_status status;
    } meanings[] = {
        {"not ready", FL_NOT_READY},         {"not_ready", FL_NOT_READY},
        {"notready", FL_NOT_READY},          {"out of memory", FL_OUT_OF_MEMORY},
        {"out_of_memory", FL_OUT_OF_MEMORY}, {"no memory", FL_OUT_OF_MEMORY},
        {"no device", FL_UNAVAILABLE},       {"not support", FL_NOT_SUPPORTED},
        {"not_support", FL_NOT_SUPPORTED},   {"invalid", FL_INVALID_ARGUMENT},
    };
    if (fl_option_is_set(FL_OPT_VENDOR_NOT_READY) &&
        code == (int)fl_option_int(FL_OPT_VENDOR_NOT_READY)) {
        return FL_NOT_READY;
    }
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (strcasestr(words, meanings[i].part)) {
            return meanings[i].status;
        }
    }
    return FL_DEVICE_ERROR;
}

/* The functions that may say "not ready" about work. From any other one it is a failure. */
static bool may_be_not_ready(const char *function) {
    return strcmp(function, "txStreamQuery") == 0 || strcmp(function, "txEventQuery") == 0 ||
           strcmp(function, "txEventElapsedTime") == 0;
}

static fl_status failed(int code, const char *function, const char *what, va_list arguments) {
    const char *words = fl__tx.error_string ? fl__tx.error_string(code) : NULL;
    words = words ? words : "no text";
    fl_status status = status_of(code, words);
    if (status == FL_NOT_READY && may_be_not_ready(function)) {
        return status;
    }
    if (status == FL_NOT_READY) {
        status = FL_INTERNAL;
    }
    char did[256];
    (void)fl__text_vprint(did, sizeof(did), what, arguments);
    return fl_fail_vendor(status, code, "tsingmicro: %s%s: %s (0x%x)", did, function, words,
                          (unsigned)code);
}

static fl_status fail_call(int code, const char *function, const char *what, ...) FL_PRINTF(3, 4);
static fl_status fail_call(int code, const char *function, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    fl_status status = failed(code, function, what, arguments);
    va_end(arguments);
    return status;
}

/* --- the current device ----------------------------------------------------------------------- */

enum { NOTHING_TO_RESTORE = -1 };

fl_status fl__tx_enter(fl_device device, int64_t *out_previous) {
    uint32_t current = 0;
    bool known = fl__tx.get_device(&current) == 0;
    *out_previous = NOTHING_TO_RESTORE;
    if (known && current == (uint32_t)device) {
        return FL_OK;
    }
    int code = fl__tx.set_device((uint32_t)device);
    if (code) {
        return fail_call(code, "txSetDevice", "making device %d current: ", device);
    }
    if (known) {
        *out_previous = current;
    }
    return FL_OK;
}

static void leave(int64_t previous) {
    if (previous != NOTHING_TO_RESTORE) {
        (void)fl__tx.set_device((uint32_t)previous);
    }
}

fl_status fl__tx_finish(int64_t previous, int code, const char *function, const char *what, ...) {
    fl_status status = FL_OK;
    if (__builtin_expect(code != 0, 0)) {
        va_list arguments;
        va_start(arguments, what);
        status = failed(code, function, what, arguments);
        va_end(arguments);
    }
    leave(previous);
    return status;
}

/* --- devices ---------------------------------------------------------------------------------- */

static fl_status slot_init(void *ctx) {
    (void)ctx; /* The runtime starts with its first call. */
    return FL_OK;
}

static fl_status slot_device_count(void *ctx, int32_t *out_count) {
    (void)ctx;
    uint32_t count = 0;
    int code = fl__tx.device_count(&count);
    if (code) {
        return fail_call(code, "txGetDeviceCount", "counting devices: ");
    }
    *out_count = (int32_t)count;
    return FL_OK;
}

static fl_status slot_mem_info(void *ctx, fl_device device, uint64_t *out_free,
                               uint64_t *out_total) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    uint64_t available = 0, total = 0;
    int code = fl__tx.mem_info(&available, &total);
    fl_status status = fl__tx_finish(previous, code, "txMemGetInfo",
                                     "asking for the free memory of device %d: ", device);
    if (status == FL_OK) {
        *out_free = available;
        *out_total = total;
    }
    return status;
}

/* The layout of the runtime's own properties is not public, so it is not asked. */
static fl_status slot_device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    memset(out, 0, sizeof(*out));
    (void)snprintf(out->name, sizeof(out->name), "TsingMicro TX8");
    uint64_t available = 0;
    return fl__tx.mem_info ? slot_mem_info(ctx, device, &available, &out->total_memory) : FL_OK;
}

static fl_status slot_device_synchronize(void *ctx, fl_device device) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.synchronize_device(), "txDeviceSynchronize",
                         "waiting for device %d: ", device);
}

/* --- memory ----------------------------------------------------------------------------------- */

static fl_status alloc_moved(fl_device device, size_t bytes, void **out_ptr) {
    void *base = NULL;
    int code = fl__tx.malloc(&base, bytes + FL__BLOCK_ALIGNMENT);
    if (code) {
        return fail_call(code, "txMalloc",
                         "allocating %zu bytes on device %d: ", bytes + FL__BLOCK_ALIGNMENT,
                         device);
    }
    void *ptr = fl__aligned_up(base);
    fl_status status = fl__aligned_keep(device, ptr, base);
    if (status) {
        (void)fl__tx.free(base);
        return status;
    }
    *out_ptr = ptr;
    return FL_OK;
}

/* A block that came unaligned and whose free fails is given up: the runtime refuses a pointer that
 * it has just given only when the context is gone, and the memory with it. */
static fl_status slot_mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    void *ptr = NULL;
    int code = fl__tx.malloc(&ptr, bytes);
    fl_status status = FL_OK;
    if (code) {
        status = fail_call(code, "txMalloc", "allocating %zu bytes on device %d: ", bytes, device);
    } else if (!fl__aligned_is(ptr)) {
        code = fl__tx.free(ptr);
        status = code ? fail_call(code, "txFree", "freeing %p on device %d: ", ptr, device)
                      : alloc_moved(device, bytes, &ptr);
    }
    leave(previous);
    if (status == FL_OK) {
        *out_ptr = ptr;
    }
    return status;
}

static fl_status slot_mem_free(void *ctx, fl_device device, void *ptr) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    int code = fl__tx.free(fl__aligned_base(device, ptr));
    if (code == 0) {
        fl__aligned_forget(device, ptr);
    }
    return fl__tx_finish(previous, code, "txFree", "freeing %p on device %d: ", ptr, device);
}

static fl_status slot_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    (void)ctx;
    void *ptr = NULL;
    int code = fl__tx.malloc_host(&ptr, bytes);
    if (code) {
        return fail_call(code, "txMallocHost",
                         "allocating %zu bytes of page-locked memory: ", bytes);
    }
    *out_ptr = ptr;
    return FL_OK;
}

static fl_status slot_host_free(void *ctx, void *ptr) {
    (void)ctx;
    int code = fl__tx.free_host(ptr);
    return code ? fail_call(code, "txFreeHost", "freeing page-locked memory at %p: ", ptr) : FL_OK;
}

static fl_status slot_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                           fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    const char *function = "txMemcpyAsync";
    int code;
    if (kind == FL_COPY_HOST_TO_HOST) { /* Refused by the runtime. */
        function = "txStreamSynchronize";
        code = fl__tx.synchronize_stream(stream);
        if (code == 0) {
            memcpy(dst, src, bytes);
        }
    } else {
        code = fl__tx.memcpy_async(dst, src, bytes, (int)kind, stream);
    }
    return fl__tx_finish(previous, code, function,
                         "copying %zu bytes from %p to %p (kind %d) on device %d: ", bytes, src,
                         dst, (int)kind, device);
}

/* Without a fill of the runtime's: copies from page-locked memory, which has to live until they
 * have run, so the stream is waited for. Writes which function answered. */
static int fill_from_host(char *dst, uint8_t value, size_t bytes, fl_native_stream stream,
                          const char **out_function) {
    enum { PIECE = 1 << 20 };
    size_t piece = bytes < PIECE ? bytes : PIECE;
    void *source = NULL;
    *out_function = "txMallocHost";
    int code = fl__tx.malloc_host(&source, piece);
    if (code) {
        return code;
    }
    memset(source, value, piece);
    *out_function = "txMemcpyAsync";
    for (size_t done = 0; done < bytes && !code; done += piece) {
        size_t left = bytes - done;
        code = fl__tx.memcpy_async(dst + done, source, left < piece ? left : piece,
                                   FL_COPY_HOST_TO_DEVICE, stream);
    }
    int waited = fl__tx.synchronize_stream(stream);
    if (!code && waited) {
        *out_function = "txStreamSynchronize";
        code = waited;
    }
    int freed = fl__tx.free_host(source);
    if (!code && freed) {
        *out_function = "txFreeHost";
        code = freed;
    }
    return code;
}

static fl_status slot_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                           fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    const char *function = "txMemsetAsync";
    int code = fl__tx.memset_async ? fl__tx.memset_async(dst, value, bytes, stream)
                                   : fill_from_host(dst, value, bytes, stream, &function);
    return fl__tx_finish(previous, code, function, "filling %zu bytes at %p on device %d: ", bytes,
                         dst, device);
}

/* --- the library ------------------------------------------------------------------------------ */

static const char *const libraries[] = {"libhpgr.so", "libtx_runtime.so"};
static const char *const directories[] = {"$KUIPER_ROOT/lib", "/usr/local/kuiper/lib"};

static const fl_driver_limit limits[] = {
    {"stream.priority", "the runtime has one priority"},
    {"copy.two_dimensional", "the runtime has no pitched copy"},
    {"copy.peer", "the runtime has no copy between devices"},
    {"copy.peer_order", "the runtime has no copy between devices"},
    {NULL, NULL},
};

static fl_driver table; /* Valid once is_loaded. */
static bool is_loaded;
static fl__mutex lock = FL__MUTEX_INIT;

/* Every function, the missing required ones by name. */
static fl_status find_symbols(const fl__dl *library) {
    enum need { REQUIRED, OPTIONAL };
    char missing[512] = "";
    size_t used = 0;
    void *address;
#define FL_TX(field, symbol, result, parameters, need)                                             \
    address = fl__dl_symbol(library, symbol);                                                      \
    memcpy(&fl__tx.field, &address, sizeof(address));                                              \
    if (!address && need == REQUIRED && used < sizeof(missing)) {                                  \
        used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", used ? ", " : "", \
                                 symbol);                                                          \
    }
#include "driver/tsingmicro.inc"
#undef FL_TX
    if (used) {
        return fl_fail(FL_UNAVAILABLE, "%s has no symbol %s", library->name, missing);
    }
    return FL_OK;
}

static void make_table(void) {
    table = (fl_driver){
        .struct_size = sizeof(fl_driver),
        .version = FL_DRIVER_VERSION,
        .name = "tsingmicro",
        .ctx = NULL,
        .capabilities = 0,
        .init = slot_init,
        .device_count = slot_device_count,
        .device_properties = slot_device_properties,
        .device_synchronize = slot_device_synchronize,
        .mem_alloc = slot_mem_alloc,
        .mem_free = slot_mem_free,
        .host_alloc = slot_host_alloc,
        .host_free = slot_host_free,
        .copy = slot_copy,
        .fill = slot_fill,
        .mem_info = fl__tx.mem_info ? slot_mem_info : NULL,
        .stream_priority_range = NULL,
        .peer_can_access = NULL,
        .copy_peer = NULL,
        .copy_2d = NULL,
        .stream_is_capturing = NULL,
        .module_load = NULL,
        .module_function = NULL,
        .launch = NULL,
        .limits = limits,
    };
    fl__tx_stream_slots(&table);
}

static fl_status open_library(const fl_platform *platform, const fl_driver **out_driver) {
    fl_status status = FL_OK;
    fl__lock(&lock);
    if (!is_loaded) {
        const fl__library_search search = {
            .maker = "TsingMicro",
            .platform = platform->name,
            .names = libraries,
            .max_names = sizeof(libraries) / sizeof(libraries[0]),
            .directories = directories,
            .max_directories = sizeof(directories) / sizeof(directories[0]),
            .directories_first = false,
        };
        fl__dl library; /* Never closed: it installs handlers and starts threads. */
        status = fl__library_open(&search, &library);
        if (status == FL_OK) {
            status = find_symbols(&library);
        }
        if (status == FL_OK) {
            make_table();
            is_loaded = true;
        }
    }
    fl__unlock(&lock);
    if (status == FL_OK) {
        *out_driver = &table;
    }
    return status;
}

static fl_status probe(const fl_platform *platform) {
    const fl_driver *driver = NULL;
    FL_TRY(open_library(platform, &driver));
    int32_t count = 0;
    FL_TRY(slot_device_count(NULL, &count));
    if (count == 0) {
        return fl_fail(FL_UNAVAILABLE, "the TX runtime is there, but it sees no device");
    }
    return FL_OK;
}

const fl_platform fl__platform_tsingmicro = {
    .name = "tsingmicro",
    .twin = FL_TWIN_NONE,
    .probe_order = 23,
    .probe = probe,
    .open = open_library,
    .data = NULL,
};
