// typed_ops.cpp: expands hot_ops.def over typed.h. Holds no logic of its own.
#include "typed_ops.h"

#include "launch.h"
#include "routed_ops.h"
#include "twin.h"
#include "typed.h"

#include <ATen/Operators.h>

namespace fl_torch {

namespace {

template <class Op>
void register_one(torch::Library &aten, const char *name) {
    const auto handle = c10::Dispatcher::singleton().findOp({Op::name, Op::overload_name});
    TORCH_CHECK(handle.has_value(), "torch_fl: hot_ops.def names ", name,
                ", which this PyTorch does not have");
    if (!handle->hasKernelForDispatchKey(twin.key) &&
        !handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
        return; // Only another twin has it.
    }
    if (handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
        return; // With this twin the adapter has a way of its own.
    }
    fl_slot *const slot = offer_routes(handle->operator_name(), FL_ROUTE_NATIVE);
    // Made once and kept: kernels run until the process ends.
    auto *const plan = new OperatorPlan(*handle, slot);
    TypedState<Op>::handle = new c10::OperatorHandle(*handle);
    TypedState<Op>::boxed = new c10::BoxedKernel(
        c10::BoxedKernel::makeFromFunctor(std::make_unique<RoutedOperator>(*plan)));
    TypedState<Op>::plan = plan;
    aten.impl(name, TORCH_FN((Typed<Op, typename Op::schema>::call)));
}

} // namespace

void register_typed(torch::Library &aten) {
    // Where each launch is waited for, the router does that: typed operators stay free of the
    // question.
    if (!twin.present || launch_blocking) {
        return;
    }
#define FL_HOT(structure, name) register_one<at::_ops::structure>(aten, name);
#include "hot_ops.def"
#undef FL_HOT
}

} // namespace fl_torch
