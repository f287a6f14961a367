// twin_kernel.h: a call of the kernel that the twin has for an operator.
//
// It is what Op::redispatch(twin.keys, ...) does, but the kernel's place in the dispatch table is
// looked up once: to look costs as much as to show a third of a tensor. The keys never change, and
// an operator's table is part of the operator, so that what is registered later is written to the
// same place. Relies on the dispatcher's own members, to which every TypedOperatorHandle is a
// friend.
#pragma once

#include "twin.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace fl_torch {
struct TwinTable;
}

template <>
class c10::TypedOperatorHandle<fl_torch::TwinTable> {
  public:
    // Raises where the twin has no kernel. What is returned lives as long as the operator.
    static const c10::KernelFunction &kernel_of(const c10::OperatorHandle &op) {
        return op.operatorDef_->op.lookup(fl_torch::twin.keys);
    }
};

namespace fl_torch {

template <class Op, class Schema = typename Op::schema>
struct TwinKernel;

template <class Op, class R, class... A>
struct TwinKernel<Op, R(A...)> {
    C10_ALWAYS_INLINE static R call(A... arguments) {
        const TwinKernel &found = once();
        return found.kernel_.template call<R, A...>(found.op_, twin.keys,
                                                    std::forward<A>(arguments)...);
    }

    // Whether the kernel is still the one that was there when this was first asked. A program may
    // put another in its place, and then no other operator may be called instead of this one.
    C10_ALWAYS_INLINE static bool is_unchanged() {
        const TwinKernel &found = once();
        return found.kernel_._equalsBoxedAndUnboxed(found.first_);
    }

  private:
    C10_ALWAYS_INLINE static const TwinKernel &once() {
        static const TwinKernel found;
        return found;
    }

    const c10::OperatorHandle op_ =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    const c10::KernelFunction &kernel_ = c10::TypedOperatorHandle<TwinTable>::kernel_of(op_);
    const c10::KernelFunction first_ = kernel_;
};

} // namespace fl_torch
