// ops_batch_norm.cpp: the composite asks "are you a CUDA tensor?" before it takes cuDNN's kernel,
// and takes PyTorch's own on an unknown device. Here a tensor that says so is shown to PyTorch's
// choice alone, and the operators are called with the caller's tensors: a composite in disguise
// costs some 15,000 instructions more. What is unusual is left to the disguise, which has the
// twin's messages too.
#include "ops_batch_norm.h"

#include "disguise.h"
#include "register.h"
#include "shadow.h"
#include "twin.h"

#include <ATen/ATen.h>
#include <ATen/native/Normalization.h>
#include <ATen/ops/_batch_norm_impl_index_native.h>

#include <algorithm>
#include <initializer_list>

namespace fl_torch {

namespace {

using at::Tensor;
using at::native::BatchNormBackend;
using OptionalTensor = std::optional<Tensor>;
using BatchNorm = at::_ops::_batch_norm_impl_index;

// What the composite says of the kernel that it took, for whoever calls the gradient by itself.
constexpr int64_t kCudnnIndex = 1;

// A parameter or a statistic: one number a channel, or none at all.
bool is_plain(const OptionalTensor &tensor, int64_t channels) {
    return !tensor.has_value() || !tensor->defined() ||
           (ShadowFrame::needs_shadow(*tensor) && can_be_disguised(*tensor) &&
            tensor->numel() == channels);
}

bool is_plain(const Tensor &input, std::initializer_list<const OptionalTensor *> others) {
    if (!ShadowFrame::needs_shadow(input) || !can_be_disguised(input) || input.dim() < 2 ||
        input.numel() == 0) {
        return false;
    }
    const int64_t channels = input.size(1);
    return std::all_of(others.begin(), others.end(), [channels](const OptionalTensor *tensor) {
        return is_plain(*tensor, channels);
    });
}

Tensor contiguous(const OptionalTensor &tensor) {
    return tensor.has_value() && tensor->defined() ? tensor->contiguous() : Tensor();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t>
batch_norm(const Tensor &input, const OptionalTensor &weight, const OptionalTensor &bias,
           const OptionalTensor &mean, const OptionalTensor &variance, bool training,
           double momentum, double epsilon, bool cudnn_enabled) {
    if (is_plain(input, {&weight, &bias, &mean, &variance})) {
        const auto chosen = at::native::_select_batch_norm_backend(
            disguised(input), weight.value_or(Tensor()), bias.value_or(Tensor()),
            mean.value_or(Tensor()), variance.value_or(Tensor()), training, epsilon);
        if (chosen == BatchNormBackend::Cudnn) { // Whatever cudnn_enabled says, as natively.
            FL_COUNT_CALL("aten::_batch_norm_impl_index", FL_ROUTE_OWN);
            return std::tuple_cat(
                at::cudnn_batch_norm(input.contiguous(input.suggest_memory_format()),
                                     weight->contiguous(), contiguous(bias), contiguous(mean),
                                     contiguous(variance), training, momentum, epsilon),
                std::make_tuple(kCudnnIndex));
        }
        if (chosen != BatchNormBackend::Miopen) {
            FL_COUNT_CALL("aten::_batch_norm_impl_index", FL_ROUTE_OWN);
            return at::native::_batch_norm_impl_index(input, weight, bias, mean, variance, training,
                                                      momentum, epsilon, cudnn_enabled);
        }
    }
    return LeftToDisguise<BatchNorm>::call(input, weight, bias, mean, variance, training, momentum,
                                           epsilon, cudnn_enabled);
}

} // namespace

void register_batch_norm(torch::Library &aten, torch::Library &autograd) {
    if (!twin.present || twin.is_host) {
        return; // PyTorch's own kernels are the only ones on the CPU.
    }
    LeftToDisguise<BatchNorm>::prepare();
    for (torch::Library *const library : {&aten, &autograd}) {
        library->impl("_batch_norm_impl_index", TORCH_FN(batch_norm));
    }
}

} // namespace fl_torch
