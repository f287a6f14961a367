/*
 * device.c: devices of the chosen driver, the calling thread's current one, first use, fork.
 *
 * Counting asks the driver how many devices there are and leaves no mark on the process; first use
 * of a device initialises for good, and a child that is forked after that may not go on. Relies on
 * registry.c for the choice. Does not know memory.
 */
#include "runtime/device.h"

#include <inttypes.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/registry.h"

typedef enum use_state {
    STATE_UNUSED = 0, /* Counted at most. */
    STATE_READY,      /* A device may be used. */
    STATE_FORKED,     /* A child of a process that was ready. */
} use_state;

static int state = STATE_UNUSED;             /* Atomic; a use_state. */
static int32_t device_count = -1;            /* Atomic; -1: not counted. */
static fl__mutex lock = FL__MUTEX_INIT;      /* Guards what leads to the two above. */
static bool driver_is_initialized = false;   /* Under the lock. */
static bool handlers_are_registered = false; /* Under the lock. */
static bool is_initializing = false;         /* Under the lock. */

/* Filled under the lock, published by the flag. */
static fl_device_properties properties[FL_DEVICE_MAX];
static bool properties_known[FL_DEVICE_MAX]; /* Atomic. */

static FL_THREAD_LOCAL_HOT fl_device current_device = 0;

static int load_state(void) {
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE);
}

/* --- fork ------------------------------------------------------------------------------------ */

/* Runs in the child, which has this one thread. The lock may have been held by a thread that the
 * child does not have; it is made anew instead of being taken before the fork, because a vendor's
 * initialisation, which runs under it, may fork a helper program itself. */
static void after_fork_in_child(void) {
    if (load_state() == STATE_READY || is_initializing) {
        __atomic_store_n(&state, STATE_FORKED, __ATOMIC_RELEASE);
    }
    (void)pthread_mutex_init(&lock, NULL);
}

/* Under the lock. */
static fl_status register_handlers(void) {
    if (!handlers_are_registered) {
        int error = pthread_atfork(NULL, NULL, after_fork_in_child);
        if (error) {
            return fl_fail(FL_OUT_OF_MEMORY, "pthread_atfork failed with error %d", error);
        }
        handlers_are_registered = true;
    }
    return FL_OK;
}

static fl_status fail_forked(void) {
    return fl_fail(FL_BAD_FORK,
                   "this process was forked from one that had already used a device, and cannot "
                   "use one itself; start it with the multiprocessing method \"spawn\", or do not "
                   "touch the device before forking");
}

/* --- first use ------------------------------------------------------------------------------- */

/* Under the lock; chooses the platform if nobody has. */
static fl_status count_devices(void) {
    if (__atomic_load_n(&device_count, __ATOMIC_RELAXED) >= 0) {
        return FL_OK;
    }
    FL_TRY(fl_platform_choose(NULL, NULL));
    const fl_driver *drv = fl_platform_driver();
    if (!driver_is_initialized) {
        FL_TRY(fl__drv_init(drv));
        driver_is_initialized = true;
    }
    int32_t count = 0;
    FL_TRY(fl__drv_device_count(drv, &count));
    fl_trace(FL_TRACE_DEVICE, "%s has %d device(s)", fl_platform_chosen()->name, count);
    __atomic_store_n(&device_count, count, __ATOMIC_RELEASE);
    return FL_OK;
}

/* The probe, which a platform that was asked for by name has not been put to, may know why. */
static fl_status fail_without_device(void) {
    const fl_platform *platform = fl_platform_chosen();
    bool knows = fl__platform_probe(platform) != FL_OK;
    return fl_fail(FL_UNAVAILABLE,
                   "platform %s has no device%s%s; without TORCH_FL_PLATFORM another platform is "
                   "chosen, and python -m torch_fl info says what each one lacks",
                   platform->name, knows ? ": " : "", knows ? fl_last_message() : "");
}

