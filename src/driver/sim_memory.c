/*
 * sim_memory.c: arenas, blocks and windows of the simulated device.
 *
 * An arena is memory of the kernel mapped twice, see sim_state.h. Blocks are placed first fit.
 * Small blocks are filled with a pattern when they are made and when they are freed, so that
 * uninitialised and stale reads show. Does not know tasks.
 */
#define _GNU_SOURCE /* memfd_create, fallocate */
#include "driver/sim_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

enum {
    BLOCK_ALIGNMENT = 256,
    PATTERN_MAX = 1 << 20, /* Larger blocks are not filled, to save time and memory. */
    FRESH_BYTE = 0xff,     /* A NaN in every floating-point dtype. */
    STALE_BYTE = 0xdb,
};

/* --- ranges ---------------------------------------------------------------------------------- */

/* Index of the first range that ends behind `ptr`: the one that holds it, if any does. */
static size_t ranges_place(const sim_ranges *ranges, const char *ptr) {
    size_t low = 0;
    size_t high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->rows[middle].begin + ranges->rows[middle].bytes <= ptr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The range that holds all the bytes, NULL if there is none. */
static struct sim_range *ranges_find(const sim_ranges *ranges, const char *ptr, size_t bytes) {
    size_t place = ranges_place(ranges, ptr);
    if (place == ranges->count || ranges->rows[place].begin > ptr) {
        return NULL;
    }
    struct sim_range *row = &ranges->rows[place];
    return bytes <= row->bytes - (size_t)(ptr - row->begin) ? row : NULL;
}

static fl_status ranges_insert(sim_ranges *ranges, size_t place, char *begin, size_t bytes) {
    if (ranges->count == ranges->capacity) {
        size_t capacity = ranges->capacity ? 2 * ranges->capacity : 64;
        struct sim_range *rows = realloc(ranges->rows, capacity * sizeof(*rows));
        if (!rows) {
            return fl_fail(FL_OUT_OF_MEMORY, "sim: no host memory for its table of blocks");
        }
        ranges->rows = rows;
        ranges->capacity = capacity;
    }
    memmove(&ranges->rows[place + 1], &ranges->rows[place],
            (ranges->count - place) * sizeof(ranges->rows[0]));
    ranges->rows[place] = (struct sim_range){.begin = begin, .bytes = bytes};
    ranges->count++;
    return FL_OK;
}

static void ranges_remove(sim_ranges *ranges, size_t place) {
    memmove(&ranges->rows[place], &ranges->rows[place + 1],
            (ranges->count - place - 1) * sizeof(ranges->rows[0]));
    ranges->count--;
}

/* --- arenas ---------------------------------------------------------------------------------- */

static fl_status fail_system(const char *function, size_t bytes) {
    int error = errno;
    return fl_fail_vendor(FL_OUT_OF_MEMORY, error, "sim: arena of %zu bytes: %s: %s", bytes,
                          function, strerror(error));
}

/* Under the lock: map the arena when the device is first used. */
static fl_status map_arena(sim_device *device) {
    if (device->base) {
        return FL_OK;
    }
    size_t bytes = device->bytes;
    fl_status status = FL_OK;
    int file = memfd_create("flagos-sim", MFD_CLOEXEC);
    if (file < 0) {
        return fail_system("memfd_create", bytes);
    }
    void *base = MAP_FAILED;
    void *alias = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) != 0) {
        status = fail_system("ftruncate", bytes);
        goto fail;
    }
    base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (base == MAP_FAILED) {
        status = fail_system("mmap", bytes);
        goto fail;
    }
    alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (alias == MAP_FAILED) {
        status = fail_system("mmap", bytes);
        goto fail;
    }
    (void)close(file); /* The mappings keep the memory. */
    device->base = base;
    device->alias = alias;
    return FL_OK;

fail:
    if (base != MAP_FAILED) {
        (void)munmap(base, bytes);
    }
    (void)close(file);
    return status;
}

static char *alias_of(const sim_device *device, const char *ptr) {
    return device->alias + (ptr - device->base);
}

/* -1 if the pointer is in no arena, mapped or not. */
static fl_device arena_of(const char *ptr) {
    for (int32_t i = 0; i < fl__sim.device_count; i++) {
        const sim_device *device = &fl__sim.devices[i];
        if (device->base && ptr >= device->base && ptr < device->base + device->bytes) {
            return i;
        }
    }
    return FL_DEVICE_CURRENT;
}

