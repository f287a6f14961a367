// sparse.cpp: sparse tensors, COO and compressed (CSR, CSC, BSR, BSC). Each holds two or three
// plain tensors, its members; a shadow holds the frame's shadows of them.
#include "special.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/DispatchStub.h>
#include <c10/util/SmallVector.h>

namespace fl_torch::sparse {

namespace {

using Members = c10::SmallVector<at::Tensor *, 3>;

at::SparseTensorImpl *as_coo(const at::Tensor &tensor) {
    return tensor.key_set().has_all(c10::sparse_ks)
               ? static_cast<at::SparseTensorImpl *>(tensor.unsafeGetTensorImpl())
               : nullptr;
}

at::SparseCsrTensorImpl *as_compressed(const at::Tensor &tensor) {
    return static_cast<at::SparseCsrTensorImpl *>(tensor.unsafeGetTensorImpl());
}

// The handles in the object itself: a copy would count as a holder more.
Members members_of(const at::Tensor &tensor) {
    if (at::SparseTensorImpl *coo = as_coo(tensor)) {
        return {&coo->indices_, &coo->values_};
    }
    at::SparseCsrTensorImpl *compressed = as_compressed(tensor);
    return {&compressed->crow_indices_, &compressed->col_indices_, &compressed->values_};
}

// A sparse tensor of the twin, shaped like `like`, without members. It has those that its
// constructor makes, which are empty.
at::Tensor twin_like(const at::Tensor &like) {
    const c10::TensorImpl *const impl = like.unsafeGetTensorImpl();
    const c10::Device device = to_twin(to_flagos(impl->device()));
    const c10::DispatchKeySet keys = to_shadow_keys(to_flagos_keys(impl->key_set()));
    at::Tensor made;
    if (at::SparseTensorImpl *source = as_coo(like)) {
        made = at::detail::make_tensor<at::SparseTensorImpl>(keys, impl->dtype());
        at::SparseTensorImpl *coo = as_coo(made);
        coo->raw_resize_(source->sparse_dim(), source->dense_dim(), source->sizes());
        coo->coalesced_ = source->coalesced_;
    } else {
        made = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, impl->layout(),
                                                                impl->dtype());
    }
    set_label(made.unsafeGetTensorImpl(), keys, device);
    return made;
}

void set_members(const at::Tensor &tensor, const Members &members, at::IntArrayRef sizes) {
    if (at::SparseTensorImpl *coo = as_coo(tensor)) {
        coo->indices_ = *members[0];
        coo->values_ = *members[1];
    } else {
        as_compressed(tensor)->set_member_tensors(*members[0], *members[1], *members[2], sizes);
    }
}

} // namespace

void make(ShadowFrame &frame, SpecialShadow &entry) {
    const Members held = members_of(*entry.original);
    Members shown;
    for (size_t i = 0; i < held.size(); i++) {
        entry.parts[i] = *held[i];
        shown.push_back(ShadowFrame::needs_shadow(entry.parts[i])
                            ? &*frame.show(entry.parts[i], entry.written)
                            : &entry.parts[i]);
    }
    at::Tensor shadow = twin_like(*entry.original);
    set_members(shadow, shown, entry.original->sizes());
    entry.shadow = std::move(shadow);
}

void write_back(ShadowFrame &frame, SpecialShadow &entry) {
    const at::Tensor &shadow = *entry.shadow, &original = *entry.original;
    const Members changed = members_of(shadow), held = members_of(original);
    at::SparseTensorImpl *const from = as_coo(shadow), *const to = as_coo(original);
    if (from != nullptr && (from->sparse_dim_ != to->sparse_dim_ ||
                            from->dense_dim_ != to->dense_dim_ || from->sizes() != to->sizes())) {
        to->raw_resize_(from->sparse_dim_, from->dense_dim_, from->sizes());
    }
    for (size_t i = 0; i < held.size(); i++) {
        if (frame.original_of(*changed[i]).is_same(entry.parts[i])) {
            continue;
        }
        // A shadow that nobody else holds gives its member away, so that it can be relabelled.
        at::Tensor member = shadow.use_count() == 1 ? std::move(*changed[i]) : *changed[i];
        frame.adopt(member);
        *held[i] = std::move(member);
    }
    if (from != nullptr) {
        to->coalesced_ = from->coalesced_;
    } else if (shadow.sizes() != original.sizes() || shadow.layout() != original.layout()) {
        as_compressed(original)->set_layout(shadow.layout());
        set_members(original, held, shadow.sizes());
    }
}

void adopt(ShadowFrame &frame, at::Tensor &result) {
    const c10::DispatchKeySet keys = result_keys(result.key_set());
    const c10::Device device = to_flagos(result.device());
    if (result.use_count() != 1) {
        // Somebody else holds the twin's object, which therefore stays as it is.
        at::Tensor copy = twin_like(result);
        set_members(copy, members_of(result), result.sizes());
        result = std::move(copy);
    }
    const Members members = members_of(result);
    frame.adopt(members.data(), members.size());
    set_label(result.unsafeGetTensorImpl(), keys, device);
}

void assign(const at::Tensor &target, const at::Tensor &source) {
    const Members from = members_of(source), to = members_of(target);
    for (size_t i = 0; i < to.size(); i++) {
        if (to[i]->sizes() == from[i]->sizes()) {
            to[i]->copy_(*from[i]);
        } else {
            *to[i] = from[i]->to(target.device());
        }
    }
    if (at::SparseTensorImpl *coo = as_coo(target)) {
        const at::SparseTensorImpl *like = as_coo(source);
        if (like->sparse_dim_ != coo->sparse_dim_ || like->dense_dim_ != coo->dense_dim_ ||
            like->sizes() != coo->sizes()) {
            coo->raw_resize_(like->sparse_dim_, like->dense_dim_, like->sizes());
        }
        coo->coalesced_ = like->coalesced_;
    } else if (target.sizes() != source.sizes() || target.layout() != source.layout()) {
        as_compressed(target)->set_layout(source.layout());
        set_members(target, to, source.sizes());
    }
}

uint64_t nbytes(const at::Tensor &tensor) {
    uint64_t sum = 0;
    for (const at::Tensor *member : members_of(tensor)) {
        sum += member->nbytes();
    }
    return sum;
}

namespace {

// The number of each column of `indices` in a tensor of `size`, counted row by row.
at::Tensor flatten_indices(const at::Tensor &indices, c10::IntArrayRef size) {
    at::Tensor flat = at::zeros({indices.size(1)}, indices.options().dtype(at::kLong));
    int64_t stride = 1;
    for (int64_t i = indices.size(0) - 1; i >= 0; i--) {
        flat.add_(indices.select(0, i), stride);
        stride *= size[static_cast<size_t>(i)];
    }
    return flat;
}

} // namespace

} // namespace fl_torch::sparse

// PyTorch asks this table by device where a new tensor is said to be coalesced; no installed header
// declares it.
namespace at::native {
using flatten_indices_fn = Tensor (*)(const Tensor &, IntArrayRef);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &fl_torch::sparse::flatten_indices)
} // namespace at::native
