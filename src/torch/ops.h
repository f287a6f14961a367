// ops.h: the operators that the adapter implements itself. register.cpp gives them their names.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/List.h>
#include <c10/core/Scalar.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <array>
#include <tuple>

namespace fl_torch::ops {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// --- ops_tensor.cpp: make, move and describe tensors
// -------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format);
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory);
Tensor &copy_(Tensor &self, const Tensor &source, bool non_blocking);
Tensor copy_from(const Tensor &self, const Tensor &destination, bool non_blocking);
Tensor copy_from_and_resize(const Tensor &self, const Tensor &destination);
Tensor to_copy(const Tensor &self, std::optional<at::ScalarType> dtype,
               std::optional<at::Layout> layout, std::optional<at::Device> device,
               std::optional<bool> pin_memory, bool non_blocking,
               std::optional<at::MemoryFormat> memory_format);
Scalar local_scalar_dense(const Tensor &self);
Tensor &set_storage_offset(Tensor &self, c10::Storage source, c10::SymInt offset,
                           c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
Tensor &set_storage(Tensor &self, c10::Storage source);
Tensor &set_tensor(Tensor &self, const Tensor &source);
Tensor &set_none(Tensor &self);
const Tensor &resize_(const Tensor &self, c10::SymIntArrayRef size,
                      std::optional<at::MemoryFormat> memory_format);
void record_stream(Tensor &self, c10::Stream stream);
bool has_compatible_shallow_copy_type(const Tensor &self, const Tensor &from);

// --- ops_view.cpp: metadata only
// -----------------------------------------------------------------------

Tensor as_strided(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset);
Tensor view(const Tensor &self, c10::SymIntArrayRef size);
Tensor slice(const Tensor &self, int64_t dim, std::optional<int64_t> start,
             std::optional<int64_t> end, int64_t step);
Tensor unsafe_view(const Tensor &self, c10::SymIntArrayRef size);
Tensor reshape_alias(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
Tensor unfold(const Tensor &self, int64_t dimension, int64_t size, int64_t step);
Tensor view_as_real(const Tensor &self);
Tensor view_as_complex(const Tensor &self);

// --- ops_composite.cpp: where PyTorch's own code asks "is it CUDA?"
// --------------------------------------

Tensor convolution_overrideable(const Tensor &input, const Tensor &weight,
                                const OptionalTensor &bias, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                bool transposed, c10::SymIntArrayRef output_padding,
                                c10::SymInt groups);
std::tuple<Tensor, Tensor, Tensor>
convolution_backward_overrideable(const Tensor &grad_output, const Tensor &input,
                                  const Tensor &weight, c10::SymIntArrayRef stride,
                                  c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                  bool transposed, c10::SymIntArrayRef output_padding,
                                  c10::SymInt groups, std::array<bool, 3> output_mask);
std::tuple<Tensor, Tensor> native_dropout(const Tensor &input, double p, std::optional<bool> train);

} // namespace fl_torch::ops
