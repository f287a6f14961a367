// infer.h: the sizes, strides and dtype of an operator's results before it runs, exactly as the
// twin's kernel will want them.
//
// PyTorch has a function for that for each structured operator, which its own kernels call first;
// it is called here on the caller's tensors, and asks for results that are made on flagos. It takes
// most of a microsecond for element-wise operators, so the commonest case, contiguous tensors of
// one shape and one floating dtype, is decided before it. Knows no operator by name.
#pragma once

#include "allocator.h"
#include "deferred.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fl_torch {

// --- results
// ---------------------------------------------------------------------------------------

inline at::Tensor new_result(at::IntArrayRef sizes, at::IntArrayRef strides,
                             const at::TensorOptions &options) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    const auto dtype = c10::typeMetaToScalarType(options.dtype());
    c10::Allocator *const allocator = &result_allocator();
    at::Tensor result =
        strides.empty()
            ? at::detail::empty_generic(sizes, allocator, keys, dtype, options.memory_format_opt())
            : at::detail::empty_strided_generic(sizes, strides, allocator, keys, dtype);
    // What the storage takes later, when it is resized, is not for a queued operator.
    result.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->set_allocator(
        &flagos_allocator());
    return result;
}

// A contiguous result of the same sizes, without the checks that `like` has passed already.
inline at::Tensor new_result_like(const at::Tensor &like, at::ScalarType dtype) {
    const caffe2::TypeMeta meta = c10::scalarTypeToTypeMeta(dtype);
    const size_t nbytes = static_cast<size_t>(like.numel()) * meta.itemsize();
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), nbytes, allocate_result(nbytes), &flagos_allocator(),
        /*resizable=*/true);
    at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
    result.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
    return result;
}

// Whether no two elements of the tensor can lie at one place. Says no where it is not certain.
inline bool cannot_overlap(const at::Tensor &tensor) {
    const c10::TensorImpl &impl = *tensor.unsafeGetTensorImpl();
    if (impl.is_non_overlapping_and_dense()) {
        return true;
    }
    c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims; // Stride and extent.
    for (int64_t dim = 0; dim < tensor.dim(); dim++) {
        if (tensor.size(dim) != 1) {
            dims.emplace_back(tensor.stride(dim), tensor.size(dim));
        }
    }
    std::sort(dims.begin(), dims.end());
    int64_t end = 1; // Of what the inner dimensions cover.
    for (const auto &[stride, extent] : dims) {
        if (stride < end) {
            return false;
        }
        end += (extent - 1) * stride;
    }
    return true;
}

// Asks a structured operator for its results, which are made.
template <class Meta, size_t N>
class MadeResults final : public Meta {
  public:
    std::array<at::Tensor, N> results;

    void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                            at::TensorOptions options, at::DimnameList names) override {
        set_output_raw_strided(index, sizes, strides, options, names);
    }
    void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::TensorOptions options, at::DimnameList names) override {
        results[static_cast<size_t>(index)] = new_result(sizes, strides, options);
        if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
            Meta::set_output_raw_strided(index, sizes, strides, options, names);
        }
    }
    const at::Tensor &maybe_get_output(int64_t index) override {
        return results[static_cast<size_t>(index)];
    }
};

// Asks a structured operator whether results that are given, in place or as `out=`, are what it
// wants: nothing would be resized, refused, or converted on the way.
template <class Meta, size_t N>
class GivenResults final : public Meta {
  public:
    explicit GivenResults(const std::array<at::Tensor *, N> &given) : given_(given) {}

    bool fit = true;

    void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                            at::TensorOptions options, at::DimnameList names) override {
        set_output_raw_strided(index, sizes, strides, options, names);
    }
    void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::TensorOptions options, at::DimnameList names) override {
        const at::Tensor &given = *given_[static_cast<size_t>(index)];
        fit &= given.sizes() == sizes && given.dtype() == options.dtype() &&
               given.device() == options.device();
        if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
            Meta::set_output_raw_strided(index, sizes, strides, options, names);
        }
    }
    const at::Tensor &maybe_get_output(int64_t index) override {
        return *given_[static_cast<size_t>(index)];
    }

  private:
    const std::array<at::Tensor *, N> given_;
};

