// nested.cpp: strided nested tensors: one block of memory and tables of sizes, strides and offsets,
// which lie on the host by their meaning and are shared as they are. (Jagged ones are a subclass in
// Python whose parts are plain tensors.)
#include "special.h"

#include <ATen/ATen.h>
#include <ATen/NestedTensorImpl.h>

namespace fl_torch::nested {

namespace {

at::native::NestedTensorImpl *as_nested(const at::Tensor &tensor) {
    return static_cast<at::native::NestedTensorImpl *>(tensor.unsafeGetTensorImpl());
}

at::Tensor on_storage(c10::Storage storage, const at::native::NestedTensorImpl &like,
                      c10::DispatchKeySet keys, c10::Device device) {
    at::Tensor made = at::detail::make_tensor<at::native::NestedTensorImpl>(
        std::move(storage), keys, like.dtype(), like.get_nested_sizes(), like.get_nested_strides(),
        like.get_storage_offsets());
    // The constructor adds the keys of a plain tensor's autograd.
    set_label(made.unsafeGetTensorImpl(), keys, device);
    return made;
}

} // namespace

void make(ShadowFrame &frame, SpecialShadow &entry) {
    const at::native::NestedTensorImpl &original = *as_nested(*entry.original);
    entry.shadow = on_storage(frame.show_storage(*entry.original, entry.written), original,
                              to_shadow_keys(original.key_set()), to_twin(original.device()));
}

void adopt(ShadowFrame &frame, at::Tensor &result) {
    const ResultMemory memory = memory_of(frame, result);
    c10::TensorImpl *const impl = result.unsafeGetTensorImpl();
    if (memory.is_exclusive) {
        relabel(impl);
        return;
    }
    result = on_storage(memory.storage, *as_nested(result), result_keys(impl->key_set()),
                        to_flagos(impl->device()));
}

// The whole memory, whatever the layout of the rows in it.
at::Tensor copy(const at::Tensor &tensor, c10::Device device) {
    const at::native::NestedTensorImpl &impl = *as_nested(tensor);
    const at::Tensor buffer =
        at::_to_copy(impl.get_unsafe_storage_as_tensor(), at::TensorOptions().device(device));
    const c10::DispatchKey key = device.is_cpu() ? c10::DispatchKey::NestedTensorCPU
                                                 : c10::DispatchKey::NestedTensorPrivateUse1;
    const c10::DispatchKeySet keys(key);
    return on_storage(buffer.storage(), impl,
                      device.is_cpu() ? keys | c10::inplace_or_view_ks | c10::autograd_nested
                                      : result_keys(keys),
                      buffer.device());
}

void assign(const at::Tensor &target, const at::Tensor &source) {
    as_nested(target)->get_unsafe_storage_as_tensor().copy_(
        as_nested(source)->get_unsafe_storage_as_tensor());
}

} // namespace fl_torch::nested
