// ops_view.cpp: views. A view is metadata on the same storage, for every platform alike; none of
// these may ever copy, fall back or touch the device.
#include "ops.h"

#include "register.h"

#include <ATen/NativeFunctions.h>

namespace fl_torch::ops {

Tensor as_strided(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
    FL_COUNT_CALL("aten::as_strided", FL_ROUTE_VIEW);
    return at::native::as_strided_tensorimpl(
        self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
        offset.has_value() ? std::make_optional(offset->expect_int()) : std::nullopt);
}

Tensor view(const Tensor &self, c10::SymIntArrayRef size) {
    FL_COUNT_CALL("aten::view", FL_ROUTE_VIEW);
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

// The result must not be recorded as a view for autograd, which is the caller's business; here it
// is the same metadata.
Tensor unsafe_view(const Tensor &self, c10::SymIntArrayRef size) {
    FL_COUNT_CALL("aten::_unsafe_view", FL_ROUTE_VIEW);
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor reshape_alias(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    FL_COUNT_CALL("aten::_reshape_alias", FL_ROUTE_VIEW);
    return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor unfold(const Tensor &self, int64_t dimension, int64_t size, int64_t step) {
    FL_COUNT_CALL("aten::unfold", FL_ROUTE_VIEW);
    return at::native::unfold(self, dimension, size, step);
}

Tensor view_as_real(const Tensor &self) {
    FL_COUNT_CALL("aten::view_as_real", FL_ROUTE_VIEW);
    return at::native::view_as_real(self);
}

Tensor view_as_complex(const Tensor &self) {
    FL_COUNT_CALL("aten::view_as_complex", FL_ROUTE_VIEW);
    return at::native::view_as_complex(self);
}

} // namespace fl_torch::ops
