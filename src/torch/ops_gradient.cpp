// ops_gradient.cpp: see ops_gradient.h. Such a formula shares the gradient of a maximum among equal
// elements by other kernels on CUDA, and takes the norm of `renorm` in single precision there. The
// recording is PyTorch's own; its node is then replaced by one that is the same in all but this:
// when it runs, PyTorch's own runs in its place on disguised tensors (disguise.h). Second
// derivatives are recorded as ever, since operators on a disguised tensor are its original's.
#include "ops_gradient.h"

#include "disguise.h"

#include <ATen/Operators.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace fl_torch {

namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace nodes = torch::autograd::generated;

// Disguised tensors are not for the user's hooks on saved tensors: those saw the originals.
class NoSavedTensorHooks {
  public:
    NoSavedTensorHooks() {
        at::SavedTensorDefaultHooks::set_tls_state({});
    }
    ~NoSavedTensorHooks() {
        at::SavedTensorDefaultHooks::set_tls_state(before_);
    }
    NoSavedTensorHooks(const NoSavedTensorHooks &) = delete;
    NoSavedTensorHooks &operator=(const NoSavedTensorHooks &) = delete;

  private:
    const at::impl::SavedTensorDefaultHooksTLS before_ =
        at::SavedTensorDefaultHooks::get_tls_state();
};

SavedVariable saved_in_disguise(const Tensor &tensor) {
    const NoSavedTensorHooks no_hooks;
    return {disguised(tensor), /*is_output=*/false};
}

// What a node saved, given to another of its kind. False where a tensor is of a kind that keeps
// PyTorch's own choice.
template <class Recorded>
bool disguise_saved(Recorded &from, const std::shared_ptr<Node> &owner, Recorded &to) {
    const Tensor self = from.self_.unpack();
    const Tensor result = from.result_.unpack(owner);
    if (at::areAnyTensorSubclassLike({self, result})) {
        return false; // One formula for any device, and a disguise would hide the wrapper.
    }
    to.self_ = saved_in_disguise(self);
    to.result_ = saved_in_disguise(result);
    return true;
}

bool disguise_saved(nodes::RenormBackward0 &from, const std::shared_ptr<Node> &,
                    nodes::RenormBackward0 &to) {
    const Tensor self = from.self_.unpack();
    if (!can_be_disguised(self)) {
        return false;
    }
    to.self_ = saved_in_disguise(self);
    to.p = from.p;
    to.dim = from.dim;
    to.maxnorm = from.maxnorm;
    return true;
}

bool disguise_saved(nodes::ForeachMaxBackward1 &from, const std::shared_ptr<Node> &owner,
                    nodes::ForeachMaxBackward1 &to) {
    if (from.self_released_ || from.result_released_) {
        return false; // PyTorch's node says so.
    }
    for (size_t i = 0; i < from.self_.size(); i++) {
        const Tensor self = from.self_[i].unpack();
        const Tensor result = from.result_[i].unpack(owner);
        if (at::areAnyTensorSubclassLike({self, result})) {
            return false;
        }
        to.self_.push_back(saved_in_disguise(self));
        to.result_.push_back(saved_in_disguise(result));
    }
    to.self_size_ = from.self_size_;
    return true;
}

void move_saved(nodes::ForeachMaxBackward1 &from, nodes::ForeachMaxBackward1 &to) {
    to.self_ = std::move(from.self_);
    to.result_ = std::move(from.result_);
    to.self_size_ = from.self_size_;
}

void move_saved(nodes::RenormBackward0 &from, nodes::RenormBackward0 &to) {
    to.self_ = std::move(from.self_);
    to.p = from.p;
    to.dim = from.dim;
    to.maxnorm = from.maxnorm;
}

template <class Recorded>
void move_saved(Recorded &from, Recorded &to) {
    to.self_ = std::move(from.self_);
    to.result_ = std::move(from.result_);
}

template <class Convert>
void convert(variable_list &tensors, const Convert &to) {
    for (Tensor &tensor : tensors) {
        if (tensor.defined()) {
            tensor = to(tensor);
        }
    }
}

