// ops_batch_norm.h: batch normalisation by the kernels that the twin would take. Instance
// normalisation is made of it.
#pragma once

#include <torch/library.h>

namespace fl_torch {

// Register `_batch_norm_impl_index`, of which `batch_norm` is made, above and below autograd. Call
// after register_disguised.
void register_batch_norm(torch::Library &aten, torch::Library &autograd);

} // namespace fl_torch
