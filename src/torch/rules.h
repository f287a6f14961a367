// rules.h: what is known of the results of operators that are not structured in PyTorch. A rule
// says no wherever it is not certain.
#pragma once

#include "infer.h"

#include <ATen/ExpandUtils.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/gelu_backward_meta.h>
#include <ATen/ops/gelu_meta.h>

namespace fl_torch {

// The commonest case alone.
struct OnlyQuick {
    template <class... A>
    static bool make(std::array<at::Tensor, 1> &, const A &...) {
        return false;
    }
};

// where(mask, a, b) of one shape and dtype.
struct Where {
    static bool make(std::array<at::Tensor, 1> &row, const at::Tensor &mask, const at::Tensor &a,
                     const at::Tensor &b) {
        const at::Tensor *const like = same_shape(a, b);
        if (like == nullptr || !ShadowFrame::needs_shadow(a) || !ShadowFrame::needs_shadow(b) ||
            mask.scalar_type() != at::kBool || mask.sizes() != a.sizes() || !mask.is_contiguous()) {
            return false;
        }
        row[0] = new_result(a.sizes(), {}, a.options());
        return true;
    }
};

// masked_fill_ of a tensor without overlap, by a mask that is another tensor's.
struct MaskedFill {
    static bool fits(const at::Tensor &self, const at::Tensor &mask, const at::Scalar &value) {
        return cannot_overlap(self) && c10::isFloatingType(self.scalar_type()) &&
               !value.isComplex() && mask.scalar_type() == at::kBool && !mask.is_alias_of(self) &&
               at::is_expandable_to(mask.sizes(), self.sizes());
    }
};

struct Fill {
    static bool fits(const at::Tensor &self) {
        return cannot_overlap(self);
    }
    static bool fits(const at::Tensor &self, const at::Scalar &value) {
        return fits(self) && !value.isSymbolic() && holds(self.scalar_type(), value);
    }

  private:
    // Whether the conversion is certain to succeed.
    static bool holds(at::ScalarType dtype, const at::Scalar &value) {
        if (value.isComplex() || !value.isIntegral(/*includeBool=*/true)) {
            return !value.isComplex() && c10::isFloatingType(dtype);
        }
        const int64_t number = value.toLong();
        return c10::isFloatingType(dtype) || dtype == at::kLong ||
               (c10::isIntegralType(dtype, /*includeBool=*/true) && number >= 0 &&
                number <= (dtype == at::kBool ? 1 : 127));
    }
};

// The kernel itself, and not what is known before it runs, refuses a bias that does not fit.
template <class Structured>
struct WithBias : Structured {
    void meta(const at::Tensor &bias, const at::Tensor &a, const at::Tensor &b,
              const at::Scalar &beta, const at::Scalar &alpha) {
        at::DimVector sizes(a.sizes());
        sizes.back() = b.size(-1);
        TORCH_CHECK(at::is_expandable_to(bias.sizes(), sizes));
        Structured::meta(bias, a, b, beta, alpha);
    }
};
using Addmm = WithBias<at::meta::structured_addmm>;
using Baddbmm = WithBias<at::meta::structured_baddbmm>;

// So does the kernel with words that it does not know.
template <class Structured>
struct WithWord : Structured {
    template <class... A>
    void meta(const A &...arguments) {
        const c10::string_view word =
            std::get<sizeof...(A) - 1>(std::forward_as_tuple(arguments...));
        TORCH_CHECK(word == "none" || word == "tanh");
        Structured::meta(arguments...);
    }
};
using Gelu = WithWord<at::meta::structured_gelu>;
using GeluBackward = WithWord<at::meta::structured_gelu_backward>;

// The largest or smallest of all elements.
struct WholeExtreme {
    static bool make(std::array<at::Tensor, 1> &row, const at::Tensor &self) {
        if (self.numel() == 0) {
            return false;
        }
        row[0] = new_result({}, {}, self.options());
        return true;
    }
};

struct IndexSelect {
    static bool make(std::array<at::Tensor, 1> &row, const at::Tensor &self, int64_t dim,
                     const at::Tensor &index) {
        if (self.dim() == 0 || index.dim() != 1 || self.numel() == 0 ||
            (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt)) {
            return false;
        }
        at::DimVector sizes(self.sizes());
        sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.size(0);
        row[0] = new_result(sizes, {}, self.options());
        return true;
    }
};

// PyTorch's functions with the arguments of the operators.
inline at::Tensor repeat_in_parts(const at::Tensor &self, c10::SymIntArrayRef repeats) {
    return at::native::repeat(self, C10_AS_INTARRAYREF_SLOW(repeats));
}
inline at::Tensor pad_in_parts(const at::Tensor &self, c10::SymIntArrayRef pad,
                               const at::Scalar &value) {
    return at::native::constant_pad_nd(self, C10_AS_INTARRAYREF_SLOW(pad), value);
}

} // namespace fl_torch