// PyTorch's node of this kind; `Recorded` is the class that PyTorch generates for it.
template <class Recorded>
struct InDisguise final : Recorded {
    using Recorded::Recorded;

    variable_list apply(variable_list &&gradients) override {
        const auto shown = std::make_shared<Recorded>();
        if (!show_to(*shown)) {
            return Recorded::apply(std::move(gradients));
        }
        shown->set_next_edges(torch::autograd::edge_list(this->next_edges()));
        convert(gradients, disguised);
        {
            const WithinDisguise within;
            gradients = shown->apply(std::move(gradients));
        }
        convert(gradients, undisguised);
        return std::move(gradients);
    }

  private:
    bool show_to(Recorded &node) {
        // Another thread may release what is saved, after its own pass over the graph.
        const std::lock_guard<std::mutex> lock(this->mutex_);
        return disguise_saved(static_cast<Recorded &>(*this), this->getptr(), node);
    }
};

// Replace the node that PyTorch recorded for what one operator gave.
template <class Recorded>
void record_in_disguise(at::TensorList results) {
    auto *const recorded =
        results.empty() ? nullptr : dynamic_cast<Recorded *>(results[0].grad_fn().get());
    if (recorded == nullptr) {
        return; // Nothing was recorded, or for one of PyTorch's tensor wrappers, or in a view's
                // base.
    }
    if (!recorded->tensor_pre_hooks().empty() || !recorded->retains_grad_hooks().empty()) {
        return; // In place on a tensor with hooks, which its new node has taken over.
    }
    const std::shared_ptr<InDisguise<Recorded>> node(new InDisguise<Recorded>(),
                                                     torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::edge_list(recorded->next_edges()));
    for (const Tensor &result : results) {
        node->add_input_metadata(result);
    }
    move_saved(*recorded, static_cast<Recorded &>(*node));
    for (uint32_t i = 0; i < results.size(); i++) {
        torch::autograd::impl::set_gradient_edge(results[i], {node, i});
    }
}

template <class Operator, class Recorded>
Tensor reduced(c10::DispatchKeySet keys, const Tensor &self) {
    Tensor result = Operator::redispatch(recording(keys), self);
    record_in_disguise<Recorded>(result);
    return result;
}

std::vector<Tensor> foreach_max(c10::DispatchKeySet keys, at::TensorList self) {
    std::vector<Tensor> results = at::_ops::_foreach_max::redispatch(recording(keys), self);
    record_in_disguise<nodes::ForeachMaxBackward1>(results);
    return results;
}

Tensor renorm(c10::DispatchKeySet keys, const Tensor &self, const at::Scalar &p, int64_t dim,
              const at::Scalar &maxnorm) {
    Tensor result = at::_ops::renorm::redispatch(recording(keys), self, p, dim, maxnorm);
    record_in_disguise<nodes::RenormBackward0>(result);
    return result;
}

Tensor &renorm_(c10::DispatchKeySet keys, Tensor &self, const at::Scalar &p, int64_t dim,
                const at::Scalar &maxnorm) {
    at::_ops::renorm_::redispatch(recording(keys), self, p, dim, maxnorm);
    record_in_disguise<nodes::RenormBackward0>(self);
    return self;
}

} // namespace

void register_gradients(torch::Library &autograd) {
    autograd.impl("max", TORCH_FN((reduced<at::_ops::max, nodes::MaxBackward1>)));
    autograd.impl("min", TORCH_FN((reduced<at::_ops::min, nodes::MinBackward1>)));
    autograd.impl("median", TORCH_FN((reduced<at::_ops::median, nodes::MedianBackward0>)));
    autograd.impl("nanmedian", TORCH_FN((reduced<at::_ops::nanmedian, nodes::NanmedianBackward0>)));
    autograd.impl("_foreach_max", TORCH_FN(foreach_max));
    autograd.impl("renorm", TORCH_FN(renorm));
    autograd.impl("renorm_", TORCH_FN(renorm_));
}

} // namespace fl_torch
