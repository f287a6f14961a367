/*
 * host.c: the host as a device: one device, host memory, everything done when a call returns.
 *
 * A stream is a token that only tells streams apart; NULL is a stream too. An event keeps the time
 * of its last record. Relies on libc and /proc. Does not know PyTorch, whose CPU kernels work on
 * this memory.
 */
#define _GNU_SOURCE /* aligned_alloc with glibc's sysconf names */
#include "driver/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

/* What the driver contract asks of device blocks. */
enum { BLOCK_ALIGNMENT = 256 };

typedef struct host_stream {
    int32_t priority;
} host_stream;

typedef struct host_event {
    uint64_t recorded_ns; /* 0: never recorded. Atomic. */
} host_event;

/* --- the machine ----------------------------------------------------------------------------- */

/* The first line of `path` that begins with `key`; what follows the colon, without blanks. */
static bool read_field(const char *path, const char *key, char *out, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file) {
        return false;
    }
    char line[512];
    bool found = false;
    size_t key_length = strlen(key);
    while (!found && fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        if (colon && strncmp(line, key, key_length) == 0) {
            const char *value = colon + 1;
            value += strspn(value, " \t");
            size_t length = strcspn(value, "\n");
            length = length < size ? length : size - 1;
            memcpy(out, value, length);
            out[length] = '\0';
            found = length > 0;
        }
    }
    (void)fclose(file);
    return found;
}

void fl__host_processor_name(char *out_name, size_t size) {
    if (!read_field("/proc/cpuinfo", "model name", out_name, size) &&
        !read_field("/proc/cpuinfo", "Model", out_name, size)) {
        (void)snprintf(out_name, size, "CPU");
    }
}

/* "16384 kB" to bytes. */
static uint64_t read_kilobytes(const char *key) {
    char text[64];
    if (!read_field("/proc/meminfo", key, text, sizeof(text))) {
        return 0;
    }
    return strtoull(text, NULL, 10) * 1024u;
}

void fl__host_memory(uint64_t *out_free, uint64_t *out_total) {
    uint64_t total = read_kilobytes("MemTotal");
    uint64_t available = read_kilobytes("MemAvailable");
    if (total == 0) {
        long pages = sysconf(_SC_PHYS_PAGES);
        long free_pages = sysconf(_SC_AVPHYS_PAGES);
        long page = sysconf(_SC_PAGESIZE);
        total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
        available = free_pages > 0 && page > 0 ? (uint64_t)free_pages * (uint64_t)page : 0;
    }
    *out_total = total;
    *out_free = available < total ? available : total;
}

/* --- devices --------------------------------------------------------------------------------- */

static fl_status host_init(void *ctx) {
    (void)ctx;
    return FL_OK;
}

static fl_status host_device_count(void *ctx, int32_t *out_count) {
    (void)ctx;
    *out_count = 1;
    return FL_OK;
}

static fl_status host_device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    (void)device;
    uint64_t available = 0;
    fl__host_processor_name(out->name, sizeof(out->name));
    fl__host_memory(&available, &out->total_memory);
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    out->processor_count = threads > 0 ? (int32_t)threads : 0;
    out->integrated = true;
    return FL_OK;
}

static fl_status host_device_synchronize(void *ctx, fl_device device) {
    (void)ctx;
    (void)device;
    return FL_OK;
}

/* --- memory ---------------------------------------------------------------------------------- */

static fl_status allocate(const char *what, size_t bytes, void **out_ptr) {
    void *ptr = NULL;
    int error = posix_memalign(&ptr, BLOCK_ALIGNMENT, bytes);
    if (error != 0) {
        return fl_fail_vendor(FL_OUT_OF_MEMORY, error, "%s of %zu bytes: posix_memalign: %s", what,
                              bytes, strerror(error));
    }
    *out_ptr = ptr;
    return FL_OK;
}

static fl_status host_mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr) {
    (void)ctx;
    (void)device;
    return allocate("device memory", bytes, out_ptr);
}

static fl_status host_mem_free(void *ctx, fl_device device, void *ptr) {
    (void)ctx;
    (void)device;
    free(ptr);
    return FL_OK;
}

static fl_status host_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    (void)ctx;
    return allocate("host memory", bytes, out_ptr);
}

static fl_status host_host_free(void *ctx, void *ptr) {
    (void)ctx;
    free(ptr);
    return FL_OK;
}

static fl_status host_mem_info(void *ctx, fl_device device, uint64_t *out_free,
                               uint64_t *out_total) {
    (void)ctx;
    (void)device;
    fl__host_memory(out_free, out_total);
    if (*out_total == 0) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "host: neither /proc/meminfo nor sysconf tells the memory");
    }
    return FL_OK;
}

static fl_status host_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                           fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)kind;
    (void)stream;
    memcpy(dst, src, bytes);
    return FL_OK;
}

static fl_status host_copy_peer(void *ctx, void *dst, fl_device dst_device, const void *src,
                                fl_device src_device, size_t bytes, fl_native_stream stream) {
    (void)dst_device;
    return host_copy(ctx, src_device, dst, src, bytes, FL_COPY_DEVICE_TO_DEVICE, stream);
}

static fl_status host_copy_2d(void *ctx, fl_device device, void *dst, size_t dst_pitch,
                              const void *src, size_t src_pitch, size_t width, size_t rows,
                              fl_copy_kind kind, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)kind;
    (void)stream;
    for (size_t row = 0; row < rows; row++) {
        memcpy((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch, width);
    }
    return FL_OK;
}

static fl_status host_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                           fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)stream;
    memset(dst, value, bytes);
    return FL_OK;
}