/* The protection changes under the lock, so that opening and closing cannot cross. Neither call can
 * fail on a mapping of ours but by exhaustion of the kernel's memory; then the next access crashes,
 * which is what the protection is for. */
static void protect(const sim_device *device, int protection) {
    (void)mprotect(device->base, device->bytes, protection);
}

void fl__sim_window_open(fl_device index) {
    fl__lock(&fl__sim.lock);
    sim_device *device = &fl__sim.devices[index];
    if (device->windows++ == 0 && device->base) {
        protect(device, PROT_READ | PROT_WRITE);
    }
    fl__unlock(&fl__sim.lock);
}

void fl__sim_window_close(fl_device index) {
    fl__lock(&fl__sim.lock);
    sim_device *device = &fl__sim.devices[index];
    FL_ASSERT(device->windows > 0);
    if (--device->windows == 0 && device->base) {
        protect(device, PROT_NONE);
    }
    fl__unlock(&fl__sim.lock);
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* Under the lock: the first gap of that size, as index into the blocks and as address. */
static bool find_gap(const sim_device *device, size_t bytes, size_t *out_place, char **out_begin) {
    char *begin = device->base;
    for (size_t i = 0; i <= device->blocks.count; i++) {
        bool is_last = i == device->blocks.count;
        char *end = is_last ? device->base + device->bytes : device->blocks.rows[i].begin;
        if ((size_t)(end - begin) >= bytes) {
            *out_place = i;
            *out_begin = begin;
            return true;
        }
        if (!is_last) {
            begin = device->blocks.rows[i].begin + device->blocks.rows[i].bytes;
        }
    }
    return false;
}

/* Under the lock. Windows that are open stay so: a fresh arena is mapped closed. */
static fl_status allocate(sim_device *device, fl_device index, size_t bytes, void **out_ptr) {
    size_t rounded = (bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    if (rounded < bytes || rounded > device->bytes - device->used) {
        return fl_fail_vendor(FL_OUT_OF_MEMORY, ENOMEM,
                              "sim: mem_alloc of %zu bytes on device %d: %zu of %zu are in use",
                              bytes, index, device->used, device->bytes);
    }
    bool was_mapped = device->base != NULL;
    FL_TRY(map_arena(device));
    if (!was_mapped && device->windows > 0) {
        protect(device, PROT_READ | PROT_WRITE);
    }
    size_t place = 0;
    char *begin = NULL;
    if (!find_gap(device, rounded, &place, &begin)) {
        return fl_fail_vendor(FL_OUT_OF_MEMORY, ENOMEM,
                              "sim: mem_alloc of %zu bytes on device %d: %zu of %zu are in use and "
                              "no gap is large enough",
                              bytes, index, device->used, device->bytes);
    }
    FL_TRY(ranges_insert(&device->blocks, place, begin, rounded));
    device->used += rounded;
    if (rounded <= PATTERN_MAX) {
        memset(alias_of(device, begin), FRESH_BYTE, rounded);
    }
    *out_ptr = begin;
    return FL_OK;
}

fl_status fl__sim_mem_alloc(void *ctx, fl_device index, size_t bytes, void **out_ptr) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("mem_alloc");
    if (!status) {
        status = allocate(&fl__sim.devices[index], index, bytes, out_ptr);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

/* Under the lock. */
static fl_status release(sim_device *device, fl_device index, char *ptr) {
    size_t place = ranges_place(&device->blocks, ptr);
    if (place == device->blocks.count || device->blocks.rows[place].begin != ptr) {
        return fl_fail(FL_INVALID_ARGUMENT, "sim: mem_free: %p is no block of device %d",
                       (void *)ptr, index);
    }
    size_t bytes = device->blocks.rows[place].bytes;
    char *alias = alias_of(device, ptr);
    if (fl__sim_is_in_use(alias, bytes)) {
        return fl_fail(FL_WRONG_STATE,
                       "sim: mem_free: queued work still uses the block %p of device %d",
                       (void *)ptr, index);
    }
    ranges_remove(&device->blocks, place);
    device->used -= bytes;
    if (bytes <= PATTERN_MAX) {
        memset(alias, STALE_BYTE, bytes);
    } else {
        /* Whole pages go back to the kernel. */
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        size_t first = ((size_t)(alias - device->alias) + page - 1) / page * page;
        size_t last = ((size_t)(alias - device->alias) + bytes) / page * page;
        (void)madvise(device->alias + first, last - first, MADV_REMOVE);
    }
    return FL_OK;
}

fl_status fl__sim_mem_free(void *ctx, fl_device index, void *ptr) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("mem_free");
    if (!status) {
        status = release(&fl__sim.devices[index], index, ptr);
    }
    fl__unlock(&fl__sim.lock);
    return status;
}

fl_status fl__sim_mem_info(void *ctx, fl_device index, uint64_t *out_free, uint64_t *out_total) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    const sim_device *device = &fl__sim.devices[index];
    *out_free = device->bytes - device->used;
    *out_total = device->bytes;
    fl__unlock(&fl__sim.lock);
    return FL_OK;
}

fl_status fl__sim_reach(fl_device index, const void *ptr, size_t bytes, const char *what,
                        char **out_address) {
    fl_device found = arena_of(ptr);
    if (found != index) {
        return found < 0 ? fl_fail(FL_INVALID_ARGUMENT, "sim: %s %p is in no memory of device %d",
                                   what, ptr, index)
                         : fl_fail(FL_INVALID_ARGUMENT, "sim: %s %p is in memory of device %d%s",
                                   what, ptr, found,
                                   index < 0 ? ", not of the host" : ", not of the one named");
    }
    if (index < 0) {
        *out_address = (char *)(uintptr_t)ptr;
        return FL_OK;
    }
    sim_device *device = &fl__sim.devices[index];
    if (!ranges_find(&device->blocks, ptr, bytes)) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "sim: %s %p with %zu bytes reaches outside of the blocks of device %d", what,
                       ptr, bytes, index);
    }
    *out_address = alias_of(device, ptr);
    return FL_OK;
}