// Arguments as structured functions want them.
template <class T>
const T &as_meta(const T &argument) {
    return argument;
}
inline int64_t as_meta(const c10::SymInt &argument) {
    return argument.expect_int();
}
inline at::IntArrayRef as_meta(c10::SymIntArrayRef argument) {
    return C10_AS_INTARRAYREF_SLOW(argument);
}
inline at::OptionalScalarRef as_meta(const std::optional<at::Scalar> &argument) {
    return argument.has_value() ? at::OptionalScalarRef(*argument) : at::OptionalScalarRef();
}
inline at::OptionalTensorRef as_meta(const std::optional<at::Tensor> &argument) {
    return argument.has_value() && argument->defined() ? at::OptionalTensorRef(*argument)
                                                       : at::OptionalTensorRef();
}

// --- the commonest case of element-wise operators
// ---------------------------------------------------

// What the operands of one call have in common so far.
class SameShape {
  public:
    void operator()(const at::Tensor &tensor) {
        if (!tensor.defined()) {
            good_ = false;
        } else if (ShadowFrame::needs_shadow(tensor)) {
            add(tensor);
        } else {
            // A number joins the shape by broadcasting, which asks for strides in order.
            has_number_ = true;
            good_ &= !tensor.is_complex();
        }
    }
    void operator()(const at::Scalar &number) {
        good_ &= !number.isComplex() && !number.isSymbolic();
    }
    void operator()(const std::optional<at::Scalar> &number) {
        good_ &= !number.has_value() || !number->isComplex();
    }
    void operator()(c10::string_view word) {
        good_ &= word == "none" || word == "tanh"; // Whatever else the rule refuses.
    }
    template <class T>
    std::enable_if_t<!std::is_convertible_v<T, at::Scalar> || std::is_arithmetic_v<T>>
    operator()(const T &) {}

    // The tensor whose shape, dtype and contiguity are all tensors', or nullptr.
    const at::Tensor *found() const {
        const bool in_order = !has_number_ || (first_ != nullptr && is_in_order(*first_));
        return good_ && in_order ? first_ : nullptr;
    }

  private:
    void add(const at::Tensor &tensor) {
        c10::TensorImpl &impl = *tensor.unsafeGetTensorImpl();
        if (first_ == nullptr) {
            first_ = &tensor;
            good_ &= c10::isFloatingType(tensor.scalar_type()) && impl.numel() != 0;
        } else {
            good_ &= impl.sizes() == first_->sizes() && impl.dtype() == first_->dtype();
        }
        good_ &= impl.is_contiguous() && !impl.is_wrapped_number();
    }
    // Also where an extent of 1 leaves the choice of its stride free.
    static bool is_in_order(const at::Tensor &tensor) {
        int64_t wanted = 1;
        for (int64_t dim = tensor.dim() - 1; dim >= 0; dim--) {
            if (tensor.stride(dim) != wanted) {
                return false;
            }
            wanted *= tensor.size(dim);
        }
        return true;
    }

    const at::Tensor *first_ = nullptr;
    bool good_ = true, has_number_ = false;
};

// How an operator takes part in that.
struct NotQuick {
    static constexpr bool kIsQuick = false;
};
// The result has the operands' dtype.
struct Pointwise {
    static constexpr bool kIsQuick = true;
    static at::ScalarType dtype(const at::Tensor &like) {
        return like.scalar_type();
    }
};
// The result is a mask.
struct Comparison {
    static constexpr bool kIsQuick = true;
    static at::ScalarType dtype(const at::Tensor &) {
        return at::kBool;
    }
};

template <class... A>
const at::Tensor *same_shape(const A &...arguments) {
    SameShape shape;
    (shape(arguments), ...);
    return shape.found();
}

} // namespace fl_torch