static fl_status host_peer_can_access(void *ctx, fl_device device, fl_device peer, bool *out_can) {
    (void)ctx;
    *out_can = device == peer;
    return FL_OK;
}

/* --- streams --------------------------------------------------------------------------------- */

static fl_status host_stream_create(void *ctx, fl_device device, int32_t priority,
                                    fl_native_stream *out_stream) {
    (void)ctx;
    (void)device;
    host_stream *stream = malloc(sizeof(*stream));
    if (!stream) {
        return fl_fail(FL_OUT_OF_MEMORY, "host: no memory for a stream");
    }
    *stream = (host_stream){.priority = priority};
    *out_stream = stream;
    return FL_OK;
}

static fl_status host_stream_destroy(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    free(stream);
    return FL_OK;
}

/* Query and synchronise: there is never work that has not run. */
static fl_status host_stream_done(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)stream;
    return FL_OK;
}

static fl_status host_stream_priority_range(void *ctx, fl_device device, int32_t *out_least,
                                            int32_t *out_greatest) {
    (void)ctx;
    (void)device;
    *out_least = 0;
    *out_greatest = 0;
    return FL_OK;
}

static fl_status host_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                        fl_native_event event) {
    (void)ctx;
    (void)device;
    (void)stream;
    (void)event;
    return FL_OK;
}

static fl_status host_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                       void (*function)(void *argument), void *argument) {
    (void)ctx;
    (void)device;
    (void)stream;
    function(argument);
    return FL_OK;
}

static fl_status host_stream_is_capturing(void *ctx, fl_device device, fl_native_stream stream,
                                          bool *out_capturing) {
    (void)ctx;
    (void)device;
    (void)stream;
    *out_capturing = false;
    return FL_OK;
}

/* --- events ---------------------------------------------------------------------------------- */

static fl_status host_event_create(void *ctx, fl_device device, uint32_t flags,
                                   fl_native_event *out_event) {
    (void)ctx;
    (void)device;
    (void)flags;
    host_event *event = malloc(sizeof(*event));
    if (!event) {
        return fl_fail(FL_OUT_OF_MEMORY, "host: no memory for an event");
    }
    *event = (host_event){.recorded_ns = 0};
    *out_event = event;
    return FL_OK;
}

static fl_status host_event_destroy(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    (void)device;
    free(event);
    return FL_OK;
}

static fl_status host_event_record(void *ctx, fl_device device, fl_native_event event,
                                   fl_native_stream stream) {
    (void)ctx;
    (void)device;
    (void)stream;
    host_event *recorded = event;
    __atomic_store_n(&recorded->recorded_ns, fl__now_ns(), __ATOMIC_RELEASE);
    return FL_OK;
}

/* Query and synchronise. */
static fl_status host_event_done(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    (void)device;
    (void)event;
    return FL_OK;
}

static fl_status host_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                       fl_native_event end, double *out_ms) {
    (void)ctx;
    (void)device;
    const host_event *first = start;
    const host_event *last = end;
    uint64_t first_ns = __atomic_load_n(&first->recorded_ns, __ATOMIC_ACQUIRE);
    uint64_t last_ns = __atomic_load_n(&last->recorded_ns, __ATOMIC_ACQUIRE);
    if (first_ns == 0 || last_ns == 0) {
        return fl_fail(FL_INVALID_ARGUMENT, "host: elapsed time of an event that was not recorded");
    }
    *out_ms = ((double)last_ns - (double)first_ns) * 1e-6;
    return FL_OK;
}

/* --- the table ------------------------------------------------------------------------------- */

static const fl_driver host_driver = {
    .struct_size = sizeof(fl_driver),
    .version = FL_DRIVER_VERSION,
    .name = "host",
    .ctx = NULL,
    .capabilities = FL_CAP_HOST_READS_DEVICE | FL_CAP_SYNCHRONOUS | FL_CAP_HOST_FUNCTIONS |
                    FL_CAP_DEFAULT_STREAM,
    .init = host_init,
    .device_count = host_device_count,
    .device_properties = host_device_properties,
    .device_synchronize = host_device_synchronize,
    .mem_alloc = host_mem_alloc,
    .mem_free = host_mem_free,
    .host_alloc = host_host_alloc,
    .host_free = host_host_free,
    .copy = host_copy,
    .fill = host_fill,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_query = host_stream_done,
    .stream_synchronize = host_stream_done,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_query = host_event_done,
    .event_synchronize = host_event_done,
    .stream_wait_event = host_stream_wait_event,
    .mem_info = host_mem_info,
    .stream_priority_range = host_stream_priority_range,
    .event_elapsed_ms = host_event_elapsed_ms,
    .peer_can_access = host_peer_can_access,
    .copy_peer = host_copy_peer,
    .copy_2d = host_copy_2d,
    .stream_host_call = host_stream_host_call,
    .stream_is_capturing = host_stream_is_capturing,
    .module_load = NULL, /* Code objects are for devices. */
    .module_function = NULL,
    .launch = NULL,
    .limits = NULL,
};

static fl_status cpu_probe(const fl_platform *platform) {
    (void)platform;
    return FL_OK;
}

static fl_status cpu_open(const fl_platform *platform, const fl_driver **out_driver) {
    (void)platform;
    *out_driver = &host_driver;
    return FL_OK;
}

/* Last in probe order: it works everywhere, so nothing behind it would ever be chosen. */
const fl_platform fl__platform_cpu = {
    .name = "cpu",
    .twin = FL_TWIN_CPU,
    .probe_order = 1000,
    .probe = cpu_probe,
    .open = cpu_open,
    .data = NULL,
};
