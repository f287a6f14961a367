// register.cpp: the whole operator surface on one page: what the adapter implements itself, what is
// typed, and the router for the rest. Holds no implementation.
#include "register.h"

#include "check.h"
#include "deferred_ops.h"
#include "disguise.h"
#include "ops.h"
#include "ops_attention.h"
#include "ops_batch_norm.h"
#include "ops_gradient.h"
#include "ops_linear.h"
#include "ops_norm.h"
#include "ops_rnn.h"
#include "routed_ops.h"
#include "router.h"
#include "twin.h"
#include "typed_ops.h"

#include <torch/library.h>

namespace fl_torch {

fl_slot *slot_of(const char *name) {
    fl_slot *slot = nullptr;
    check(fl_slot_get(name, &slot));
    return slot;
}

namespace {

// The adapter's own operators; the route kind says how reports name them.
template <class Function>
void own(torch::Library &aten, const char *name, fl_route_kind kind, Function function) {
    std::string full(name);
    const size_t dot = full.find('.');
    offer_routes({"aten::" + full.substr(0, dot),
                  dot == std::string::npos ? std::string() : full.substr(dot + 1)},
                 kind);
    aten.impl(name, std::move(function));
}

void register_own(torch::Library &aten) {
    own(aten, "empty.memory_format", FL_ROUTE_OWN, TORCH_FN(ops::empty));
    own(aten, "empty_strided", FL_ROUTE_OWN, TORCH_FN(ops::empty_strided));
    own(aten, "copy_", FL_ROUTE_OWN, TORCH_FN(ops::copy_));
    own(aten, "_copy_from", FL_ROUTE_OWN, TORCH_FN(ops::copy_from));
    own(aten, "_copy_from_and_resize", FL_ROUTE_OWN, TORCH_FN(ops::copy_from_and_resize));
    own(aten, "_to_copy", FL_ROUTE_OWN, TORCH_FN(ops::to_copy));
    own(aten, "_local_scalar_dense", FL_ROUTE_OWN, TORCH_FN(ops::local_scalar_dense));
    own(aten, "set_.source_Storage_storage_offset", FL_ROUTE_OWN,
        TORCH_FN(ops::set_storage_offset));
    own(aten, "set_.source_Storage", FL_ROUTE_OWN, TORCH_FN(ops::set_storage));
    own(aten, "set_.source_Tensor", FL_ROUTE_OWN, TORCH_FN(ops::set_tensor));
    own(aten, "set_", FL_ROUTE_OWN, TORCH_FN(ops::set_none));
    own(aten, "record_stream", FL_ROUTE_OWN, TORCH_FN(ops::record_stream));
    own(aten, "_has_compatible_shallow_copy_type", FL_ROUTE_OWN,
        TORCH_FN(ops::has_compatible_shallow_copy_type));
    own(aten, "resize_", FL_ROUTE_OWN, TORCH_FN(ops::resize_));

    own(aten, "as_strided", FL_ROUTE_VIEW, TORCH_FN(ops::as_strided));
    own(aten, "view", FL_ROUTE_VIEW, TORCH_FN(ops::view));
    own(aten, "slice.Tensor", FL_ROUTE_VIEW, TORCH_FN(ops::slice));
    own(aten, "_unsafe_view", FL_ROUTE_VIEW, TORCH_FN(ops::unsafe_view));
    own(aten, "_reshape_alias", FL_ROUTE_VIEW, TORCH_FN(ops::reshape_alias));
    own(aten, "unfold", FL_ROUTE_VIEW, TORCH_FN(ops::unfold));
    own(aten, "view_as_real", FL_ROUTE_VIEW, TORCH_FN(ops::view_as_real));
    own(aten, "view_as_complex", FL_ROUTE_VIEW, TORCH_FN(ops::view_as_complex));

    own(aten, "convolution_overrideable", FL_ROUTE_OWN, TORCH_FN(ops::convolution_overrideable));
    own(aten, "convolution_backward_overrideable", FL_ROUTE_OWN,
        TORCH_FN(ops::convolution_backward_overrideable));
    if (twin.present && twin.is_host) {
        own(aten, "native_group_norm_backward", FL_ROUTE_OWN, TORCH_FN(ops::group_norm_backward));
    }
    if (twin.is_host) {
        own(aten, "native_dropout", FL_ROUTE_OWN, TORCH_FN(ops::native_dropout));
        own(aten, "_thnn_fused_lstm_cell", FL_ROUTE_OWN, TORCH_FN(ops::fused_lstm_cell));
        own(aten, "_thnn_fused_lstm_cell_backward_impl", FL_ROUTE_OWN,
            TORCH_FN(ops::fused_lstm_cell_backward));
        own(aten, "_thnn_fused_gru_cell", FL_ROUTE_OWN, TORCH_FN(ops::fused_gru_cell));
        own(aten, "_thnn_fused_gru_cell_backward", FL_ROUTE_OWN,
            TORCH_FN(ops::fused_gru_cell_backward));
    } else {
        own(aten, "_cudnn_rnn", FL_ROUTE_OWN, TORCH_FN(ops::cudnn_rnn));
        own(aten, "_cudnn_rnn_flatten_weight", FL_ROUTE_OWN,
            TORCH_FN(ops::cudnn_rnn_flatten_weight));
    }
}

// What must come before PyTorch's own recording for autograd.
void register_above_autograd(torch::Library &aten) {
    // Never destroyed, like the others.
    static auto *const autograd = new torch::Library(
        torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
    if (twin.present && twin.is_host) {
        autograd->impl("native_group_norm", TORCH_FN(ops::group_norm_recorded));
    }
    if (twin.present) {
        register_disguised();
        register_attention(aten, *autograd);
        register_batch_norm(aten, *autograd);
        register_linear(aten, *autograd);
    }
    if (twin.present && !twin.is_host) {
        for (torch::Library *const library : {&aten, autograd}) {
            library->impl("group_norm", TORCH_FN(ops::group_norm));
        }
        register_gradients(*autograd);
    }
}

} // namespace

void register_operators() {
    // Never destroyed: deregistering at exit would race with threads that still run.
    static auto *const aten = new torch::Library(torch::Library::IMPL, "aten",
                                                 c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    register_own(*aten);
    register_above_autograd(*aten);
    register_typed(*aten);
    register_deferred();
    register_router();
}

} // namespace fl_torch
