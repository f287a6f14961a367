// adopt.cpp: how what comes back from the twin becomes flagos. See shadow.h for the rules.
//
// Relies on the layout of c10::TensorImpl's protected fields, as shadow.cpp does.
#include "late_free.h"
#include "queue.h"
#include "shadow.h"
#include "special.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <unordered_map>

namespace fl_torch {

namespace {

// A window on the protected fields of tensors that are not ours to derive.
struct Fields : c10::TensorImpl {
    using TensorImpl::device_opt_;
    using TensorImpl::key_set_;
    static Fields &of(c10::TensorImpl *impl) {
        return *static_cast<Fields *>(impl);
    }
};

} // namespace

void set_label(c10::TensorImpl *impl, c10::DispatchKeySet keys, c10::Device device) {
    Fields &fields = Fields::of(impl);
    fields.key_set_ = keys;
    fields.device_opt_ = device;
}

namespace {

C10_ALWAYS_INLINE void relabel_alone(c10::TensorImpl *impl) {
    Fields &fields = Fields::of(impl);
    const c10::Device device = to_flagos(*fields.device_opt_);
    fields.device_opt_ = device;
    fields.key_set_ = to_flagos_keys(fields.key_set_);
    if (c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl()) {
        storage->_mutable_data_ptr_no_checks().unsafe_set_device(device);
        // What PyTorch allocates for this storage later (a copy-on-write copy) is labelled so too.
        storage->set_allocator(c10::GetAllocator(kFlagos));
        if (C10_UNLIKELY(queue_in_use())) {
            free_late(storage->_mutable_data_ptr_no_checks(), device.index(), storage->nbytes());
        }
    }
}

} // namespace

void relabel(c10::TensorImpl *impl) {
    relabel_alone(impl);
}

C10_ALWAYS_INLINE bool ShadowFrame::adopt_alone(at::Tensor &result) {
    c10::TensorImpl *const impl = result.unsafeGetTensorImpl();
    if (!result.defined() || impl->device_type() != twin.type) {
        return true;
    }
    c10::StorageImpl *const storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (C10_LIKELY(storage != nullptr && result.use_count() == 1 &&
                   c10::raw::intrusive_ptr::use_count(storage) == 1 &&
                   !is_special(impl->key_set()))) {
        relabel_alone(impl);
        return true;
    }
    const at::Tensor &original = original_of(result);
    if (original.is_same(result)) {
        return false;
    }
    result = original;
    return true;
}

void ShadowFrame::adopt(at::Tensor &result) {
    if (C10_UNLIKELY(!adopt_alone(result))) {
        at::Tensor *pointer = &result;
        adopt_shared(&pointer, 1);
    }
}

void ShadowFrame::adopt(at::Tensor *const *results, size_t count) {
    bool shared = false;
    for (size_t i = 0; i < count; i++) {
        shared |= !adopt_alone(*results[i]);
    }
    if (C10_UNLIKELY(shared)) {
        adopt_shared(results, count);
    }
}

namespace {

// A view of `original` with the layout of `view`, with the keys that autograd and autocast need.
at::Tensor view_of(const at::Tensor &original, const c10::TensorImpl &view) {
    constexpr auto lazy = c10::DispatchKeySet(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    c10::TensorImpl &base = *original.unsafeGetTensorImpl();
    c10::DispatchKeySet keys = (base.key_set() - lazy) | (view.key_set() & lazy);
    if (C10_UNLIKELY(is_special(base.key_set()))) {
        // A plain view of what a nested or quantized tensor lies in: kind and lazy bits are the
        // view's own.
        keys = to_flagos_keys(view.key_set() &
                              c10::DispatchKeySet(c10::DispatchKeySet::RAW, twin.shadow_keys)) |
               c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse1Bit);
        if (!base.is_inference()) {
            keys = keys |
                   c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse1Bit);
        }
    }
    at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.unsafe_storage()), keys, view.dtype());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(),
                                                        view.storage_offset());
    copy_names(view, *result.unsafeGetTensorImpl());
    return result;
}

// A tensor on a storage that owns `result`'s: the twin's own objects stay as they are for whoever
// else holds them.
at::Tensor wrapper_of(const at::Tensor &result,
                      std::unordered_map<const void *, c10::Storage> &wrapped) {
    c10::TensorImpl &impl = *result.unsafeGetTensorImpl();
    const c10::Storage &inner = impl.unsafe_storage();
    c10::Storage &outer = wrapped[inner.unsafeGetStorageImpl()];
    if (!outer) {
        outer = owning_storage(inner, to_flagos(impl.device()));
    }
    at::Tensor wrapper = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(outer), to_flagos_keys(impl.key_set()), impl.dtype());
    wrapper.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(),
                                                         impl.storage_offset());
    copy_names(impl, *wrapper.unsafeGetTensorImpl());
    return wrapper;
}

} // namespace

void ShadowFrame::adopt_shared(at::Tensor *const *results, size_t count) {
    // How often the results themselves hold each tensor and storage: what nobody else holds is
    // relabelled, whatever number of results share it (the outputs of a split of a fresh tensor).
    std::unordered_map<const void *, uint32_t> holders;
    const auto is_ours = [](const at::Tensor &t) {
        return t.defined() && t.unsafeGetTensorImpl()->device_type() == twin.type;
    };
    for (size_t i = 0; i < count; i++) {
        if (is_ours(*results[i])) {
            c10::TensorImpl *impl = results[i]->unsafeGetTensorImpl();
            if (++holders[impl] == 1 && impl->unsafe_storage()) {
                ++holders[impl->unsafe_storage().unsafeGetStorageImpl()];
            }
        }
    }
    std::unordered_map<const void *, c10::Storage> wrapped;
    std::vector<c10::TensorImpl *> exclusive;
    for (size_t i = 0; i < count; i++) {
        at::Tensor &result = *results[i];
        if (!is_ours(result)) {
            continue;
        }
        c10::TensorImpl *const impl = result.unsafeGetTensorImpl();
        if (is_special(impl->key_set()) || impl->key_set().has_all(c10::mkldnn_ks)) {
            adopt_special(*this, result);
            continue;
        }
        c10::StorageImpl *const storage = impl->unsafe_storage().unsafeGetStorageImpl();
        const at::Tensor *const base = lender_of(storage);
        if (base != nullptr) {
            result = view_of(*base, *impl);
        } else if (c10::raw::intrusive_ptr::use_count(impl) == holders[impl] &&
                   (storage == nullptr ||
                    c10::raw::intrusive_ptr::use_count(storage) == holders[storage])) {
            exclusive.push_back(impl); // Relabelled last, so that sharers are still recognised.
        } else {
            result = wrapper_of(result, wrapped);
        }
    }
    for (c10::TensorImpl *impl : exclusive) {
        if (impl->device_type() == twin.type) {
            relabel(impl);
        }
    }
}

} // namespace fl_torch
