// ops_norm.cpp: see ops_norm.h. The gradient of group norm on channels_last inputs is where
// PyTorch's formula asks the gradient "are you on the CPU?": there it keeps the layout and takes
// the CPU's own kernel for it, elsewhere it takes contiguous copies, whose sums round differently.
// On the host twin the answer must be the CPU's. The node in the graph stays PyTorch's own, so that
// all else about it (second derivatives, forward mode, hooks) is native too; it is only handed a
// disguised gradient.
#include "ops_norm.h"

#include "disguise.h"
#include "errors.h"
#include "register.h"
#include "shadow.h"

#include <ATen/ATen.h>
#include <ATen/ops/group_norm_native.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

namespace fl_torch::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;
using Results = std::tuple<Tensor, Tensor, Tensor>;

// Runs before the node of a group norm whose input is channels_last.
struct DisguiseGradient final : torch::autograd::FunctionPreHook {
    variable_list operator()(const variable_list &grads) override {
        // Gradients of the statistics, and gradients that are themselves differentiated, take
        // another formula, which asks for no device.
        if (at::GradMode::is_enabled() || !grads[0].defined() || grads[1].defined() ||
            grads[2].defined()) {
            return grads;
        }
        return {disguised(grads[0]), grads[1], grads[2]};
    }
};

const Tensor &shown(ShadowFrame &frame, const Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, false) : tensor;
}

} // namespace

Results group_norm_recorded(c10::DispatchKeySet keys, const Tensor &input,
                            const OptionalTensor &weight, const OptionalTensor &bias,
                            c10::SymInt batch, c10::SymInt channels, c10::SymInt positions,
                            int64_t groups, double epsilon) {
    Results results = at::_ops::native_group_norm::redispatch(
        recording(keys), input, weight, bias, std::move(batch), std::move(channels),
        std::move(positions), groups, epsilon);
    const Tensor &output = std::get<0>(results);
    if (can_be_disguised(input) && input.suggest_memory_format() != at::MemoryFormat::Contiguous &&
        output.grad_fn()) {
        output.grad_fn()->add_pre_hook(std::make_unique<DisguiseGradient>());
    }
    return results;
}

Tensor group_norm(const Tensor &input, int64_t groups, const OptionalTensor &weight,
                  const OptionalTensor &bias, double epsilon, bool cudnn_enabled) {
    return at::native::group_norm(input.contiguous(), groups, weight, bias, epsilon, cudnn_enabled);
}

Results group_norm_backward(const Tensor &grad_output, const Tensor &input, const Tensor &mean,
                            const Tensor &rstd, const OptionalTensor &weight, c10::SymInt batch,
                            c10::SymInt channels, c10::SymInt positions, int64_t groups,
                            std::array<bool, 3> wanted) {
    FL_COUNT_CALL("aten::native_group_norm_backward", FL_ROUTE_OWN);
    // The formula has asked the gradient alone, so the input follows its layout. Where the input's
    // gradient is not wanted, the CPU's kernel for channels_last crashes, natively too; its other
    // one does not.
    const auto format =
        wanted[0] ? grad_output.suggest_memory_format() : at::MemoryFormat::Contiguous;
    const Tensor laid_grad = grad_output.contiguous(format);
    const Tensor laid_input = input.contiguous(format);
    ShadowFrame frame;
    OptionalTensor shown_weight;
    if (weight.has_value() && weight->defined()) {
        shown_weight = shown(frame, *weight);
    }
    Results results;
    try {
        results = at::_ops::native_group_norm_backward::redispatch(
            twin.keys, shown(frame, laid_grad), shown(frame, laid_input), shown(frame, mean),
            shown(frame, rstd), shown_weight, std::move(batch), std::move(channels),
            std::move(positions), groups, wanted);
    } catch (...) {
        rethrow_in_user_words("aten::native_group_norm_backward");
    }
    shown_weight.reset();
    Tensor *const pointers[] = {&std::get<0>(results), &std::get<1>(results),
                                &std::get<2>(results)};
    frame.adopt(pointers, 3);
    return results;
}

} // namespace fl_torch::ops