/* Under the lock. */
static fl_status initialize(void) {
    if (load_state() == STATE_READY) {
        return FL_OK;
    }
    FL_TRY(register_handlers());
    FL_TRY(count_devices());
    if (device_count == 0) {
        return fail_without_device();
    }
    __atomic_store_n(&state, STATE_READY, __ATOMIC_RELEASE);
    fl_trace(FL_TRACE_DEVICE, "%s is in use from now on", fl_platform_chosen()->name);
    return FL_OK;
}

fl_status fl_device_init(void) {
    int now = load_state();
    if (now == STATE_READY) {
        return FL_OK;
    }
    if (now == STATE_FORKED) {
        return fail_forked();
    }
    fl__lock(&lock);
    is_initializing = true;
    fl_status status = initialize();
    is_initializing = false;
    fl__unlock(&lock);
    return status;
}

bool fl_device_is_initialized(void) {
    return load_state() == STATE_READY;
}

bool fl_device_in_bad_fork(void) {
    return load_state() == STATE_FORKED;
}

const fl_driver *fl__device_driver(void) {
    return load_state() == STATE_READY ? fl_platform_driver() : NULL;
}

int32_t fl_device_count(void) {
    int32_t count = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
    if (count >= 0) {
        return count;
    }
    fl__lock(&lock);
    fl_status status = register_handlers();
    if (!status) {
        status = count_devices();
    }
    count = __atomic_load_n(&device_count, __ATOMIC_RELAXED);
    fl__unlock(&lock);
    if (status) {
        fl_trace(FL_TRACE_DEVICE, "no device: %s", fl_last_message());
        return 0;
    }
    return count;
}

static fl_status fail_range(fl_device device, int32_t count) {
    const fl_platform *platform = fl_platform_chosen();
    return fl_fail(FL_OUT_OF_RANGE, "device index %d is out of range: platform %s has %d device%s",
                   device, platform ? platform->name : "(none)", count, count == 1 ? "" : "s");
}

fl_status fl__device_enter(fl_device *device, const fl_driver **out_driver) {
    if (__builtin_expect(load_state() != STATE_READY, 0)) {
        FL_TRY(fl_device_init());
    }
    fl_device index = *device == FL_DEVICE_CURRENT ? current_device : *device;
    int32_t count = __atomic_load_n(&device_count, __ATOMIC_RELAXED);
    if (__builtin_expect(index < 0 || index >= count, 0)) {
        return fail_range(index, count);
    }
    *device = index;
    *out_driver = fl_platform_driver();
    return FL_OK;
}

fl_status fl_device_check(fl_device device) {
    if (__builtin_expect(load_state() == STATE_FORKED, 0)) {
        return fail_forked();
    }
    int32_t count = fl_device_count();
    return device >= 0 && device < count ? FL_OK : fail_range(device, count);
}

/* --- current --------------------------------------------------------------------------------- */

fl_device fl_device_current(void) {
    return current_device;
}

fl_status fl_device_set_current(fl_device device) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    current_device = device;
    return FL_OK;
}

/* --- questions ------------------------------------------------------------------------------- */

fl_status fl_device_get_properties(fl_device device, const fl_device_properties **out) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    fl_status status = FL_OK;
    if (!__atomic_load_n(&properties_known[device], __ATOMIC_ACQUIRE)) {
        fl__lock(&lock);
        if (!properties_known[device]) {
            status = fl__drv_device_properties(drv, device, &properties[device]);
            if (!status) {
                __atomic_store_n(&properties_known[device], true, __ATOMIC_RELEASE);
            }
        }
        fl__unlock(&lock);
    }
    if (!status) {
        *out = &properties[device];
    }
    return status;
}

fl_status fl_device_synchronize(fl_device device) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    return fl__drv_device_synchronize(drv, device);
}

fl_status fl_device_can_access_peer(fl_device device, fl_device peer, bool *out_can) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    FL_TRY(fl__device_enter(&peer, &drv));
    return fl__drv_peer_can_access(drv, device, peer, out_can);
}

fl_status fl_device_memory_info(fl_device device, uint64_t *out_free, uint64_t *out_total) {
    const fl_driver *drv = NULL;
    FL_TRY(fl__device_enter(&device, &drv));
    return fl__drv_mem_info(drv, device, out_free, out_total);
}
