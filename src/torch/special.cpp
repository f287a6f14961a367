// special.cpp: see special.h. Knows which kind a tensor is, and nothing of what a kind consists of.
#include "special.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

namespace fl_torch {

namespace {

enum class Kind { kSparse, kQuantized, kNested, kOther };

Kind kind_of(const at::Tensor &tensor) {
    const c10::DispatchKeySet keys = tensor.key_set();
    if (keys.has_all(c10::sparse_ks) || keys.has_all(c10::sparse_csr_ks)) {
        return Kind::kSparse;
    }
    if (keys.has_all(c10::DispatchKeySet(c10::DispatchKey::NestedTensor))) {
        return Kind::kNested;
    }
    if (keys.has_all(c10::DispatchKeySet(c10::DispatchKey::Quantized))) {
        return Kind::kQuantized;
    }
    return Kind::kOther;
}

// An operand that was shown for reading is written to as well: so are its parts.
void mark_written(ShadowFrame &frame, SpecialShadow &entry) {
    entry.written = true;
    if (kind_of(*entry.original) != Kind::kSparse) {
        frame.show_storage(*entry.original, true);
        return;
    }
    for (at::Tensor &part : entry.parts) {
        if (ShadowFrame::needs_shadow(part)) {
            frame.show(part, true);
        }
    }
}

} // namespace

std::optional<at::Tensor> &SpecialShadows::show(ShadowFrame &frame, const at::Tensor &tensor,
                                                bool written) {
    for (SpecialShadow &entry : entries_) {
        if (entry.shadow.has_value() && entry.original->is_same(tensor)) {
            if (written && !entry.written) {
                mark_written(frame, entry);
            }
            return entry.shadow;
        }
    }
    SpecialShadow &entry = entries_.emplace_back();
    entry.original = &tensor;
    entry.written = written;
    // An inference tensor would have no version counter, and in-place operators count versions.
    const c10::InferenceMode normal_mode(false);
    switch (kind_of(tensor)) {
    case Kind::kSparse:
        sparse::make(frame, entry);
        break;
    case Kind::kQuantized:
        quantized::make(frame, entry);
        break;
    case Kind::kNested:
        nested::make(frame, entry);
        break;
    case Kind::kOther:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "flagos has no tensors of layout ", tensor.layout(),
                                    "; convert with .to_dense() first");
    }
    entry.shadow->unsafeGetTensorImpl()->set_allow_tensor_metadata_change(
        tensor.unsafeGetTensorImpl()->allow_tensor_metadata_change());
    return entry.shadow;
}

void SpecialShadows::write_back(ShadowFrame &frame) {
    for (SpecialShadow &entry : entries_) {
        if (!entry.written || !entry.shadow.has_value()) {
            continue;
        }
        switch (kind_of(*entry.original)) {
        case Kind::kSparse:
            sparse::write_back(frame, entry);
            break;
        case Kind::kQuantized:
            quantized::write_back(frame, entry);
            break;
        case Kind::kNested: // Sizes of a nested tensor are fixed; its memory is the frame's.
        case Kind::kOther:
            break;
        }
    }
}

const at::Tensor *SpecialShadows::original_of(const at::Tensor &result) const {
    for (const SpecialShadow &entry : entries_) {
        if (entry.shadow.has_value() && entry.shadow->is_same(result)) {
            return entry.original;
        }
    }
    return nullptr;
}

void SpecialShadows::drop() {
    for (SpecialShadow &entry : entries_) {
        entry.shadow.reset();
        entry.shown_quantizer.reset();
    }
}

void adopt_special(ShadowFrame &frame, at::Tensor &result) {
    switch (kind_of(result)) {
    case Kind::kSparse:
        sparse::adopt(frame, result);
        break;
    case Kind::kQuantized:
        quantized::adopt(frame, result);
        break;
    case Kind::kNested:
        nested::adopt(frame, result);
        break;
    case Kind::kOther:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "flagos has no tensors of layout ", result.layout());
    }
}

bool is_special(const at::Tensor &tensor) {
    return kind_of(tensor) != Kind::kOther;
}

at::Tensor copy_of_special(const at::Tensor &tensor, c10::Device device) {
    switch (kind_of(tensor)) {
    case Kind::kQuantized:
        return quantized::copy(tensor, device);
    case Kind::kNested:
        return nested::copy(tensor, device);
    case Kind::kSparse:
    case Kind::kOther:
        break;
    }
    return at::_to_copy(tensor, at::TensorOptions().device(device));
}

void assign_special(const at::Tensor &target, const at::Tensor &source) {
    switch (kind_of(target)) {
    case Kind::kSparse:
        sparse::assign(target, source);
        break;
    case Kind::kQuantized:
        quantized::assign(target, source);
        break;
    case Kind::kNested:
        nested::assign(target, source);
        break;
    case Kind::kOther:
        target.copy_(source);
        break;
    }
}

uint64_t nbytes_of_special(const at::Tensor &tensor) {
    return kind_of(tensor) == Kind::kSparse
               ? sparse::nbytes(tensor)
               : tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
}

c10::DispatchKeySet result_keys(c10::DispatchKeySet twin_keys) {
    constexpr auto backend = c10::BackendComponent::PrivateUse1Bit;
    c10::DispatchKeySet keys =
        to_flagos_keys(twin_keys) | c10::getAutocastRelatedKeySetFromBackend(backend);
    if (c10::InferenceMode::is_enabled()) {
        return keys;
    }
    // Nested tensors have an autograd key of their own in place of their backend's.
    return keys | (keys.has_all(c10::DispatchKeySet(c10::DispatchKey::NestedTensor))
                       ? c10::inplace_or_view_ks | c10::autograd_nested
                       : c10::getAutogradRelatedKeySetFromBackend(backend));
}

ResultMemory memory_of(const ShadowFrame &frame, const at::Tensor &result) {
    c10::TensorImpl *const impl = result.unsafeGetTensorImpl();
    const c10::Storage &storage = impl->unsafe_storage();
    if (const at::Tensor *lender = frame.lender_of(storage.unsafeGetStorageImpl())) {
        return {lender->unsafeGetTensorImpl()->unsafe_storage(), false};
    }
    if (result.use_count() == 1 && storage.use_count() == 1) {
        return {storage, true};
    }
    return {owning_storage(storage, to_flagos(impl->device())), false};
}

} // namespace fl_torch
