/*
 * ascend.c: a driver over AscendCL: library, errors and devices.
 *
 * AscendCL differs from CUDA's shape in most places: it must be initialised, a thread has no device
 * until it sets one, sizes of 0 and NULL are errors, a free orders nothing, copies take the room
 * behind the destination and refuse host to host. Memory is in ascend_memory.c, streams and
 * events are in ascend_streams.c. Must not know other vendors.
 */
#include "driver/ascend_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/thread.h"
#include "driver/library.h"
#include "driver/vendors.h"

fl__acl_calls fl__acl;

/* --- errors ----------------------------------------------------------------------------------- */

static fl_status status_of(int code) {
    switch (code) {
    case 207001: /* memory */
    case 207018: /* memory of the device */
    case 200000: /* memory of the host */
        return FL_OUT_OF_MEMORY;
    case 107001:
    case 200002:
        return FL_OUT_OF_RANGE;
    case 100001: /* not initialised */
    case 100039: /* a link stub in the library's place */
    case 207004: /* no device */
        return FL_UNAVAILABLE;
    case 207000:
    case 200001:
        return FL_NOT_SUPPORTED;
    case 507004: /* a stream, an event that has not finished */
    case 507006:
        return FL_NOT_READY;
    case 100000:
    case 107000:
    case 107003: /* a stream of another context */
    case 107006: /* an event without a time */
    case 107007:
    case 107017: /* an invalid handle */
        return FL_INVALID_ARGUMENT;
    case 507010: /* lost heartbeat, an exception in a core, memory errors */
    case 507015:
    case 507053:
    case 507054:
        return FL_DEVICE_LOST;
    default:
        return FL_DEVICE_ERROR;
    }
}

/* Takes what the runtime has kept of a failure, so that nobody finds it later. */
const char *fl__acl_take_words(void) {
    const char *words = fl__acl.recent_message ? fl__acl.recent_message() : NULL;
    if (fl__acl.last_error) {
        enum { THREAD_LEVEL = 0 };
        (void)fl__acl.last_error(THREAD_LEVEL);
    }
    return words && *words ? words : "no text";
}

/* The functions that may say "not ready" about work. From any other one it is a failure. */
static bool may_be_not_ready(const char *function) {
    return strcmp(function, "aclrtStreamQuery") == 0 ||
           strcmp(function, "aclrtQueryEventStatus") == 0 ||
           strcmp(function, "aclrtEventElapsedTime") == 0;
}

static fl_status failed(int code, const char *function, const char *what, va_list arguments) {
    fl_status status = status_of(code);
    const char *words = fl__acl_take_words();
    if (status == FL_NOT_READY && may_be_not_ready(function)) {
        return status;
    }
    if (status == FL_NOT_READY) {
        status = FL_INTERNAL;
    }
    char did[256];
    (void)fl__text_vprint(did, sizeof(did), what, arguments);
    return fl_fail_vendor(status, code, "ascend: %s%s: %s (%d)", did, function, words, code);
}

fl_status fl__acl_failed(int code, const char *function, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    fl_status status = failed(code, function, what, arguments);
    va_end(arguments);
    return status;
}

/* --- the current device ----------------------------------------------------------------------- */

fl_status fl__acl_enter(fl_device device, int32_t *out_previous) {
    int32_t previous = FL__ACL_NO_DEVICE;
    *out_previous = FL__ACL_NO_DEVICE;
    if (fl__acl.get_device(&previous) != 0) {
        previous = FL__ACL_NO_DEVICE; /* The thread never set one. */
        (void)fl__acl_take_words();
    }
    if (previous == device) {
        return FL_OK;
    }
    int code = fl__acl.set_device(device);
    if (code) {
        return fl__acl_failed(code, "aclrtSetDevice", "making device %d current: ", device);
    }
    *out_previous = previous;
    return FL_OK;
}

void fl__acl_leave(int32_t previous) {
    if (previous != FL__ACL_NO_DEVICE && fl__acl.set_device(previous) != 0) {
        (void)fl__acl_take_words();
    }
}

fl_status fl__acl_finish(int32_t previous, int code, const char *function, const char *what, ...) {
    fl_status status = FL_OK;
    if (__builtin_expect(code != 0, 0)) {
        va_list arguments;
        va_start(arguments, what);
        status = failed(code, function, what, arguments);
        va_end(arguments);
    }
    fl__acl_leave(previous);
    return status;
}

/* --- devices ---------------------------------------------------------------------------------- */

static fl_status slot_init(void *ctx) {
    (void)ctx;
    enum { ALREADY_INITIALISED = 100002 };
    int code = fl__acl.init(NULL);
    if (code == ALREADY_INITIALISED) {
        (void)fl__acl_take_words(); /* Another framework came first. */
        return FL_OK;
    }
    return code ? fl__acl_failed(code, "aclInit", "initialising: ") : FL_OK;
}

