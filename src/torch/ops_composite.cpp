// ops_composite.cpp: operators where PyTorch's own code asks "is it CUDA?" and answers for an
// unknown device with a stub or with another kernel than the twin's. Each gives the twin's choice.
#include "ops.h"

#include "ops_attention.h"

#include "check.h"
#include "errors.h"
#include "generator.h"
#include "learned.h"
#include "queue.h"
#include "register.h"
#include "shadow.h"
#include "twin_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>

#include <algorithm>
#include <array>

namespace fl_torch::ops {

namespace {

// What to pass to the twin in place of an operand.
const Tensor &shown(ShadowFrame &frame, const Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, false) : tensor;
}

} // namespace

// --- convolution
// -----------------------------------------------------------------------------------

namespace {

// PyTorch takes a convolution apart where its operands lie on different devices, so that the parts
// may judge. These are the parts; the judgement is CUDA's.
void require_same_device(const Tensor &input, const Tensor &other, const char *name) {
    TORCH_CHECK(
        !other.defined() || other.device() == input.device(),
        "Expected all tensors to be on the same device, but the input of the convolution is "
        "on ",
        input.device(), " and its ", name, " on ", other.device());
}

} // namespace

// With a twin `convolution` is routed whole and never arrives here; these serve direct calls, and
// the platforms without a twin, where PyTorch decomposes it down to these two.
Tensor convolution_overrideable(const Tensor &input, const Tensor &weight,
                                const OptionalTensor &bias, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                bool transposed, c10::SymIntArrayRef output_padding,
                                c10::SymInt groups) {
    require_same_device(input, weight, "weight");
    require_same_device(input, bias.value_or(Tensor()), "bias");
    return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed,
                                  output_padding, std::move(groups));
}

std::tuple<Tensor, Tensor, Tensor>
convolution_backward_overrideable(const Tensor &grad_output, const Tensor &input,
                                  const Tensor &weight, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                  bool transposed, c10::SymIntArrayRef output_padding,
                                  c10::SymInt groups, std::array<bool, 3> output_mask) {
    require_same_device(input, weight, "weight");
    require_same_device(input, grad_output, "gradient");
    const c10::SymInt channels[] = {transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
    return at::convolution_backward_symint(
        grad_output, input, weight,
        output_mask[2] ? at::OptionalSymIntArrayRef(channels) : at::OptionalSymIntArrayRef(),
        stride, padding, dilation, transposed, output_padding, groups, output_mask);
}

// --- dropout
// ---------------------------------------------------------------------------------------

// The host's kernel names no generator and would draw from the host's default; the numbers and the
// arithmetic are its own.
std::tuple<Tensor, Tensor> native_dropout(const Tensor &input, double p,
                                          std::optional<bool> train) {
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (input.numel() == 0) {
        return {input, at::empty_like(input, input.options())};
    }
    if (train.has_value() && !*train) {
        return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
    }
    const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
    Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
    mask.bernoulli_(1.0 - p);
    return {input.mul(mask).mul_(scale), mask};
}

// --- attention
// -------------------------------------------------------------------------------------

namespace {

bool below_python(const Tensor &tensor) {
    return !tensor.key_set().has_any(c10::python_ks);
}

// A host tensor without memory that is otherwise like this one.
Tensor described(const Tensor &tensor) {
    const Tensor host =
        at::from_blob(nullptr, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    return tensor.requires_grad() ? wanting_gradient(host) : host;
}

// Without a twin operators run on the host: its choice, which looks at no value.
int64_t choice_of_host(const Tensor &query, const Tensor &key, const Tensor &value,
                       const OptionalTensor &mask, double dropout, bool causal,
                       std::optional<double> scale, bool grouped) {
    OptionalTensor host_mask;
    if (mask.has_value()) {
        host_mask = described(*mask);
    }
    return at::_fused_sdp_choice(described(query), described(key), described(value), host_mask,
                                 dropout, causal, scale, grouped);
}

bool has_strides(const Tensor &tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_nested();
}

int64_t twin_choice(const Tensor &query, const Tensor &key, const Tensor &value,
                    const OptionalTensor &mask, double dropout, bool causal,
                    std::optional<double> scale, bool grouped) {
    ShadowFrame frame;
    // The choice depends on who needs a gradient. A shadow has no standing in autograd, so that it
    // cannot show that; these tensors on its memory can.
    const auto stand_in = [&](const Tensor &tensor) {
        const Tensor &shadow = shown(frame, tensor);
        return tensor.requires_grad() && at::GradMode::is_enabled() ? wanting_gradient(shadow)
                                                                    : shadow;
    };
    OptionalTensor shown_mask;
    if (mask.has_value()) {
        shown_mask = stand_in(*mask);
    }
    // Straight to the twin's kernel, so that modes that watch operators see none here, as natively.
    return TwinKernel<at::_ops::_fused_sdp_choice>::call(stand_in(query), stand_in(key),
                                                         stand_in(value), shown_mask, dropout,
                                                         causal, scale, grouped);
}

// A choice looks at no memory, but to show a tensor waits for the launch queue: what was chosen for
// operands like these is remembered while the queue is on.
template <class Choose>
int64_t known_choice(const std::array<const Tensor *, 4> &tensors, double dropout, bool causal,
                     std::optional<double> scale, bool grouped, const Choose &choose) {
    const auto is_plain = [](const Tensor *tensor) {
        return tensor == nullptr || !is_special(tensor->unsafeGetTensorImpl()->key_set());
    };
    if (C10_LIKELY(!queue_is_on()) || !std::all_of(tensors.begin(), tensors.end(), is_plain)) {
        return choose();
    }
    static const char tag = 0;
    Signature signature(&tag);
    for (const Tensor *const tensor : tensors) {
        signature.add(tensor == nullptr ? Tensor() : *tensor);
        signature.add(tensor != nullptr && tensor->requires_grad() && at::GradMode::is_enabled());
    }
    signature.add(dropout);
    signature.add(causal);
    signature.add(scale);
    signature.add(grouped);
    if (const auto known = find_learned(signature.value())) {
        return known->numbers[0];
    }
    Learned learned;
    learned.numbers.push_back(choose());
    const int64_t choice = learned.numbers[0];
    learn(signature.value(), std::move(learned));
    return choice;
}

} // namespace

// The twin's choice. Called with the user's own tensors, above autograd, and with fake ones under
// torch.compile, which have no memory: those get the choice that needs no kernel.
int64_t fused_sdp_choice(const Tensor &query, const Tensor &key, const Tensor &value,
                         const OptionalTensor &mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
    constexpr int64_t kMath = 0;
    const bool real = below_python(query) && below_python(key) && below_python(value) &&
                      (!mask.has_value() || below_python(*mask));
    if (!real) {
        return kMath;
    }
    if (!twin.present) {
        const bool plain = has_strides(query) && has_strides(key) && has_strides(value) &&
                           (!mask.has_value() || has_strides(*mask));
        return plain ? choice_of_host(query, key, value, mask, dropout, causal, scale, grouped)
                     : kMath;
    }
    return known_choice(
        {&query, &key, &value, mask.has_value() ? &*mask : nullptr}, dropout, causal, scale,
        grouped,
        [&] { return twin_choice(query, key, value, mask, dropout, causal, scale, grouped); });
}

} // namespace fl_torch::ops

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &fl_torch::ops::fused_sdp_choice)
} // namespace at::native