fl_device fl__sim_device_of(const void *ptr) {
    fl__lock(&fl__sim.lock);
    fl_device index = arena_of(ptr);
    if (index >= 0 && !ranges_find(&fl__sim.devices[index].blocks, ptr, 1)) {
        index = -1;
    }
    fl__unlock(&fl__sim.lock);
    return index;
}

/* --- pinned host memory ---------------------------------------------------------------------- */

fl_status fl__sim_host_alloc(void *ctx, size_t bytes, void **out_ptr) {
    (void)ctx;
    void *ptr = NULL;
    int error = posix_memalign(&ptr, BLOCK_ALIGNMENT, bytes);
    if (error) {
        return fl_fail_vendor(FL_OUT_OF_MEMORY, error, "sim: host_alloc of %zu bytes: %s", bytes,
                              strerror(error));
    }
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("host_alloc");
    if (!status) {
        status = ranges_insert(&fl__sim.pinned, ranges_place(&fl__sim.pinned, ptr), ptr, bytes);
    }
    fl__unlock(&fl__sim.lock);
    if (status) {
        free(ptr);
        return status;
    }
    *out_ptr = ptr;
    return FL_OK;
}

fl_status fl__sim_host_free(void *ctx, void *ptr) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    fl_status status = fl__sim_may_call("host_free");
    size_t place = ranges_place(&fl__sim.pinned, ptr);
    if (!status && (place == fl__sim.pinned.count || fl__sim.pinned.rows[place].begin != ptr)) {
        status = fl_fail(FL_INVALID_ARGUMENT, "sim: host_free: %p is no pinned block", ptr);
    }
    if (!status && fl__sim_is_in_use(ptr, fl__sim.pinned.rows[place].bytes)) {
        status =
            fl_fail(FL_WRONG_STATE, "sim: host_free: queued work still uses the block %p", ptr);
    }
    if (!status) {
        ranges_remove(&fl__sim.pinned, place);
    }
    fl__unlock(&fl__sim.lock);
    if (!status) {
        free(ptr);
    }
    return status;
}

bool fl__sim_reach_pinned(const void *ptr, size_t bytes) {
    return ranges_find(&fl__sim.pinned, ptr, bytes) != NULL;
}

bool fl__sim_is_pinned(const void *ptr) {
    fl__lock(&fl__sim.lock);
    bool is_pinned = fl__sim_reach_pinned(ptr, 1);
    fl__unlock(&fl__sim.lock);
    return is_pinned;
}
