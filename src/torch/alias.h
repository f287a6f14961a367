// alias.h: a tensor on the storage of another, with a layout of its own.
#pragma once

#include <ATen/core/Tensor.h>

namespace fl_torch {

// What PyTorch's own views are below autograd: the base's memory, keys and dtype. Nobody looks here
// whether the storage is large enough. Raises where the number of elements overflows.
at::Tensor alias_of(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                    int64_t offset);

} // namespace fl_torch
