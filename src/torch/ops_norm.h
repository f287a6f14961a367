// ops_norm.h: normalisation whose gradient depends on the device. Both are for the host twin.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace fl_torch::ops {

// `native_group_norm` for autograd.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
group_norm_recorded(c10::DispatchKeySet keys, const at::Tensor &input,
                    const std::optional<at::Tensor> &weight, const std::optional<at::Tensor> &bias,
                    c10::SymInt batch, c10::SymInt channels, c10::SymInt positions, int64_t groups,
                    double epsilon);

// `native_group_norm_backward`.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
group_norm_backward(const at::Tensor &grad_output, const at::Tensor &input, const at::Tensor &mean,
                    const at::Tensor &rstd, const std::optional<at::Tensor> &weight,
                    c10::SymInt batch, c10::SymInt channels, c10::SymInt positions, int64_t groups,
                    std::array<bool, 3> wanted);

} // namespace fl_torch::ops