static fl_status slot_device_count(void *ctx, int32_t *out_count) {
    (void)ctx;
    enum { NO_DEVICES = 207004 };
    uint32_t count = 0;
    int code = fl__acl.device_count(&count);
    if (code == NO_DEVICES) {
        (void)fl__acl_take_words();
        count = 0;
    } else if (code) {
        return fl__acl_failed(code, "aclrtGetDeviceCount", "counting devices: ");
    }
    *out_count = (int32_t)count;
    return FL_OK;
}

/* 0 where the runtime does not know the attribute. */
static int64_t device_info(fl_device device, int attribute) {
    int64_t value = 0;
    if (fl__acl.device_info && fl__acl.device_info((uint32_t)device, attribute, &value) != 0) {
        (void)fl__acl_take_words();
        value = 0;
    }
    return value;
}

static fl_status slot_mem_info(void *ctx, fl_device device, uint64_t *out_free,
                               uint64_t *out_total) {
    (void)ctx;
    enum { HIGH_BANDWIDTH_MEMORY = 1 }; /* Stands for the other kind where there is none. */
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    size_t available = 0, total = 0;
    int code = fl__acl.mem_info(HIGH_BANDWIDTH_MEMORY, &available, &total);
    fl_status status = fl__acl_finish(previous, code, "aclrtGetMemInfo",
                                      "asking for the free memory of device %d: ", device);
    if (status == FL_OK) {
        *out_free = available;
        *out_total = total;
    }
    return status;
}

static fl_status slot_device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    enum { AI_CORES = 101, TOTAL_MEMORY = 301 };
    memset(out, 0, sizeof(*out));
    const char *name = fl__acl.soc_name ? fl__acl.soc_name() : NULL;
    (void)fl__text_print(out->name, sizeof(out->name), "%s", name && *name ? name : "Ascend");
    out->processor_count = (int32_t)device_info(device, AI_CORES);
    out->total_memory = (uint64_t)device_info(device, TOTAL_MEMORY);
    uint64_t available = 0;
    if (out->total_memory == 0 && fl__acl.mem_info) {
        FL_TRY(slot_mem_info(ctx, device, &available, &out->total_memory));
    }
    return FL_OK;
}

static fl_status slot_device_synchronize(void *ctx, fl_device device) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.synchronize_device(), "aclrtSynchronizeDevice",
                          "waiting for device %d: ", device);
}

/* --- the library ------------------------------------------------------------------------------ */

static const char *const libraries[] = {"libascendcl.so", "libacl_rt.so"};
static const char *const directories[] = {
    "$ASCEND_HOME_PATH/lib64",
    "$ASCEND_TOOLKIT_HOME/lib64",
    "$ASCEND_HOME/lib64",
    "/usr/local/Ascend/cann/lib64",
    "/usr/local/Ascend/ascend-toolkit/latest/lib64",
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
#define FL_ACL(field, symbol, result, parameters, need)                                            \
    address = fl__dl_symbol(library, symbol);                                                      \
    memcpy(&fl__acl.field, &address, sizeof(address));                                             \
    if (!address && need == REQUIRED && used < sizeof(missing)) {                                  \
        used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", used ? ", " : "", \
                                 symbol);                                                          \
    }
#include "driver/ascend.inc"
#undef FL_ACL
    if (used) {
        return fl_fail(FL_UNAVAILABLE, "%s has no symbol %s", library->name, missing);
    }
    return FL_OK;
}

static void make_table(void) {
    table = (fl_driver){
        .struct_size = sizeof(fl_driver),
        .version = FL_DRIVER_VERSION,
        .name = "ascend",
        .ctx = NULL,
        .capabilities = 0,
        .init = slot_init,
        .device_count = slot_device_count,
        .device_properties = slot_device_properties,
        .device_synchronize = slot_device_synchronize,
        .mem_info = fl__acl.mem_info ? slot_mem_info : NULL,
        .module_load = NULL,
        .module_function = NULL,
        .launch = NULL,
        .limits = NULL,
    };
    fl__acl_memory_slots(&table);
    fl__acl_stream_slots(&table);
}

static fl_status open_library(const fl_platform *platform, const fl_driver **out_driver) {
    fl_status status = FL_OK;
    fl__lock(&lock);
    if (!is_loaded) {
        const fl__library_search search = {
            .maker = "Huawei Ascend",
            .platform = platform->name,
            .names = libraries,
            .max_names = sizeof(libraries) / sizeof(libraries[0]),
            .directories = directories,
            .max_directories = sizeof(directories) / sizeof(directories[0]),
            .directories_first = false,
        };
        fl__dl library; /* Never closed: it starts threads. */
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
    FL_TRY(slot_init(NULL));
    int32_t count = 0;
    FL_TRY(slot_device_count(NULL, &count));
    if (count == 0) {
        return fl_fail(FL_UNAVAILABLE, "AscendCL is there, but it sees no device");
    }
    return FL_OK;
}

const fl_platform fl__platform_ascend = {
    .name = "ascend",
    .twin = FL_TWIN_NONE,
    .probe_order = 20,
    .probe = probe,
    .open = open_library,
    .data = NULL,
};
