// hooks.cpp: at::PrivateUse1HooksInterface for flagos: devices, generators, pinned memory, storage
// resizing. Knows nothing of operators.
#include "allocator.h"
#include "check.h"
#include "generator.h"
#include "hooks.h"
#include "pinned.h"
#include "queue.h"
#include "twin.h"

#include "fl/device.h"
#include "fl/memory.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>

namespace fl_torch {

namespace {

using c10::DeviceIndex;

struct FlagosHooks final : at::PrivateUse1HooksInterface {
    void init() const override {
        if (!twin.is_host) {
            at::globalContext().lazyInitDevice(twin.type);
        }
        check(fl_device_init());
    }
    bool isBuilt() const override {
        return true;
    }
    // Must neither throw nor make a context.
    bool isAvailable() const override {
        return deviceCount() > 0;
    }
    bool hasPrimaryContext(DeviceIndex index) const override {
        if (!twin.is_host) {
            return at::globalContext().getAcceleratorHooksInterface(twin.type).hasPrimaryContext(
                index);
        }
        return fl_device_is_initialized();
    }
    DeviceIndex deviceCount() const override {
        return static_cast<DeviceIndex>(
            twin.is_host
                ? fl_device_count()
                : at::globalContext().getAcceleratorHooksInterface(twin.type).deviceCount());
    }
    void setCurrentDevice(DeviceIndex index) const override {
        guard().setDevice(c10::Device(kFlagos, index));
    }
    DeviceIndex getCurrentDevice() const override {
        return guard().getDevice().index();
    }
    DeviceIndex exchangeDevice(DeviceIndex index) const override {
        return guard().exchangeDevice(c10::Device(kFlagos, index)).index();
    }
    // Like exchangeDevice, but without making a context where there is none yet.
    DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
        if (!twin.is_host) {
            return at::globalContext().getAcceleratorHooksInterface(twin.type).maybeExchangeDevice(
                index);
        }
        return exchangeDevice(index);
    }
    const at::Generator &getDefaultGenerator(DeviceIndex index) const override {
        return default_generator(index);
    }
    at::Generator getNewGenerator(DeviceIndex index) const override {
        return new_generator(index);
    }
    at::Device getDeviceFromPtr(void *data) const override {
        if (!twin.is_host) {
            return to_flagos(
                at::globalContext().getAcceleratorHooksInterface(twin.type).getDeviceFromPtr(data));
        }
        fl_device device = 0;
        if (!twin.present) {
            check(fl_memory_device_of(data, &device));
        }
        return c10::Device(kFlagos, static_cast<DeviceIndex>(device));
    }
    c10::Allocator *getPinnedMemoryAllocator() const override {
        return pinned_allocator();
    }
    bool isPinnedPtr(const void *data) const override {
        return is_pinned(data);
    }
    // UntypedStorage.resize_: keep what fits. The rest is as uninitialised as after any allocation.
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override {
        drain_queue(); // What is queued has the memory that is about to be replaced.
        c10::StorageImpl *const impl = storage.unsafeGetStorageImpl();
        TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
        const c10::Device device = impl->device();
        const c10::DeviceGuard device_guard(device);
        c10::DataPtr fresh =
            bytes == 0 ? c10::DataPtr(nullptr, device) : flagos_allocator().allocate(bytes);
        const size_t kept = std::min(bytes, impl->nbytes());
        if (kept != 0) {
            // As tensors of bytes, so that the copy is ordered on the current stream.
            const auto bytes_of = [&](c10::DataPtr pointer) {
                auto holder = c10::make_intrusive<c10::StorageImpl>(
                    c10::StorageImpl::use_byte_size_t(), kept, std::move(pointer),
                    &flagos_allocator(), /*resizable=*/false);
                at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
                    c10::Storage(std::move(holder)),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                    caffe2::TypeMeta::Make<uint8_t>());
                tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(kept)});
                return tensor;
            };
            const at::NoGradGuard no_grad;
            at::Tensor target = bytes_of(c10::DataPtr(fresh.get(), device));
            target.copy_(bytes_of(c10::DataPtr(const_cast<void *>(impl->data()), device)));
            drain_queue(); // These tensors do not own what they show.
        }
        impl->set_data_ptr_noswap(std::move(fresh));
        impl->set_nbytes(bytes);
    }

  private:
    static const c10::impl::DeviceGuardImplInterface &guard() {
        return *c10::impl::getDeviceGuardImpl(kFlagos);
    }
};

} // namespace

void register_hooks() {
    at::RegisterPrivateUse1HooksInterface(new FlagosHooks); // PyTorch keeps it for ever.
}

} // namespace fl_torch
