// device_check.cpp: see device_check.h.
#include "device_check.h"

#include "router.h"
#include "twin.h"
#include "values.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fl_torch {

namespace {

using c10::IValue;

// A backend that nobody registers kernels for: what the dispatcher keeps there is the composite.
constexpr auto kNobodysKey = c10::DispatchKey::PrivateUse3;

// What PyTorch declares.
const std::unordered_map<std::string_view, DeviceRule> &declared_rules() {
    using R = DeviceRule;
    static const auto *const rules = new std::unordered_map<std::string_view, DeviceRule>{
#define FL_DEVICE_RULE(name, rule) {name, R::rule},
#include "device_rules.inc"
#undef FL_DEVICE_RULE
    };
    return *rules;
}

// What the declarations leave to the CUDA kernel.
const std::unordered_map<std::string_view, DeviceRule> &known_rules() {
    using R = DeviceRule;
    static const auto *const rules = new std::unordered_map<std::string_view, DeviceRule>{
        {"aten::index.Tensor", R::kIndices},
        {"aten::index.Tensor_out", R::kIndices},
        {"aten::_index_put_impl_", R::kIndices},
        {"aten::masked_fill_.Scalar", R::kExact},
        {"aten::masked_fill_.Tensor", R::kLast},
        {"aten::index_fill_.int_Scalar", R::kExact},
        {"aten::index_fill_.int_Tensor", R::kLast},
        {"aten::addcmul", R::kLast},
        {"aten::addcmul_", R::kLast},
        {"aten::addcmul.out", R::kLast},
        {"aten::lerp.Tensor", R::kLast},
        {"aten::lerp_.Tensor", R::kLast},
        {"aten::lerp.Tensor_out", R::kLast},
        {"aten::bernoulli.out", R::kOperator}, // Draws where the result lies, at any probabilities.
        {"aten::copy_", R::kOperator},
        {"aten::is_set_to", R::kOperator},
        {"aten::copy_sparse_to_sparse_", R::kOperator},
        {"aten::_nested_from_padded", R::kOperator},
        {"aten::_nested_view_from_buffer", R::kOperator},
        {"aten::_nested_compute_contiguous_strides_offsets", R::kOperator},
    };
    return *rules;
}

// Iterators whose CUDA kernel takes no operand from the host, not even a number.
bool refuses_host_numbers(std::string_view name) {
    static const auto *const families = new std::unordered_set<std::string_view>{
        "addcdiv",   "binary_cross_entropy",
        "clamp",     "gcd",
        "lcm",       "igamma",
        "igammac",   "lerp",
        "logaddexp", "logaddexp2",
        "mse_loss",  "huber_loss",
        "nextafter", "smooth_l1_loss",
        "complex",   "polar",
    };
    if (name.rfind("aten::", 0) != 0) {
        return false;
    }
    name.remove_prefix(6);
    name = name.substr(0, name.find('.'));
    if (!name.empty() && name.back() == '_') {
        name.remove_suffix(1);
    }
    return families->count(name) != 0;
}

// Visits the defined tensors among the operands: visit(tensor, written, of a list of indices).
template <class Visit>
void each_operand(const OperatorPlan &plan, const IValue *arguments, const Visit &visit) {
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isTensor()) {
            if (value.toTensor().defined()) {
                visit(value.toTensor(), argument.written, false);
            }
        } else if (is_tensor_list(value)) {
            const bool indices = is_list_with_gaps(value);
            for (const IValue &element : value.toListRef()) {
                if (element.isTensor() && element.toTensor().defined()) {
                    visit(element.toTensor(), argument.written, indices);
                }
            }
        }
    }
}

[[noreturn]] void refuse(const OperatorPlan &plan, c10::Device one, c10::Device other) {
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                one, " and ", other, "! (when calling ", plan.slot->name,
                "; move one of them with .to())");
}

} // namespace

DeviceRule device_rule_of(const char *name, const c10::OperatorHandle &op) {
    if (const auto known = known_rules().find(name); known != known_rules().end()) {
        return known->second;
    }
    const auto declared = declared_rules().find(name);
    DeviceRule rule = DeviceRule::kIterator;
    if (declared != declared_rules().end()) {
        rule = declared->second;
    } else if (!op.hasKernelForDispatchKey(twin.key) &&
               op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
        rule = DeviceRule::kParts;
    }
    if (rule == DeviceRule::kOperator) {
        rule = DeviceRule::kIterator; // No more is known than that no check comes first.
    }
    if (rule == DeviceRule::kParts &&
        !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
        rule = DeviceRule::kIterator; // The parts are there under another alias key only.
    }
    return rule == DeviceRule::kIterator && refuses_host_numbers(name) ? DeviceRule::kExact : rule;
}

bool operands_belong_together(const OperatorPlan &plan, const IValue *arguments) {
    c10::Device common(c10::DeviceType::CPU);
    bool flagos = false, mixed = false;
    each_operand(plan, arguments, [&](const at::Tensor &tensor, bool, bool) {
        const c10::Device device = tensor.unsafeGetTensorImpl()->device();
        if (device.type() != kFlagos || (flagos && device != common)) {
            mixed = true;
        } else {
            common = device;
            flagos = true;
        }
    });
    if (C10_LIKELY(!mixed) || !flagos || plan.device_rule == DeviceRule::kOperator) {
        return true;
    }
    if (plan.device_rule == DeviceRule::kParts) {
        return false;
    }
    const at::Tensor *last = nullptr; // Of those that are read.
    each_operand(plan, arguments, [&](const at::Tensor &tensor, bool written, bool) {
        last = written ? last : &tensor;
    });
    const auto may_be_number = [&](const at::Tensor &tensor) {
        return plan.device_rule == DeviceRule::kLast ? &tensor == last
                                                     : plan.device_rule != DeviceRule::kExact;
    };
    bool operand_is_flagos = false;
    each_operand(plan, arguments, [&](const at::Tensor &tensor, bool written, bool indices) {
        const c10::Device device = tensor.device();
        if (plan.device_rule == DeviceRule::kIndices && indices) {
            // Indices on the device need something on the device to index.
            if (device.type() == kFlagos && !operand_is_flagos) {
                refuse(plan, device, c10::Device(c10::DeviceType::CPU));
            }
            if (device.is_cpu() || device == common) {
                return;
            }
        }
        operand_is_flagos |= device.type() == kFlagos;
        const bool is_number = !written && device.is_cpu() && tensor.dim() == 0;
        if (device != common && !(is_number && may_be_number(tensor))) {
            refuse(plan, common, device);
        }
    });
    return true;
}

void call_parts(const c10::OperatorHandle &op, std::vector<IValue> *stack) {
    op.redispatchBoxed(c10::DispatchKeySet(kNobodysKey), stack);
}

} // namespace fl_torch
