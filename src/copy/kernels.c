/*
 * kernels.c: which kernel table serves the chosen driver, decided once.
 *
 * Gives the tables what they may ask of the driver. Does not know what kernels do.
 */
#include "fl/kernels.h"

#include "base/thread.h"
#include "driver/call.h"
#include "fl/debug.h"
#include "runtime/device.h"

static fl_status host_call(const void *user, fl_device device, fl_native_stream stream,
                           void (*function)(void *argument), void *argument) {
    return fl__drv_stream_host_call(user, device, stream, function, argument);
}

static fl_status module_load(const void *user, fl_device device, const void *image, size_t bytes,
                             void **out_module) {
    return fl__drv_module_load(user, device, image, bytes, out_module);
}

static fl_status module_function(const void *user, fl_device device, void *module, const char *name,
                                 void **out_function) {
    return fl__drv_module_function(user, device, module, name, out_function);
}

static fl_status launch(const void *user, fl_device device, void *function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, fl_native_stream stream,
                        void **arguments) {
    return fl__drv_launch(user, device, function, grid, block, shared_bytes, stream, arguments);
}

static fl__mutex choosing = FL__MUTEX_INIT;
static fl_kernel_services services; /* Written once, under `choosing`. */
static fl_kernels table;            /* Likewise. */
static int32_t state;               /* 0: not decided, 1: there is a table, 2: there is none. */

static fl_status choose(void) {
    fl_device device = FL_DEVICE_CURRENT;
    const fl_driver *driver;
    FL_TRY(fl__device_enter(&device, &driver));
    services = (fl_kernel_services){.user = driver};
    if (fl__drv_has_host_call(driver) && fl__drv_has(driver, FL_CAP_HOST_FUNCTIONS)) {
        services.host_call = host_call;
    }
    if (fl__drv_has_launch(driver)) {
        services.module_load = module_load;
        services.module_function = module_function;
        services.launch = launch;
    }
    fl_status status = fl_kernels_device(&services, &table);
    if (status) {
        fl_trace(FL_TRACE_COPY, "no device kernels: %s", fl_last_message());
        status = fl_kernels_host(&services, &table);
    }
    if (status) {
        fl_trace(FL_TRACE_COPY, "no host kernels: %s", fl_last_message());
    } else {
        fl_trace(FL_TRACE_COPY, "kernels of the %s", table.name);
    }
    __atomic_store_n(&state, status ? 2 : 1, __ATOMIC_RELEASE);
    return status ? FL_NOT_SUPPORTED : FL_OK;
}

fl_status fl_kernels_get(const fl_kernels **out_kernels) {
    int32_t known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (__builtin_expect(known == 0, 0)) {
        fl__lock(&choosing);
        fl_status status = FL_OK;
        if (state == 0) {
            status = choose();
        }
        known = state;
        fl__unlock(&choosing);
        if (known == 0) {
            return status; /* The driver could not be used; a later call may find it usable. */
        }
    }
    if (known != 1) {
        return FL_NOT_SUPPORTED;
    }
    *out_kernels = &table;
    return FL_OK;
}
