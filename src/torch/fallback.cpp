// fallback.cpp: see fallback.h. Counts what it moves and how long it takes; never silent.
//
// Operands are copied once each, also when an operator gets the same tensor twice; written ones are
// copied back in place, lists included. Views never come here: a copy cannot alias.
#include "fallback.h"

#include "check.h"
#include "generator.h"
#include "shadow.h"

#include "fl/debug.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <sstream>
#include <unordered_map>

namespace fl_torch {

namespace {

using c10::IValue;
using torch::jit::Stack;

// The host copies of one call's operands.
class HostOperands {
  public:
    at::Tensor copy_of(const at::Tensor &tensor, bool written) {
        if (!ShadowFrame::needs_shadow(tensor)) {
            return tensor;
        }
        device_ = tensor.device();
        Entry &entry = entries_[tensor.unsafeGetTensorImpl()];
        if (!entry.host.defined()) {
            entry.original = tensor;
            entry.host = host_copy(tensor);
        }
        entry.written |= written;
        return entry.host;
    }

    // Copy what the call wrote back to the callers' tensors.
    void copy_back() {
        for (auto &[impl, entry] : entries_) {
            if (!entry.written) {
                continue;
            }
            if (entry.original.sizes() != entry.host.sizes()) {
                entry.original.resize_(entry.host.sizes());
            }
            bytes_ += entry.host.nbytes();
            entry.original.copy_(entry.host);
        }
    }

    // A result of the call as the caller should see it.
    at::Tensor returned(const at::Tensor &result) {
        if (!result.defined() || !result.device().is_cpu()) {
            return result;
        }
        for (auto &[impl, entry] : entries_) {
            if (entry.host.is_same(result)) {
                return entry.original;
            }
        }
        bytes_ += result.nbytes();
        return to_device(result);
    }

    void set_device(c10::Device device) {
        device_ = device;
    }
    c10::Device device() const {
        return device_;
    }
    uint64_t bytes() const {
        return bytes_;
    }

  private:
    struct Entry {
        at::Tensor original, host;
        bool written = false;
    };

    // Strides are kept, for operators choose the layout of their result by them; a tensor that does
    // not fill its memory is copied as the contiguous tensor it would be after clone.
    at::Tensor host_copy(const at::Tensor &tensor) {
        bytes_ += tensor.nbytes();
        at::Tensor host = at::_to_copy(tensor, tensor.options().device(at::kCPU));
        if (host.strides() != tensor.strides() && tensor.is_non_overlapping_and_dense()) {
            at::Tensor strided =
                at::empty_strided(tensor.sizes(), tensor.strides(), host.options());
            strided.copy_(host);
            host = strided;
        }
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
            host.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
        return host;
    }

    at::Tensor to_device(const at::Tensor &result) {
        at::Tensor device = result.is_non_overlapping_and_dense()
                                ? at::empty_strided(result.sizes(), result.strides(),
                                                    result.options().device(device_))
                                : at::empty(result.sizes(), result.options().device(device_));
        device.copy_(result);
        return device;
    }

    std::unordered_map<const void *, Entry> entries_;
    c10::Device device_ = c10::Device(kFlagos, 0);
    uint64_t bytes_ = 0;
};

std::string dtypes_of(const OperatorPlan &plan, const IValue *arguments) {
    std::ostringstream text;
    const char *separator = "";
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isTensor() && value.toTensor().defined()) {
            text << separator << value.toTensor().scalar_type();
            separator = ", ";
        }
    }
    return text.str();
}

void refuse(const OperatorPlan &plan, const IValue *arguments) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "'", plan.slot->name, "' (", dtypes_of(plan, arguments),
                                ") has no kernel on platform '", fl_platform_chosen()->name,
                                "' and strict mode forbids the copy to the CPU. Allow it with "
                                "torch_fl.routes.strict(False), "
                                "or give the operator another route with the rule '",
                                plan.slot->name, " = <route>'");
}

IValue host_value(HostOperands &operands, const IValue &value, bool written) {
    if (value.isTensor()) {
        return IValue(operands.copy_of(value.toTensor(), written));
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const IValue &element : value.toListRef()) {
            list.push_back(element.isNone() ? std::optional<at::Tensor>()
                                            : operands.copy_of(element.toTensor(), written));
        }
        return IValue(std::move(list));
    }
    c10::List<at::Tensor> list;
    for (const IValue &element : value.toListRef()) {
        list.push_back(operands.copy_of(element.toTensor(), written));
    }
    return IValue(std::move(list));
}

void check_operands(const OperatorPlan &plan, const IValue *arguments) {
    OperandCheck operands(plan.slot->name, plan.device_rule);
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isTensor()) {
            operands.add(value.toTensor(), argument.written);
        } else if (value.isTensorList() || value.isOptionalTensorList()) {
            for (const IValue &element : value.toListRef()) {
                if (element.isTensor()) {
                    operands.add(element.toTensor(), argument.written);
                }
            }
        }
    }
}

} // namespace

void call_on_cpu(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    IValue *const arguments = stack->data() + (stack->size() - plan.arguments);
    TORCH_CHECK(!plan.returns_view, "'", plan.slot->name,
                "' returns a view of its argument and cannot be served by a copy on the CPU");
    if (fl_route_is_strict()) {
        refuse(plan, arguments);
    }
    check_operands(plan, arguments);
    const auto start = std::chrono::steady_clock::now();
    HostOperands operands;
    for (const auto &argument : plan.relevant) {
        IValue &value = arguments[argument.index];
        if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
            value = host_value(operands, value, argument.written);
        } else if (value.isDevice() && value.toDevice().type() == kFlagos) {
            operands.set_device(to_flagos(value.toDevice()));
            value = IValue(c10::Device(c10::DeviceType::CPU));
        } else if (argument.generator) {
            std::optional<at::Generator> given;
            if (value.isGenerator()) {
                given = value.toGenerator();
            }
            value = IValue(to_twin(given, operands.device().index()));
        }
    }
    op.redispatchBoxed(c10::DispatchKeySet(plan.keys.host), stack);
    operands.copy_back();
    IValue *const results = stack->data() + (stack->size() - plan.returns);
    for (uint16_t i = 0; i < plan.returns; i++) {
        IValue &value = results[i];
        if ((plan.host_results >> i) & 1) {
            continue;
        }
        if (value.isTensor()) {
            value = IValue(operands.returned(value.toTensor()));
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const IValue &element : value.toListRef()) {
                list.push_back(operands.returned(element.toTensor()));
            }
            value = IValue(std::move(list));
        }
    }
    const auto spent = std::chrono::steady_clock::now() - start;
    fl_slot_add_cpu(
        plan.slot, operands.bytes(),
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
}

} // namespace fl_torch
