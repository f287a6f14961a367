// ops_attention.h: scaled dot product attention as the twin would run it.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/library.h>

namespace fl_torch {

namespace ops {

// Which kernel the twin would take, an sdp::SDPBackend; what the twin's stub answers for flagos.
int64_t fused_sdp_choice(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                         const std::optional<at::Tensor> &mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped);

} // namespace ops

// Register `scaled_dot_product_attention` above and below autograd. Call after register_disguised,
// which serves the calls that this one leaves.
void register_attention(torch::Library &aten, torch::Library &autograd);

} // namespace fl_torch
