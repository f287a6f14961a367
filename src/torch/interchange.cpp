// interchange.cpp: see interchange.h. A storage of one label owns the storage of the other one, and
// nothing is freed but through that owner.
#include "interchange.h"

#include "allocator.h"
#include "queue.h"
#include "twin.h"

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>

namespace fl_torch {

namespace {

struct Lender {
    c10::Storage storage;
};

void give_back(void *lender) {
    delete static_cast<Lender *>(lender);
}

c10::DataPtr borrowed(const c10::Storage &storage, c10::Device device) {
    return c10::DataPtr(storage.mutable_data(), new Lender{storage}, &give_back, device);
}

c10::Storage relabelled(const c10::Storage &storage, c10::Device device) {
    c10::DataPtr pointer = borrowed(storage, device); // A lazy clone gets its own memory here.
    const c10::DataPtr &held = storage.data_ptr();
    if (held.get_deleter() == &give_back) {
        const c10::Storage &origin = static_cast<const Lender *>(held.get_context())->storage;
        if (origin.device_type() == device.type() && origin.data() == storage.data() &&
            origin.nbytes() == storage.nbytes()) {
            return origin;
        }
    }
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(pointer),
        c10::GetAllocator(device.type()), /*resizable=*/false));
}

at::Tensor with_label(const at::Tensor &self, c10::Device device, c10::DispatchKey key) {
    at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
        relabelled(self.storage(), device), c10::DispatchKeySet(key), self.dtype());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(),
                                                        self.storage_offset());
    result._set_conj(self.is_conj());
    result._set_neg(self.is_neg());
    return result;
}

void check_plain(const at::Tensor &self, c10::DeviceType type) {
    TORCH_CHECK_NOT_IMPLEMENTED(twin.present, "flagos: this platform has no twin");
    TORCH_CHECK(self.layout() == at::kStrided && !self.is_quantized() && !self.is_nested() &&
                    self.device().type() == type,
                "expected a plain dense tensor on ", c10::Device(type), ", not one on ",
                self.device());
}

} // namespace

at::Tensor as_twin(const at::Tensor &self, bool freeze) {
    check_plain(self, kFlagos);
    memory_is_known(self, Known::kShared);
    at::Tensor result = with_label(self, to_twin(self.device()), twin.key);
    if (freeze) {
        self.storage().unsafeGetStorageImpl()->set_resizable(false);
    }
    return result;
}

at::Tensor as_flagos(const at::Tensor &self) {
    check_plain(self, twin.type);
    at::Tensor result = with_label(self, to_flagos(self.device()), c10::DispatchKey::PrivateUse1);
    memory_is_known(result, Known::kShared);
    return result;
}

void move_storage(const at::Tensor &self, const at::Tensor &source) {
    check_plain(self, kFlagos);
    check_plain(source, twin.type);
    memory_is_known(self, Known::kShared);
    c10::StorageImpl *const impl = self.storage().unsafeGetStorageImpl();
    TORCH_CHECK(source.storage_offset() == 0 && source.storage().nbytes() == impl->nbytes(),
                "the source has ", source.storage().nbytes(), " bytes, not ", impl->nbytes());
    impl->set_data_ptr_noswap(borrowed(source.storage(), self.device()));
    impl->set_resizable(false);
}

} // namespace fl_torch
