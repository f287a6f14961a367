// deferred_ops.cpp: expands deferred_ops.def over deferred_typed.h. Holds no logic of its own.
#include "deferred_ops.h"

#include "deferred_learned.h"
#include "deferred_typed.h"
#include "rules.h"
#include "twin.h"

#include <ATen/ExpandUtils.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>

namespace fl_torch {

namespace {

// An operator that is not typed on this platform has no plan and keeps no way into the queue.
template <class Op, class Way>
void connect() {
    using Kernel = Typed<Op, typename Op::schema>;
    const OperatorPlan *const plan = TypedState<Op>::plan;
    if (plan != nullptr) {
        DeferredState<Op>::kind = new DeferredKind(plan->slot->name); // Kept for ever.
        Kernel::defer = &Way::defer;
        Kernel::remember = &remember_dtypes<Op, typename Kernel::Result>;
        TwinKernel<Op>::is_unchanged(); // From now on.
    }
}

template <class Op, class Allowed>
void connect_learning() {
    using Way = DeferLearned<Op, Allowed, typename Op::schema>;
    connect<Op, Way>();
    Typed<Op, typename Op::schema>::remember = &Way::remember;
}

} // namespace

void register_deferred() {
    namespace ops = at::_ops;
#define FL_MADE(op, out, rule, quick) \
    connect<ops::op, DeferMade<ops::op, ops::out, rule, quick, ops::op::schema>>();
#define FL_MADE_BLIND(op, out, rule, quick) \
    if (!twin.is_host) {                    \
        FL_MADE(op, out, rule, quick)       \
    }
#define FL_GIVEN(op, rule, quick) \
    connect<ops::op, DeferGiven<ops::op, rule, quick, ops::op::schema>>();
#define FL_PARTS(op, function) \
    connect<ops::op, DeferParts<static_cast<ops::op::schema *>(&function), ops::op::schema>>();
#define FL_LEARNED(op, allowed) connect_learning<ops::op, allowed>();
#define FL_LEARNED_BLIND(op, allowed) \
    if (!twin.is_host) {              \
        FL_LEARNED(op, allowed)       \
    }
#include "deferred_ops.def"
#undef FL_LEARNED
#undef FL_LEARNED_BLIND
#undef FL_MADE
#undef FL_MADE_BLIND
#undef FL_GIVEN
#undef FL_PARTS
}

} // namespace fl_torch
