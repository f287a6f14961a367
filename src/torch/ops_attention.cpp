// ops_attention.cpp: the composite asks for the device of its operands before it takes the kernel
// that it chose, and knows no flash attention on an unknown device. On an accelerator twin the
// plain cases go straight to the twin's choice, with autograd's own formulas for those operators;
// all others (masks, padding, wrappers of transforms) run as the twin's composite in disguise. The
// choice that is made of plain operators asks for no device, and takes half the time undisguised.
#include "ops_attention.h"

#include "disguise.h"
#include "register.h"
#include "shadow.h"
#include "twin_kernel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace fl_torch {

namespace {

using at::Tensor;
using Attention = at::_ops::scaled_dot_product_attention;

constexpr int64_t kFlashWidth = 8; // Flash attention takes multiples of it, the composite pads.

bool is_plain(const Tensor &tensor) {
    const c10::DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
    return ShadowFrame::needs_shadow(tensor) && tensor.dim() == 4 &&
           !keys.has_any(c10::python_ks) && !is_special(keys);
}

// A fake tensor, or another class of Python's in the place of a flagos tensor: its attributes
// decide which kernel CUDA's composite calls, and it answers that call itself.
bool is_wrapped(const Tensor &tensor) {
    const c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    return tensor.device().type() == kFlagos && impl->key_set().has_any(c10::python_ks) &&
           !impl->has_symbolic_sizes_strides() && tensor.dim() == 4;
}

// What the twin would choose for tensors with these attributes; nothing else of them is looked at.
int64_t choice_for_wrapped(const Tensor &query, const Tensor &key, const Tensor &value,
                           double dropout, bool causal, std::optional<double> scale, bool grouped) {
    const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
    return TwinKernel<at::_ops::_fused_sdp_choice>::call(disguised(query), disguised(key),
                                                         disguised(value), std::nullopt, dropout,
                                                         causal, scale, grouped);
}

// One of the operators that the composite chooses between, of operands that it would hand on as
// they are.
Tensor call_chosen(sdp::SDPBackend choice, const Tensor &query, const Tensor &key,
                   const Tensor &value, double dropout, bool causal, std::optional<double> scale,
                   bool grouped) {
    const bool needs_gradient =
        at::GradMode::is_enabled() &&
        (query.requires_grad() || key.requires_grad() || value.requires_grad());
    switch (choice) {
    case sdp::SDPBackend::flash_attention:
        return std::get<0>(at::_scaled_dot_product_flash_attention(
            query, key, value, dropout, causal, /*return_debug_mask=*/false, scale));
    case sdp::SDPBackend::efficient_attention:
        return std::get<0>(at::_scaled_dot_product_efficient_attention(
            query, key, value, std::nullopt, needs_gradient, dropout, causal, scale));
    case sdp::SDPBackend::cudnn_attention:
        return std::get<0>(at::_scaled_dot_product_cudnn_attention(
            query, key, value, std::nullopt, needs_gradient, dropout, causal,
            /*return_debug_mask=*/false, scale));
    default:
        return std::get<0>(
            at::_scaled_dot_product_attention_math(query, key, value, std::nullopt, dropout, causal,
                                                   /*dropout_mask=*/std::nullopt, scale, grouped));
    }
}

Tensor attention(const Tensor &query, const Tensor &key, const Tensor &value,
                 const std::optional<Tensor> &mask, double dropout, bool causal,
                 std::optional<double> scale, bool grouped) {
    const bool plain = is_plain(query) && is_plain(key) && is_plain(value);
    const bool wrapped = !plain && is_wrapped(query) && is_wrapped(key) && is_wrapped(value);
    if ((plain || wrapped) && !mask.has_value() && query.scalar_type() == key.scalar_type() &&
        query.scalar_type() == value.scalar_type() && query.device() == key.device() &&
        query.device() == value.device()) {
        const auto choice = static_cast<sdp::SDPBackend>(
            plain ? ops::fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped)
                  : choice_for_wrapped(query, key, value, dropout, causal, scale, grouped));
        const bool pads = choice == sdp::SDPBackend::flash_attention &&
                          (query.size(3) % kFlashWidth != 0 || value.size(3) % kFlashWidth != 0);
        if (!pads && !(wrapped && (grouped || choice == sdp::SDPBackend::math)) &&
            choice != sdp::SDPBackend::error) {
            FL_COUNT_CALL("aten::scaled_dot_product_attention", FL_ROUTE_OWN);
            return call_chosen(choice, query, key, value, dropout, causal, scale, grouped);
        }
    }
    return LeftToDisguise<Attention>::call(query, key, value, mask, dropout, causal, scale,
                                           grouped);
}

} // namespace

void register_attention(torch::Library &aten, torch::Library &autograd) {
    if (!twin.present || twin.is_host) {
        return; // The CPU's composite chooses rightly by the stub alone.
    }
    LeftToDisguise<Attention>::prepare();
    aten.impl(Attention::name + sizeof("aten::") - 1, TORCH_FN(attention));
    autograd.impl(Attention::name + sizeof("aten::") - 1, TORCH_FN(attention));
}

} // namespace fl_torch
