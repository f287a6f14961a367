// device_check.h: what CUDA says about operands on different devices, said for platforms whose
// kernels would not notice: on the host twin every tensor looks like a CPU tensor, and the CPU
// fallback would copy anything.
//
// The rules come from PyTorch's own declarations (device_rules.py); what those do not say of a CUDA
// kernel stands in device_check.cpp by name.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace fl_torch {

struct OperatorPlan;

enum class DeviceRule : uint8_t {
    kExact,    // All tensors on one device.
    kIterator, // The same, but a 0-dim host tensor that is only read may stand beside them.
    kLast,     // All on one device, but the last one may be a 0-dim host tensor.
    kIndices,  // Like kIterator, and lists of indices may lie on the host whatever their size.
    kParts,    // Composed of other operators, each of which has its own rule.
    kOperator, // The operator takes tensors of different devices by its meaning.
};

// `name` is the operator's full name ("aten::add.Tensor").
DeviceRule device_rule_of(const char *name, const c10::OperatorHandle &op);

// Whether the operands in `arguments` lie on one device, so that they may be shown to a kernel.
// Raises where the operator refuses them; answers false where the operator is to be run as its
// parts.
bool operands_belong_together(const OperatorPlan &plan, const c10::IValue *arguments);

// Run the parts of a composite operator on its operands as they are.
void call_parts(const c10::OperatorHandle &op, std::vector<c10::IValue> *stack);

} // namespace fl_torch
