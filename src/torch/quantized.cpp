// quantized.cpp: quantized tensors: one block of memory and a quantizer. A quantizer per channel
// holds tensors of its own (scales and zero points), so the twin gets one that holds their shadows.
#include "special.h"

#include <ATen/ATen.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

namespace fl_torch {

namespace quantized {

namespace {

at::QTensorImpl *as_quantized(const at::Tensor &tensor) {
    return static_cast<at::QTensorImpl *>(tensor.unsafeGetTensorImpl());
}

// A window on the protected tensors of a quantizer per channel.
struct PerChannel : at::PerChannelAffineQuantizer {
    using PerChannelAffineQuantizer::scales_;
    using PerChannelAffineQuantizer::zero_points_;
};

// By class, not by scheme: a tensor that is still being made has no scheme to ask for.
PerChannel *as_per_channel(const at::QuantizerPtr &quantizer) {
    return static_cast<PerChannel *>(
        dynamic_cast<at::PerChannelAffineQuantizer *>(quantizer.get()));
}

// Whether it can be compared: the quantizer of a tensor that is still being made cannot.
bool is_known(const at::QuantizerPtr &quantizer) {
    return dynamic_cast<at::UnknownQuantizer *>(quantizer.get()) == nullptr;
}

at::QuantizerPtr with_tensors(const at::QuantizerPtr &like, const at::Tensor &scales,
                              const at::Tensor &zero_points) {
    const int64_t axis = as_per_channel(like)->axis();
    if (like->qscheme() == c10::kPerChannelAffine) {
        return c10::make_intrusive<at::PerChannelAffineQuantizer>(like->scalar_type(), scales,
                                                                  zero_points, axis);
    }
    return c10::make_intrusive<at::PerChannelAffineFloatQParamsQuantizer>(
        like->scalar_type(), scales, zero_points, axis);
}

// The twin's quantizer as one that a flagos tensor may hold.
at::QuantizerPtr adopted(ShadowFrame &frame, at::QuantizerPtr quantizer) {
    PerChannel *const own = as_per_channel(quantizer);
    if (own == nullptr) {
        return quantizer; // Holds numbers only.
    }
    if (at::QuantizerPtr original = frame.quantizer_behind(quantizer)) {
        return original;
    }
    if (quantizer.use_count() == 1) {
        at::Tensor *const tensors[] = {&own->scales_, &own->zero_points_};
        frame.adopt(tensors, 2);
        return quantizer;
    }
    at::Tensor scales = own->scales_, zero_points = own->zero_points_;
    at::Tensor *const tensors[] = {&scales, &zero_points};
    frame.adopt(tensors, 2);
    return with_tensors(quantizer, scales, zero_points);
}

// Take the quantizer out of a tensor that is this call's alone, so that the count of its holders
// says whether somebody else has it.
at::QuantizerPtr take_quantizer(at::QTensorImpl *impl) {
    at::QuantizerPtr quantizer = impl->quantizer();
    impl->set_quantizer_(nullptr);
    return quantizer;
}

// The integers of a quantized tensor as a plain tensor on the same memory. Types that pack several
// elements into a byte are shown as the bytes of the storage.
at::Tensor integers_of(const at::Tensor &tensor) {
    const at::ScalarType type = tensor.scalar_type();
    const auto make = [&](at::ScalarType plain) {
        return at::empty({0}, at::TensorOptions().device(tensor.device()).dtype(plain));
    };
    if (type == at::kQUInt4x2 || type == at::kQUInt2x4) {
        const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
        return make(at::kByte).set_(tensor.storage(), 0, {bytes}, {1});
    }
    return make(at::toUnderlying(type))
        .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

at::QuantizerPtr moved(const at::QuantizerPtr &quantizer, c10::Device device) {
    PerChannel *const own = as_per_channel(quantizer);
    return own == nullptr
               ? quantizer
               : with_tensors(quantizer, own->scales_.to(device), own->zero_points_.to(device));
}

void copy_layout(c10::TensorImpl *to, const c10::TensorImpl &from) {
    to->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

} // namespace

void make(ShadowFrame &frame, SpecialShadow &entry) {
    at::QTensorImpl *const original = as_quantized(*entry.original);
    at::QuantizerPtr quantizer = original->quantizer();
    if (PerChannel *per_channel = as_per_channel(quantizer)) {
        entry.parts = {per_channel->scales_, per_channel->zero_points_};
        const auto shown = [&](at::Tensor &part) -> const at::Tensor & {
            return ShadowFrame::needs_shadow(part) ? *frame.show(part, false) : part;
        };
        quantizer = with_tensors(quantizer, shown(entry.parts[0]), shown(entry.parts[1]));
    }
    entry.shown_quantizer = quantizer;
    const c10::DispatchKeySet keys = to_shadow_keys(original->key_set());
    entry.shadow = at::detail::make_tensor<at::QTensorImpl>(
        c10::Storage(frame.show_storage(*entry.original, entry.written)), keys, original->dtype(),
        quantizer);
    c10::TensorImpl *const shadow = entry.shadow->unsafeGetTensorImpl();
    copy_layout(shadow, *original);
    set_label(shadow, keys, to_twin(original->device()));
}

void write_back(ShadowFrame &frame, SpecialShadow &entry) {
    at::QTensorImpl *const original = as_quantized(*entry.original);
    at::QTensorImpl *const shadow = as_quantized(*entry.shadow);
    if (shadow->sizes() != original->sizes() || shadow->strides() != original->strides() ||
        shadow->storage_offset() != original->storage_offset()) {
        copy_layout(original, *shadow);
    }
    if (shadow->quantizer() != entry.shown_quantizer) {
        original->set_quantizer_(adopted(frame, shadow->quantizer()));
    }
}

void adopt(ShadowFrame &frame, at::Tensor &result) {
    at::QTensorImpl *const impl = as_quantized(result);
    const ResultMemory memory = memory_of(frame, result);
    if (memory.is_exclusive) {
        impl->set_quantizer_(adopted(frame, take_quantizer(impl)));
        relabel(impl);
        return;
    }
    at::Tensor wrapper = at::detail::make_tensor<at::QTensorImpl>(
        c10::Storage(memory.storage), result_keys(impl->key_set()), impl->dtype(),
        adopted(frame, result.use_count() == 1 ? take_quantizer(impl) : impl->quantizer()));
    copy_layout(wrapper.unsafeGetTensorImpl(), *impl);
    result = std::move(wrapper);
}

at::Tensor copy(const at::Tensor &tensor, c10::Device device) {
    const at::Tensor integers =
        at::_to_copy(integers_of(tensor), at::TensorOptions().device(device));
    const c10::DispatchKey key =
        device.is_cpu() ? c10::DispatchKey::QuantizedCPU : c10::DispatchKey::QuantizedPrivateUse1;
    at::Tensor result = at::detail::make_tensor<at::QTensorImpl>(
        c10::Storage(integers.storage()), c10::DispatchKeySet(key), tensor.dtype(),
        moved(tensor.quantizer(), device));
    const bool packed = integers.sizes() != tensor.sizes();
    copy_layout(result.unsafeGetTensorImpl(), *(packed ? tensor : integers).unsafeGetTensorImpl());
    return result;
}

void assign(const at::Tensor &target, const at::Tensor &source) {
    at::QTensorImpl *const impl = as_quantized(target);
    if (target.sizes() == source.sizes()) {
        integers_of(target).copy_(integers_of(source));
    } else {
        const at::Tensor there = copy(source, target.device());
        impl->set_storage_keep_dtype(there.storage());
        copy_layout(impl, *there.unsafeGetTensorImpl());
    }
    // Scales and zero points of channels stay the target's own where they are equal.
    const at::QuantizerPtr given = moved(source.quantizer(), target.device());
    if (!is_known(given) || !is_known(impl->quantizer()) || !given->equalTo(impl->quantizer())) {
        impl->set_quantizer_(given);
    }
}

} // namespace quantized

at::QuantizerPtr SpecialShadows::quantizer_behind(const at::QuantizerPtr &shown) const {
    for (const SpecialShadow &entry : entries_) {
        if (entry.shown_quantizer == shown) {
            return quantized::as_quantized(*entry.original)->quantizer();
        }
    }
    return nullptr;
}

} // namespace fl_torch
