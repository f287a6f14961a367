// fallback.h: the `cpu` route: copy the operands to the host, run PyTorch's CPU kernel, copy back.
#pragma once

#include "router.h"

namespace fl_torch {

// Raises in strict mode, naming the operator, the dtypes and the rule that would allow it.
void call_on_cpu(const OperatorPlan &plan, const c10::OperatorHandle &op, torch::jit::Stack *stack);

} // namespace fl_torch
