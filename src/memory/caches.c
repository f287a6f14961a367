/*
 * caches.c: one cache a device, made when the device first allocates, kept as long as the process.
 *
 * Finding a cache takes one atomic load. Knows nothing of sizes or of splitting.
 */
#include "memory/block.h"

#include "fl/debug.h"
#include "runtime/device.h"

#include <stdlib.h>

static fl__mutex making = FL__MUTEX_INIT;
static fl__cache *caches[FL_DEVICE_MAX]; /* Published with release, read with acquire. */
static int32_t top;

fl__cache *fl__cache_peek(fl_device device) {
    return __atomic_load_n(&caches[device], __ATOMIC_ACQUIRE);
}

fl_device fl__cache_top(void) {
    return __atomic_load_n(&top, __ATOMIC_ACQUIRE);
}

/* Bytes of the device, 0 if nobody says. */
static uint64_t total_of(fl_device device, const fl_driver *driver) {
    uint64_t free_bytes, total_bytes;
    if (fl__drv_mem_info(driver, device, &free_bytes, &total_bytes) == FL_OK && total_bytes) {
        return total_bytes;
    }
    const fl_device_properties *properties;
    if (fl_device_get_properties(device, &properties) == FL_OK) {
        return properties->total_memory;
    }
    return 0;
}

static fl_status create(fl_device device, const fl_driver *driver, fl__cache **out_cache) {
    fl__cache *cache = calloc(1, sizeof(*cache));
    if (!cache) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for the cache of device %d", device);
    }
    cache->device = device;
    cache->driver = driver;
    (void)pthread_mutex_init(&cache->slow, NULL);
    (void)pthread_mutex_init(&cache->mutex, NULL);
    cache->lowest = UINTPTR_MAX;
    fl__list_init(&cache->segments);
    fl__list_init(&cache->leaving);
    fl__waits_init(&cache->waits, fl__cache_waited);
    fl__slab_init(&cache->block_slab, sizeof(fl__block), 256);
    fl__slab_init(&cache->segment_slab, sizeof(fl__segment), 64);
    cache->total = total_of(device, driver);
    cache->limit = UINT64_MAX;
    cache->fraction = 1.0;
    fl_status status = fl__settings_init(cache);
    if (!status) {
        status = fl__history_init(cache);
    }
    if (status) {
        free(cache);
        return status;
    }
    *out_cache = cache;
    return FL_OK;
}

fl_status fl__cache_get(fl_device device, const fl_driver *driver, fl__cache **out_cache) {
    *out_cache = fl__cache_peek(device);
    if (__builtin_expect(*out_cache != NULL, 1)) {
        return FL_OK;
    }
    fl_status status = FL_OK;
    fl__lock(&making);
    *out_cache = fl__cache_peek(device);
    if (!*out_cache) {
        status = create(device, driver, out_cache);
        if (!status) {
            __atomic_store_n(&caches[device], *out_cache, __ATOMIC_RELEASE);
            if (device >= top) {
                __atomic_store_n(&top, device + 1, __ATOMIC_RELEASE);
            }
        }
    }
    fl__unlock(&making);
    return status;
}

fl_status fl__cache_look(fl_device *device, fl__cache **out_cache) {
    if (fl_device_is_initialized() || fl_device_in_bad_fork()) {
        const fl_driver *driver;
        FL_TRY(fl__device_enter(device, &driver));
        *out_cache = fl__cache_peek(*device);
        return FL_OK;
    }
    if (*device == FL_DEVICE_CURRENT) {
        *device = fl_device_current();
    }
    FL_TRY(fl_device_check(*device));
    *out_cache = NULL;
    return FL_OK;
}

fl_status fl__cache_home(fl__cache *cache, fl_stream stream, fl__home **out_home) {
    fl__home *home = cache->last_home;
    if (__builtin_expect(home && home->stream == stream, 1)) {
        *out_home = home;
        return FL_OK;
    }
    for (home = cache->homes; home && home->stream != stream; home = home->next) {
    }
    if (!home) {
        home = calloc(1, sizeof(*home));
        if (!home) {
            return fl_fail(FL_OUT_OF_MEMORY, "no host memory to list the blocks of a stream");
        }
        home->stream = stream;
        home->next = cache->homes;
        cache->homes = home;
    }
    *out_home = home;
    return FL_OK;
}

void fl__caches_each(void (*change)(void *user), void (*apply)(fl__cache *cache, void *user),
                     void *user) {
    fl__lock(&making);
    change(user);
    for (fl_device device = 0; device < top; device++) {
        fl__cache *cache = fl__cache_peek(device);
        if (cache) {
            fl__lock(&cache->mutex);
            apply(cache, user);
            fl__unlock(&cache->mutex);
        }
    }
    fl__unlock(&making);
}
