// fallback.cpp: see fallback.h. Counts what it moves and how long it takes; never silent.
//
// Operands are copied once each, also when an operator gets the same tensor twice; written ones are
// copied back in place, lists included. Views never come here: a copy cannot alias.
#include "fallback.h"

#include "check.h"
#include "errors.h"
#include "generator.h"
#include "host_operands.h"
#include "packed.h"
#include "shadow.h"
#include "values.h"

#include "fl/debug.h"
#include "fl/device.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <vector>

namespace fl_torch {

namespace {

using c10::IValue;
using torch::jit::Stack;

// "Float, [Float, Half]": one word for a tensor, and for a list, which may be as long as a model
// has parameters, each dtype that occurs in it.
std::string dtypes_of(const OperatorPlan &plan, const IValue *arguments) {
    std::ostringstream text;
    const char *separator = "";
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        std::vector<c10::ScalarType> types;
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (tensor.defined() &&
                std::find(types.begin(), types.end(), tensor.scalar_type()) == types.end()) {
                types.push_back(tensor.scalar_type());
            }
        });
        if (value.isList()) {
            text << separator << '[' << c10::Join(", ", types) << ']';
        } else if (!types.empty()) {
            text << separator << types.front();
        } else {
            continue;
        }
        separator = ", ";
    }
    return text.str();
}

bool has_another_route(const fl_slot *slot) {
    for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
        if (kind != FL_ROUTE_CPU && slot->routes[kind] != nullptr) {
            return true;
        }
    }
    return false;
}

void refuse(const OperatorPlan &plan, const IValue *arguments) {
    const char *const name = plan.slot->name;
    std::ostringstream advice;
    if (has_another_route(plan.slot)) {
        advice << ", or give the operator another route with the rule '" << name << " = <route>'";
    } else {
        advice << "; the operator has no other route here";
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "'", name, "' (", dtypes_of(plan, arguments),
                                ") has no kernel on platform '", fl_platform_chosen()->name,
                                "' and strict mode forbids the copy to the CPU. Allow it with "
                                "torch_fl.routes.strict(False)",
                                advice.str());
}

// Where a device argument without an index points to is the calling thread's own affair.
c10::Device resolved(c10::Device device) {
    const fl_device index = device.has_index() ? device.index() : fl_device_current();
    check(fl_device_check(index));
    return c10::Device(kFlagos, static_cast<c10::DeviceIndex>(index));
}

IValue host_value(const HostOperands &operands, const IValue &value) {
    if (value.isTensor()) {
        return IValue(operands.host_of(value.toTensor()));
    }
    if (is_list_with_gaps(value)) {
        c10::List<std::optional<at::Tensor>> list;
        for (const IValue &element : value.toListRef()) {
            list.push_back(element.isNone() ? std::optional<at::Tensor>()
                                            : operands.host_of(element.toTensor()));
        }
        return IValue(std::move(list));
    }
    c10::List<at::Tensor> list;
    for (const IValue &element : value.toListRef()) {
        list.push_back(operands.host_of(element.toTensor()));
    }
    return IValue(std::move(list));
}

} // namespace

void call_on_cpu(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    IValue *const arguments = stack->data() + (stack->size() - plan.arguments);
    TORCH_CHECK(!plan.returns_view, "'", plan.slot->name,
                "' returns a view of its argument and cannot be served by a copy on the CPU");
    if (fl_route_is_strict()) {
        refuse(plan, arguments);
    }
    RECORD_USER_SCOPE("flagos::cpu"); // Profilers show the route below the operator.
    const auto start = std::chrono::steady_clock::now();
    HostOperands operands;
    operands.set_device(resolved(c10::Device(kFlagos)));
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        each_tensor(value, [&](const at::Tensor &tensor) {
            operands.add(tensor, argument.written, argument.out);
        });
        if (value.isDevice() && value.toDevice().type() == kFlagos) {
            operands.set_device(resolved(value.toDevice()));
        }
    }
    operands.copy();
    for (const auto &argument : plan.relevant) {
        IValue &value = arguments[argument.index];
        if (value.isTensor() || is_tensor_list(value)) {
            const bool wants =
                plan.asks_gradient && value.isTensor() && value.toTensor().requires_grad();
            value = host_value(operands, value);
            if (wants) {
                value = IValue(wanting_gradient(value.toTensor()));
            }
        } else if (value.isDevice() && value.toDevice().type() == kFlagos) {
            value = IValue(c10::Device(c10::DeviceType::CPU));
        } else if (argument.generator) {
            std::optional<at::Generator> given;
            if (value.isGenerator()) {
                given = value.toGenerator();
            }
            value = IValue(to_host(given, operands.device().index()));
        }
    }
    try {
        op.redispatchBoxed(c10::DispatchKeySet(plan.keys.host), stack);
    } catch (...) {
        rethrow_in_user_words(plan.slot->name);
    }
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
        } else if (value.isObject()) {
            adopt_packed(value);
        }
    }
    const auto spent = std::chrono::steady_clock::now() - start;
    fl_slot_add_cpu(
        plan.slot, operands.bytes(),
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
}

} // namespace fl_torch
