// ops_linear.cpp: see ops_linear.h. PyTorch makes `linear` of five operators (a transposed view, a
// flat one, the product, and a view of that), and each costs a way through the dispatcher; models
// call it more than any other. Where nobody watches the parts, a shadow is made transposed or flat
// at once and only the twin's product is called: the kernel is the same, and so are the bits. All
// other calls are PyTorch's composite.
#include "ops_linear.h"

#include "alias.h"
#include "errors.h"
#include "launch.h"
#include "queue.h"
#include "register.h"
#include "shadow.h"
#include "twin_kernel.h"

#include <ATen/Operators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear_compositeimplicitautograd_dispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fl_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr c10::DispatchKeySet
    kFlagosKeys({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ADInplaceOrView,
                 c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::AutocastPrivateUse1});

// A dense flagos tensor without lazy bits, names or a wrapper around it.
bool is_plain(const Tensor &tensor) {
    const c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    return ShadowFrame::needs_shadow(tensor) &&
           (impl->key_set().raw_repr() & ~kFlagosKeys.raw_repr()) == 0 &&
           !impl->has_named_tensor_meta();
}

bool needs_gradient(const Tensor &tensor) {
    return (at::GradMode::is_enabled() && tensor.requires_grad()) ||
           tensor._fw_grad(/*level=*/0).defined();
}

// Whether anybody would see the parts: a mode, a transform, the tracer, the profiler.
bool is_watched() {
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    return !(keys.included_ - keys.excluded_ - c10::default_included_set -
             c10::autocast_dispatch_keyset)
                .empty() ||
           at::hasCallbacks();
}

// The cases in which PyTorch takes one product of two matrices, of a weight without a gradient.
bool is_one_product(const Tensor &input, const Tensor &weight, const OptionalTensor &bias) {
    if (!is_plain(input) || !is_plain(weight) || weight.is_same(input)) {
        return false;
    }
    const int64_t dim = input.dim();
    if (weight.dim() != 2 || dim < 2 || dim > (bias.has_value() ? 3 : 4) ||
        !input.is_contiguous() || input.numel() == 0 || weight.numel() == 0 ||
        input.size(dim - 1) != weight.size(1) || input.dtype() != weight.dtype() ||
        input.device() != weight.device() || needs_gradient(input)) {
        return false;
    }
    return !bias.has_value() ||
           (is_plain(*bias) && bias->dim() == 1 && bias->size(0) == weight.size(0) &&
            bias->dtype() == input.dtype() && bias->device() == input.device() &&
            !bias->is_same(input) && !bias->is_same(weight) && !needs_gradient(*bias));
}

bool is_native(const fl_slot *slot) {
    return fl_slot_route(slot)->kind == FL_ROUTE_NATIVE;
}

// Sizes and strides of both operands of the product: the input flat, the weight turned.
struct Matrices {
    int64_t flat[2], flat_strides[2], turned[2], turned_strides[2];

    Matrices(const Tensor &input, const Tensor &weight)
        : flat{input.numel() / weight.size(1), weight.size(1)}, flat_strides{weight.size(1), 1},
          turned{weight.size(1), weight.size(0)}, turned_strides{weight.stride(1),
                                                                 weight.stride(0)} {}
};

// The twin's product of shadows.
Tensor product_now(const Tensor &input, const Tensor &weight, const OptionalTensor &bias,
                   fl_slot *slot) {
    const Matrices shapes(input, weight);
    ShadowFrame frame;
    fl_tally_count(frame.state().tally, slot, FL_ROUTE_NATIVE);
    try {
        const Tensor &flat = *frame.show(input, false);
        flat.unsafeGetTensorImpl()->set_sizes_and_strides(shapes.flat, shapes.flat_strides);
        const Tensor &turned = *frame.show(weight, false);
        turned.unsafeGetTensorImpl()->set_sizes_and_strides(shapes.turned, shapes.turned_strides);
        Tensor result =
            bias.has_value()
                ? TwinKernel<at::_ops::addmm>::call(*frame.show(*bias, false), flat, turned, 1, 1)
                : TwinKernel<at::_ops::mm>::call(flat, turned);
        frame.adopt(result);
        return result;
    } catch (...) {
        rethrow_in_user_words(slot->name);
    }
}

// With the launch queue on, our own product of views, which queues.
Tensor product_later(const Tensor &input, const Tensor &weight, const OptionalTensor &bias) {
    const Matrices shapes(input, weight);
    constexpr c10::DispatchKeySet ours(c10::DispatchKey::PrivateUse1);
    const Tensor flat = alias_of(input, shapes.flat, shapes.flat_strides, input.storage_offset());
    const Tensor turned =
        alias_of(weight, shapes.turned, shapes.turned_strides, weight.storage_offset());
    return bias.has_value() ? at::_ops::addmm::redispatch(ours, *bias, flat, turned, 1, 1)
                            : at::_ops::mm::redispatch(ours, flat, turned);
}

Tensor product(const Tensor &input, const Tensor &weight, const OptionalTensor &bias,
               fl_slot *slot) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return queue_is_on() ? product_later(input, weight, bias)
                         : product_now(input, weight, bias, slot);
}

Tensor linear(const Tensor &input, const Tensor &weight, const OptionalTensor &bias) {
    static fl_slot *const mm = slot_of("aten::mm"), *const addmm = slot_of("aten::addmm");
    const OptionalTensor given = bias.has_value() && bias->defined() ? bias : std::nullopt;
    fl_slot *const slot = given.has_value() ? addmm : mm;
    // The weight of a model in training, which most calls are made with, is asked first.
    if (needs_gradient(weight) || launch_blocking || is_watched() || !is_native(slot) ||
        !is_one_product(input, weight, given)) {
        return at::compositeimplicitautograd::linear(input, weight, bias);
    }
    Tensor result = product(input, weight, given, slot);
    if (input.dim() > 2) {
        c10::SmallVector<int64_t, 4> sizes(input.sizes().begin(), input.sizes().end());
        sizes.back() = weight.size(0);
        if (given.has_value() && !c10::InferenceMode::is_enabled()) {
            return result.view(sizes); // Autograd knows this one for a view, as PyTorch makes it.
        }
        result.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    }
    return result;
}

} // namespace

void register_linear(torch::Library &aten, torch::Library &autograd) {
    aten.impl("linear", TORCH_FN(linear));
    autograd.impl("linear", TORCH_FN(linear));
}

} // namespace fl_torch
