// core_copy.cpp: see core_copy.h. Translates tensors to views of the core; knows no device.
#include "core_copy.h"

#include "check.h"
#include "twin.h"

#include "fl/copy.h"
#include "fl/memory.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fl_torch {

namespace {

// The core's dtype, or false for those that only PyTorch knows (quantized, bits, float4, ...).
bool to_core(at::ScalarType type, fl_dtype &out) {
    switch (type) {
#define FL_CASE(torch_name, core_name) \
    case at::ScalarType::torch_name:   \
        out = FL_DTYPE_##core_name;    \
        return true;
        FL_CASE(Byte, U8)
        FL_CASE(Char, I8)
        FL_CASE(Short, I16)
        FL_CASE(Int, I32)
        FL_CASE(Long, I64)
        FL_CASE(Half, F16)
        FL_CASE(Float, F32)
        FL_CASE(Double, F64)
        FL_CASE(ComplexHalf, C32)
        FL_CASE(ComplexFloat, C64)
        FL_CASE(ComplexDouble, C128)
        FL_CASE(Bool, BOOL)
        FL_CASE(BFloat16, BF16)
        FL_CASE(UInt16, U16)
        FL_CASE(UInt32, U32)
        FL_CASE(UInt64, U64)
        FL_CASE(Float8_e4m3fn, F8E4M3FN)
        FL_CASE(Float8_e4m3fnuz, F8E4M3FNUZ)
        FL_CASE(Float8_e5m2, F8E5M2)
        FL_CASE(Float8_e5m2fnuz, F8E5M2FNUZ)
#undef FL_CASE
    default:
        return false;
    }
}

// Unsigned integers of an element's width: between equal dtypes a copy moves bytes and nothing
// else. Not for quantized ones, whose integers mean nothing without their quantizer.
bool to_plain_bytes(at::ScalarType type, fl_dtype &out) {
    if (at::isQIntType(type)) {
        return false;
    }
    switch (at::elementSize(type)) {
    case 1:
        out = FL_DTYPE_U8;
        return true;
    case 2:
        out = FL_DTYPE_U16;
        return true;
    default:
        return false; // The core knows every wider dtype that PyTorch has.
    }
}

fl_view view_of(void *data, fl_dtype dtype, at::IntArrayRef shape, at::IntArrayRef stride) {
    fl_view view;
    view.data = data;
    view.offset = 0;
    view.dtype = dtype;
    view.ndim = 0;
    // PyTorch's tensors may have any number of dimensions. No memory holds a tensor with more than
    // 63 that are longer than one; both sides of a copy leave out the same.
    for (size_t i = 0; i < shape.size(); i++) {
        if (shape[i] != 1) {
            TORCH_CHECK(view.ndim < FL_VIEW_DIMS_MAX, "flagos: a tensor of ", shape.size(),
                        " dimensions has more than ", FL_VIEW_DIMS_MAX, " to copy");
            view.shape[view.ndim] = shape[i];
            view.stride[view.ndim] = stride[i];
            view.ndim++;
        }
    }
    return view;
}

fl_view to_view(const at::Tensor &tensor, fl_dtype dtype, bool written) {
    void *const data =
        written ? tensor.mutable_data_ptr() : const_cast<void *>(tensor.const_data_ptr());
    return view_of(data, dtype, tensor.sizes(), tensor.strides());
}

fl_place to_place(const at::Tensor &tensor) {
    if (tensor.device().type() != kFlagos) {
        TORCH_CHECK(tensor.device().is_cpu(), "flagos: cannot copy between ", tensor.device(),
                    " and a flagos tensor on platform '", fl_platform_chosen()->name, "'");
        return fl_place_host();
    }
    const fl_device device = tensor.device().index();
    return fl_place_device(device, fl_stream_current(device));
}

// What the core is to take the elements of both for. False where it cannot convert between them.
bool core_dtypes(const at::Tensor &self, const at::Tensor &source, fl_dtype &to, fl_dtype &from) {
    const at::ScalarType type = self.scalar_type();
    if (to_core(type, to) && to_core(source.scalar_type(), from)) {
        return true;
    }
    if (type != source.scalar_type() || !to_plain_bytes(type, to)) {
        return false;
    }
    from = to;
    return true;
}

// A conversion that only PyTorch's own kernels know is made on the host, and both ways there and
// back are copies between equal dtypes.
at::Tensor &convert_on_host(at::Tensor &self, const at::Tensor &source) {
    const at::ScalarType types[] = {self.scalar_type(), source.scalar_type()};
    for (const at::ScalarType type : types) {
        fl_dtype unused = FL_DTYPE_U8;
        TORCH_CHECK_NOT_IMPLEMENTED(
            to_core(type, unused) || to_plain_bytes(type, unused), "flagos: copies of dtype ", type,
            " are not served on platform '", fl_platform_chosen()->name, "'");
    }
    return self.copy_(source.to(at::kCPU).to(self.scalar_type()));
}

} // namespace

at::Tensor &core_copy(at::Tensor &self, const at::Tensor &source, bool non_blocking) {
    if (self.is_same(source)) {
        return self;
    }
    TORCH_CHECK(source.layout() == at::kStrided && self.layout() == at::kStrided,
                "flagos: copies between layouts ", source.layout(), " and ", self.layout(),
                " are not served on platform '", fl_platform_chosen()->name, "'");
    if (self._is_zerotensor()) {
        TORCH_CHECK(false,
                    "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, "
                    "if you want a mutable zero tensor.");
    }
    if (source._is_zerotensor()) {
        return self.zero_();
    }
    const at::Tensor broadcast =
        source.sizes() == self.sizes() ? source : source.expand(self.sizes());
    if (self.numel() == 0) {
        return self;
    }
    if (source.is_complex() && !self.is_complex()) {
        TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    }
    fl_dtype to_dtype = FL_DTYPE_U8, from_dtype = FL_DTYPE_U8;
    if (!core_dtypes(self, source, to_dtype, from_dtype)) {
        return convert_on_host(self, broadcast);
    }
    require_memory(*source.unsafeGetTensorImpl());
    require_memory(*self.unsafeGetTensorImpl());
    const fl_view from = to_view(broadcast, from_dtype, false);
    const fl_view to = to_view(self, to_dtype, true);
    const fl_status status =
        fl_copy_view(&to, to_place(self), &from, to_place(source), non_blocking);
    // Overlapping operands are no ValueError in PyTorch.
    TORCH_CHECK(status != FL_INVALID_ARGUMENT, fl_last_message());
    check(status);
    // The bytes of a lazily conjugated or negated tensor are those of its base.
    if (self.is_conj() != source.is_conj()) {
        self.conj_physical_();
    }
    if (self.is_neg() != source.is_neg()) {
        self.neg_();
    }
    return self;
}

void core_copy_bytes(void *destination, const void *source, size_t bytes) {
    fl_device device = 0;
    check(fl_memory_device_of(destination, &device));
    const int64_t extent[] = {static_cast<int64_t>(bytes)};
    const int64_t stride[] = {1};
    const fl_view to = view_of(destination, FL_DTYPE_U8, extent, stride);
    const fl_view from = view_of(const_cast<void *>(source), FL_DTYPE_U8, extent, stride);
    const fl_place place = fl_place_device(device, fl_stream_current(device));
    check(fl_copy_view(&to, place, &from, place, /*non_blocking=*/true));
}

} // namespace fl_torch
