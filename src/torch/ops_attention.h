// ops_attention.h: scaled dot product attention as the twin would run it.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/library.h>

namespace fl_torch {

// Register `scaled_dot_product_attention` above and below autograd. Call after register_disguised,
// which serves the calls that this one leaves.
void register_attention(torch::Library &aten, torch::Library &autograd);

} // namespace fl_torch
