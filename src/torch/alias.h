// alias.h: a tensor on the storage of another, with a layout of its own.
#pragma once

#include <ATen/core/Tensor.h>

namespace fl_torch {

// What PyTorch's own views are below autograd: the base's memory, keys and dtype. As many strides
// as sizes; the caller knows that the layout is a sound one.
at::Tensor alias_of(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                    int64_t offset);

// The same, but an undefined tensor where the storage does not hold elements of this layout, or
// plain arithmetic cannot tell: PyTorch's function then knows the words for what is wrong.
at::Tensor alias_within(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                        int64_t offset);

} // namespace fl_torch
