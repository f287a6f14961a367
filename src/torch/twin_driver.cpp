// twin_driver.cpp: PyTorch's CUDA guard and allocator under the core's driver table, so that memory
// comes from one pool and streams and devices are one truth. Reaches CUDA through c10's registries
// only. What carries no policy (properties, copies, events, launches) is the vendor runtime's own
// slot.
#include "twin_driver.h"

#include "fl/driver.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace fl_torch {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;

const c10::impl::DeviceGuardImplInterface &guard() {
    return *c10::impl::getDeviceGuardImpl(DeviceType::CUDA);
}

Device device_of(fl_device device) {
    return Device(DeviceType::CUDA, static_cast<DeviceIndex>(device));
}

// Exceptions stop here: the core is C.
template <class Call>
fl_status guarded(const char *what, const Call &call) {
    try {
        call();
        return FL_OK;
    } catch (const c10::OutOfMemoryError &error) {
        return fl_fail(FL_OUT_OF_MEMORY, "%s: %s", what, error.what_without_backtrace());
    } catch (const c10::Error &error) {
        return fl_fail(FL_DEVICE_ERROR, "%s: %s", what, error.what_without_backtrace());
    } catch (const std::exception &error) {
        return fl_fail(FL_DEVICE_ERROR, "%s: %s", what, error.what());
    }
}

// Counting devices must not initialise CUDA, or a fork afterwards has none; what needs it calls
// `initialise` itself.
fl_status init(void *) {
    return FL_OK;
}

void initialise() {
    at::globalContext().lazyInitDevice(DeviceType::CUDA);
}

fl_status device_count(void *, int32_t *out_count) {
    *out_count = guard().deviceCount(); // Never throws.
    return FL_OK;
}

fl_status device_synchronize(void *, fl_device device) {
    return guarded("waiting for a device", [&] {
        initialise();
        guard().synchronizeDevice(static_cast<DeviceIndex>(device));
    });
}

fl_status mem_alloc(void *, fl_device device, size_t bytes, void **out_ptr) {
    return guarded("allocating device memory", [&] {
        initialise();
        const c10::DeviceGuard current(device_of(device));
        *out_ptr = c10::GetAllocator(DeviceType::CUDA)->raw_allocate(bytes);
    });
}

fl_status mem_free(void *, fl_device device, void *pointer) {
    return guarded("freeing device memory", [&] {
        const c10::DeviceGuard current(device_of(device));
        c10::GetAllocator(DeviceType::CUDA)->raw_deallocate(pointer);
    });
}

fl_status stream_create(void *, fl_device device, int32_t priority, fl_native_stream *out_stream) {
    return guarded("taking a stream", [&] {
        initialise();
        *out_stream =
            guard().getStreamNativeHandle(guard().getNewStream(device_of(device), priority));
    });
}

// Streams are PyTorch's and live as long as the process.
fl_status stream_destroy(void *, fl_device, fl_native_stream) {
    return FL_OK;
}

// The table that is handed out: the runtime's, with the slots above in place of its own.
fl_driver table;

fl_status open(const fl_platform *platform, const fl_driver *runtime,
               const fl_driver **out_driver) {
    if (runtime == nullptr) {
        return fl_fail_context(
            FL_UNAVAILABLE, "platform '%s' needs its vendor's runtime library: ", platform->name);
    }
    std::memset(&table, 0, sizeof table);
    std::memcpy(&table, runtime, std::min<size_t>(sizeof table, runtime->struct_size));
    table.struct_size = sizeof table;
    table.name = platform->name;
    table.capabilities |= FL_CAP_DEFAULT_STREAM; // NULL is PyTorch's default stream.
    table.init = init;
    table.device_count = device_count;
    table.device_synchronize = device_synchronize;
    table.mem_alloc = mem_alloc;
    table.mem_free = mem_free;
    table.stream_create = stream_create;
    table.stream_destroy = stream_destroy;
    *out_driver = &table;
    return FL_OK;
}

} // namespace

void register_twin_driver() {
    if (c10::impl::hasDeviceGuardImpl(DeviceType::CUDA)) {
        (void)fl_twin_register(FL_TWIN_CUDA, open);
    }
}

} // namespace fl_torch
