// ops_linear.h: `linear` without gradients in one step.
#pragma once

#include <torch/library.h>

namespace fl_torch {

// Register `linear` above and below autograd.
void register_linear(torch::Library &aten, torch::Library &autograd);

} // namespace fl_torch
