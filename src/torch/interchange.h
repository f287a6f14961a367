// interchange.h: one piece of memory under two labels, flagos and its twin's, so that libraries and
// parts of PyTorch that know the twin alone take flagos tensors without a copy.
#pragma once

#include <ATen/core/Tensor.h>

namespace fl_torch {

// The tensor as one of the twin's device, on the same memory, which lives as long as either. Lazy
// bits are kept, autograd's are not. `freeze` forbids both to resize from then on.
at::Tensor as_twin(const at::Tensor &self, bool freeze);

// The inverse. What came from one direction goes back to the very storage that it came from.
at::Tensor as_flagos(const at::Tensor &self);

// Let the storage of `self` have the memory of `source`, a tensor of the twin's that starts its own
// storage and has as many bytes. Contents are the caller's business.
void move_storage(const at::Tensor &self, const at::Tensor &source);

} // namespace fl_torch
