// ops_gradient.h: operators whose gradient asks the recorded tensor "are you on CUDA?". For an
// accelerator twin only; on the host PyTorch's answer for flagos is the twin's.
#pragma once

#include <torch/library.h>

namespace fl_torch {

// Register `max`, `min`, `median` and `nanmedian` of a whole tensor, `_foreach_max` and `renorm`
// for autograd.
void register_gradients(torch::Library &autograd);

} // namespace fl_torch
