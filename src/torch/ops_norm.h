// ops_norm.h: group norm, which PyTorch computes in the layout of the input on the CPU and on
// devices that it does not know, and contiguously on CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace fl_torch::ops {

// `group_norm` where CUDA is the twin.
at::Tensor group_norm(const at::Tensor &input, int64_t groups,
                      const std::optional<at::Tensor> &weight,
                      const std::optional<at::Tensor> &bias, double epsilon, bool cudnn_enabled);

// `native_group_norm` for autograd, for the host twin.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
group_norm_recorded(c10::DispatchKeySet keys, const at::Tensor &input,
                    const std::optional<at::Tensor> &weight, const std::optional<at::Tensor> &bias,
                    c10::SymInt batch, c10::SymInt channels, c10::SymInt positions, int64_t groups,
                    double epsilon);

// `native_group_norm_backward`, for the host twin.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
group_norm_backward(const at::Tensor &grad_output, const at::Tensor &input, const at::Tensor &mean,
                    const at::Tensor &rstd, const std::optional<at::Tensor> &weight,
                    c10::SymInt batch, c10::SymInt channels, c10::SymInt positions, int64_t groups,
                    std::array<bool, 3> wanted);

} // namespace fl_torch::ops
