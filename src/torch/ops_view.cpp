// ops_view.cpp: views. A view is metadata on the same storage, for every platform alike; none of
// these may ever copy, fall back or touch the device.
//
// What models call most is made here without PyTorch's ways through small allocations and, for a
// slice, the dispatcher. Whatever is not plainly right goes to PyTorch's function, which knows the
// rest of the rules and the words for what is wrong.
#include "ops.h"

#include "alias.h"
#include "register.h"
#include "twin.h"

#include <ATen/NativeFunctions.h>
#include <ATen/record_function.h>

namespace fl_torch::ops {

namespace {

bool is_plain(const Tensor &self) {
    const c10::TensorImpl *const impl = self.unsafeGetTensorImpl();
    return !is_special(impl->key_set()) && !impl->has_named_tensor_meta();
}

bool are_numbers(c10::SymIntArrayRef values) {
    bool symbolic = false;
    for (const c10::SymInt &value : values) {
        symbolic |= value.is_heap_allocated();
    }
    return !symbolic;
}

// The layout of a view of contiguous memory.
class FlatView {
  public:
    // False for whatever else PyTorch's view may be able to do, or refuses.
    bool fits(const Tensor &self, c10::SymIntArrayRef wanted) {
        const c10::TensorImpl *const impl = self.unsafeGetTensorImpl();
        const int64_t numel = impl->numel();
        dims_ = wanted.size();
        if (dims_ > kMost || numel == 0 || !is_plain(self) || !are_numbers(wanted)) {
            return false;
        }
        // Of dimensions of one element too, which is_contiguous leaves out.
        const IntArrayRef sizes = impl->sizes(), strides = impl->strides();
        int64_t expected = 1;
        for (size_t dim = sizes.size(); dim-- > 0; expected *= sizes[dim]) {
            if (strides[dim] != expected) {
                return false;
            }
        }
        return infer(c10::asIntArrayRefUnchecked(wanted), numel);
    }
    IntArrayRef sizes() const {
        return {sizes_, dims_};
    }
    IntArrayRef strides() const {
        return {strides_, dims_};
    }

  private:
    static constexpr size_t kMost = 8;

    // The size given as -1 is what is left.
    bool infer(IntArrayRef wanted, int64_t numel) {
        int64_t known = 1;
        size_t left = dims_;
        for (size_t dim = 0; dim < dims_; dim++) {
            sizes_[dim] = wanted[dim];
            if (wanted[dim] == -1 && left == dims_) {
                left = dim;
            } else if (wanted[dim] <= 0 || __builtin_mul_overflow(known, wanted[dim], &known)) {
                return false;
            }
        }
        if (left != dims_) {
            sizes_[left] = numel / known;
            known *= sizes_[left];
        }
        int64_t stride = 1;
        for (size_t dim = dims_; dim-- > 0; stride *= sizes_[dim]) {
            strides_[dim] = stride;
        }
        return known == numel;
    }

    size_t dims_ = 0;
    int64_t sizes_[kMost], strides_[kMost];
};

Tensor flat_view(const Tensor &self, c10::SymIntArrayRef size) {
    FlatView view;
    if (C10_LIKELY(view.fits(self, size))) {
        return alias_of(self, view.sizes(), view.strides(), self.storage_offset());
    }
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

} // namespace

Tensor as_strided(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
    FL_COUNT_CALL("aten::as_strided", FL_ROUTE_VIEW);
    const int64_t begin = offset.has_value() ? offset->expect_int() : self.storage_offset();
    if (C10_LIKELY(size.size() == stride.size() && are_numbers(size) && are_numbers(stride))) {
        Tensor result = alias_within(self, c10::asIntArrayRefUnchecked(size),
                                     c10::asIntArrayRefUnchecked(stride), begin);
        if (C10_LIKELY(result.defined())) {
            return result;
        }
    }
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                             C10_AS_INTARRAYREF_SLOW(stride), begin);
}

Tensor view(const Tensor &self, c10::SymIntArrayRef size) {
    FL_COUNT_CALL("aten::view", FL_ROUTE_VIEW);
    return flat_view(self, size);
}

Tensor slice(const Tensor &self, int64_t dim, std::optional<int64_t> start,
             std::optional<int64_t> end, int64_t step) {
    // PyTorch's calls as_strided, which a profiler shows.
    if (C10_UNLIKELY(!is_plain(self) || dim < -self.dim() || dim >= self.dim() || step <= 0 ||
                     at::hasCallbacks())) {
        return at::native::slice(self, dim, start, end, step);
    }
    FL_COUNT_CALL("aten::slice.Tensor", FL_ROUTE_VIEW);
    const size_t sliced = static_cast<size_t>(dim < 0 ? dim + self.dim() : dim);
    at::DimVector sizes(self.sizes().begin(), self.sizes().end());
    at::DimVector strides(self.strides().begin(), self.strides().end());
    const int64_t extent = sizes[sliced];
    const auto within = [extent](int64_t place, int64_t least) {
        return std::min(std::max(place < 0 ? place + extent : place, least), extent);
    };
    const int64_t first = within(start.value_or(0), 0);
    const int64_t behind = within(end.value_or(INT64_MAX), first);
    int64_t reach = 0, begin = 0;
    sizes[sliced] = (behind - first) / step + ((behind - first) % step != 0);
    if (C10_UNLIKELY(__builtin_mul_overflow(first, strides[sliced], &reach) ||
                     __builtin_add_overflow(self.storage_offset(), reach, &begin) ||
                     __builtin_mul_overflow(strides[sliced], step, &strides[sliced]))) {
        return at::native::slice(self, dim, start, end, step);
    }
    Tensor result = alias_within(self, sizes, strides, begin);
    return C10_LIKELY(result.defined()) ? result : at::native::slice(self, dim, start, end, step);
}

// The result must not be recorded as a view for autograd, which is the caller's business; here it
// is the same metadata.
Tensor unsafe_view(const Tensor &self, c10::SymIntArrayRef size) {
    FL_COUNT_CALL("aten::_unsafe_view", FL_ROUTE_VIEW);
    return flat_view(self, size);
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
