// structural.cpp: see structural.h. Knows the operators by name, and nothing of the objects.
#include "structural.h"

#include "check.h"
#include "schema.h"
#include "shadow.h"

#include "fl/device.h"

#include <c10/core/DeviceGuard.h>

#include <unordered_set>

namespace fl_torch {

namespace {

using c10::IValue;

// Where the parts of a new object lie: an argument that names a device goes before the operands, as
// in PyTorch's own wrappers; nothing for another kind of device and for one without an index.
std::optional<c10::Device> device_of_parts(const OperatorPlan &plan, const IValue *arguments) {
    std::optional<c10::Device> device;
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isDevice()) {
            device = value.toDevice();
            break;
        }
        if (!device.has_value() && value.isTensor() &&
            ShadowFrame::needs_shadow(value.toTensor())) {
            device = value.toTensor().device();
        }
    }
    if (!device.has_value() || device->type() != kFlagos || !device->has_index()) {
        return std::nullopt;
    }
    check(fl_device_check(device->index()));
    return device;
}

} // namespace

// They only look at the holder, or are written in PyTorch as other operators on what it holds, with
// one function for every device. So are all that return a view, and all that name a device, which
// may be another one than the tensor's.
bool is_structural(const OperatorPlan &plan, const c10::OperatorHandle &op) {
    static const std::unordered_set<std::string> names = {
        // Sparse.
        "aten::_nnz",
        "aten::sparse_dim",
        "aten::dense_dim",
        "aten::_dimI",
        "aten::_dimV",
        "aten::is_coalesced",
        "aten::_coalesced_",
        "aten::sparse_resize_",
        "aten::sparse_resize_and_clear_",
        "aten::resize_as_sparse_",
        "aten::copy_sparse_to_sparse_",
        // Quantized.
        "aten::q_scale",
        "aten::q_zero_point",
        "aten::q_per_channel_scales",
        "aten::q_per_channel_zero_points",
        "aten::q_per_channel_axis",
        "aten::qscheme",
        "aten::set_.source_Storage_storage_offset",
        // Nested.
        "aten::_nested_tensor_size",
        "aten::_nested_tensor_strides",
        "aten::_nested_tensor_storage_offsets",
        "aten::_nested_view_from_buffer",
        "aten::is_same_size",
    };
    static const std::unordered_set<std::string> unless_quantized = {
        "aten::copy_", "aten::clone", "aten::resize_", "aten::zero_"};
    const std::string name = plan.slot->name;
    if (!op.hasKernelForDispatchKey(plan.keys.host)) {
        return false;
    }
    if (plan.keys.flagos == c10::DispatchKey::PrivateUse1) {
        return name == "aten::_nested_view_from_buffer";
    }
    return plan.returns_view || has_argument(op.schema(), c10::TypeKind::DeviceObjType) ||
           names.count(name) != 0 ||
           (plan.keys.flagos != c10::DispatchKey::QuantizedPrivateUse1 &&
            unless_quantized.count(name) != 0);
}

// PyTorch's constructors of such objects make their first members on the current device.
void call_structural(const OperatorPlan &plan, const c10::OperatorHandle &op,
                     torch::jit::Stack *stack) {
    fl_tally_count(thread_state().tally, plan.slot, FL_ROUTE_VIEW);
    const c10::OptionalDeviceGuard guard(
        device_of_parts(plan, stack->data() + (stack->size() - plan.arguments)));
    op.redispatchBoxed(c10::DispatchKeySet(plan.keys.host), stack);
}

} // namespace fl_torch
