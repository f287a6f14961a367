// structural.h: operators that only look at an object that holds tensors (sparse, quantized,
// nested), take it apart or put it together. PyTorch's own functions for them work on flagos
// tensors as they are.
#pragma once

#include "router.h"

namespace fl_torch {

bool is_structural(const OperatorPlan &plan, const c10::OperatorHandle &op);

// Call PyTorch's function on the arguments as they are, with their device current.
void call_structural(const OperatorPlan &plan, const c10::OperatorHandle &op,
                     torch::jit::Stack *stack);

} // namespace fl_torch
