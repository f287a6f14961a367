// router.cpp: the boxed path of every operator.
//
// Converts the arguments of a call that speak of flagos (tensors, lists, optionals, devices,
// generators), calls the twin's kernel, and converts what comes back. Knows no operator's meaning
// but what its schema says; exceptions are short lists.
#include "router.h"

#include "disguise.h"
#include "errors.h"
#include "fallback.h"
#include "generator.h"
#include "launch.h"
#include "on_worker.h"
#include "packed.h"
#include "queue.h"
#include "schema.h"
#include "shadow.h"
#include "structural.h"
#include "values.h"

#include "check.h"
#include "fl/device.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace fl_torch {

namespace {

using c10::IValue;
using torch::jit::Stack;

// Device arguments are declared as int in some schemas' printed form, but have a type of their own.
bool may_matter(const c10::TypePtr &type) {
    return holds(type, c10::TypeKind::TensorType) || holds(type, c10::TypeKind::DeviceObjType) ||
           holds(type, c10::TypeKind::GeneratorType);
}

// Results that describe a tensor rather than continue it lie on the host, also on an accelerator.
uint32_t host_results_of(const std::string &name) {
    static const std::unordered_map<std::string, uint32_t> table = {
        {"aten::_nested_tensor_size", 1u << 0},
        {"aten::_nested_tensor_strides", 1u << 0},
        {"aten::_nested_tensor_storage_offsets", 1u << 0},
    };
    const auto found = table.find(name);
    return found == table.end() ? 0 : found->second;
}

// --- one call through shadows --------------------------------------------------------------------

// Keeps the caller's arguments alive while shadows stand in their place on the stack.
using Held = c10::SmallVector<IValue, 8>;

IValue shown_list(ShadowFrame &frame, const IValue &list, bool written) {
    const bool optional = is_list_with_gaps(list);
    if (!optional) {
        c10::List<at::Tensor> shown;
        shown.reserve(list.toListRef().size());
        for (const IValue &element : list.toListRef()) {
            const at::Tensor &tensor = element.toTensor();
            shown.push_back(ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, written)
                                                              : tensor);
        }
        return IValue(std::move(shown));
    }
    c10::List<std::optional<at::Tensor>> shown;
    shown.reserve(list.toListRef().size());
    for (const IValue &element : list.toListRef()) {
        if (element.isNone()) {
            shown.push_back(std::nullopt);
            continue;
        }
        const at::Tensor &tensor = element.toTensor();
        shown.push_back(ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, written) : tensor);
    }
    return IValue(std::move(shown));
}

void check_device(c10::Device device) {
    if (device.has_index()) {
        check(fl_device_check(device.index()));
    }
}

c10::DeviceIndex device_index_of(const OperatorPlan &plan, const IValue *arguments) {
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isTensor() && ShadowFrame::needs_shadow(value.toTensor())) {
            return value.toTensor().device().index();
        }
        if (value.isDevice() && value.toDevice().type() == kFlagos) {
            return value.toDevice().index();
        }
        if (is_tensor_list(value)) {
            for (const IValue &element : value.toListRef()) {
                if (element.isTensor() && ShadowFrame::needs_shadow(element.toTensor())) {
                    return element.toTensor().device().index();
                }
            }
        }
    }
    return -1;
}

void adopt_results(ShadowFrame &frame, const OperatorPlan &plan, Stack *stack) {
    c10::SmallVector<at::Tensor *, 8> results;
    IValue *const first = stack->data() + (stack->size() - plan.returns);
    for (uint16_t i = 0; i < plan.returns; i++) {
        IValue &value = first[i];
        if (C10_UNLIKELY(twin.is_host && ((plan.host_results >> i) & 1) != 0)) {
            continue;
        }
        if (value.isTensor()) {
            results.push_back(&value.toTensor());
        } else if (is_tensor_list(value)) {
            for (const IValue &element : value.toListRef()) {
                if (element.isTensor()) {
                    results.push_back(&const_cast<IValue &>(element).toTensor());
                }
            }
        } else if (value.isDevice() && value.toDevice().type() == twin.type) {
            value = IValue(to_flagos(value.toDevice()));
        } else if (value.isObject()) {
            adopt_packed(value);
        }
    }
    frame.adopt(results.data(), results.size());
}

void call_native(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    IValue *const arguments = stack->data() + (stack->size() - plan.arguments);
    if (C10_UNLIKELY(!plan.layouts.empty())) {
        prepare_layouts(plan.layouts, arguments);
    }
    Held held; // Outlives the frame, which points into it.
    held.reserve(plan.relevant.size());
    ShadowFrame frame;
    for (const auto &argument : plan.relevant) {
        IValue &value = arguments[argument.index];
        if (value.isTensor()) {
            if (ShadowFrame::needs_shadow(value.toTensor())) {
                held.push_back(std::move(value));
                const at::Tensor &original = held.back().toTensor();
                value = IValue(*frame.show(original, argument.written));
                if (C10_UNLIKELY(plan.asks_gradient && original.requires_grad())) {
                    value = IValue(wanting_gradient(value.toTensor()));
                }
            }
        } else if (argument.generator) {
            std::optional<at::Generator> given;
            if (value.isGenerator()) {
                given = value.toGenerator();
            }
            value = IValue(to_twin(given, device_index_of(plan, arguments)));
        } else if (value.isDevice()) {
            if (value.toDevice().type() == kFlagos) {
                check_device(value.toDevice());
                value = IValue(to_twin(value.toDevice()));
            }
        } else if (is_tensor_list(value)) {
            held.push_back(std::move(value));
            value = shown_list(frame, held.back(), argument.written);
        }
    }
    if (C10_UNLIKELY(plan.custom)) {
        frame.show_autograd();
    } else if (C10_UNLIKELY(plan.counts_versions)) {
        frame.show_versions();
    }
    try {
        op.redispatchBoxed(c10::DispatchKeySet(plan.keys.twin), stack);
    } catch (...) {
        rethrow_in_user_words(plan.slot->name);
    }
    if (C10_UNLIKELY(plan.custom || plan.counts_versions)) {
        frame.return_versions();
    }
    if (plan.writes) {
        frame.commit();
    }
    adopt_results(frame, plan, stack);
}

// Whether autograd would record what the kernel of a library's operator calls on the user's
// tensors, as it does on the twin where the operator has no formula of its own.
bool is_recorded(const OperatorPlan &plan, const IValue *arguments) {
    const auto wants = [](const at::Tensor &tensor) {
        return ShadowFrame::needs_shadow(tensor) &&
               (tensor.requires_grad() || tensor._fw_grad(/*level=*/0).defined());
    };
    if (!at::GradMode::is_enabled() ||
        c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradPrivateUse1)) {
        return false;
    }
    return std::any_of(plan.relevant.begin(), plan.relevant.end(), [&](const auto &argument) {
        return any_tensor(arguments[argument.index], wants);
    });
}

bool call_recorded(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    try {
        if (!call_in_disguise(op, stack)) {
            return false;
        }
    } catch (...) {
        rethrow_in_user_words(plan.slot->name);
    }
    ShadowFrame none; // What the kernel made without its arguments is given over as it is.
    adopt_results(none, plan, stack);
    return true;
}

// A flagos generator may be all that led a call here. Kernels that draw for a CPU tensor want the
// CPU's generator, and would take the numbers of what ours wraps without a word.
void check_generator(const OperatorPlan &plan, const IValue *arguments) {
    bool given = false, on_flagos = false;
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        on_flagos |= any_tensor(value, ShadowFrame::needs_shadow);
        if (value.isDevice()) {
            on_flagos |= value.toDevice().type() == kFlagos;
        } else if (argument.generator && value.isGenerator()) {
            given = value.toGenerator().device().type() == kFlagos;
        }
    }
    TORCH_CHECK(!given || on_flagos,
                "Expected a 'cpu' device type for generator but found 'flagos'");
}

} // namespace

OperatorPlan::OperatorPlan(const c10::OperatorHandle &op, fl_slot *operator_slot)
    : OperatorPlan(op, operator_slot,
                   {c10::DispatchKey::PrivateUse1, twin.key, c10::DispatchKey::CPU}) {}

OperatorPlan::OperatorPlan(const c10::OperatorHandle &op, fl_slot *operator_slot,
                           const KindKeys &kind)
    : slot(operator_slot), keys(kind), device_rule(device_rule_of(operator_slot->name, op)) {
    const c10::FunctionSchema &schema = op.schema();
    arguments = static_cast<uint16_t>(schema.arguments().size());
    returns = static_cast<uint16_t>(schema.returns().size());
    host_results = host_results_of(slot->name);
    layouts = wanted_layouts(slot->name, schema);
    for (uint16_t i = 0; i < arguments; i++) {
        const c10::Argument &argument = schema.arguments()[i];
        if (may_matter(argument.type())) {
            relevant.push_back({i, writes_to(argument), argument.is_out(),
                                holds(argument.type(), c10::TypeKind::GeneratorType)});
            writes |= relevant.back().written;
            counts_versions |=
                relevant.back().written && argument.type()->kind() == c10::TypeKind::ListType;
            draws |= relevant.back().generator;
        }
    }
    for (const c10::Argument &result : schema.returns()) {
        returns_view |= aliases_without_writing(result);
        returns_object |= result.type()->kind() == c10::TypeKind::ClassType;
    }
    counts_versions &= !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
    structural = is_structural(*this, op);
    custom = std::string_view(slot->name).rfind("aten::", 0) != 0;
    calls_libraries = fl_torch::calls_libraries(slot->name);
    asks_gradient = std::string_view(slot->name) == "aten::_sparse_mm_reduce_impl";
    traced_in_parts = std::string_view(slot->name) == kTracedInParts;
}

void route_call(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    drain_queue();
    if (C10_UNLIKELY(plan.structural)) {
        call_structural(plan, op, stack);
        return;
    }
    const IValue *const arguments = stack->data() + (stack->size() - plan.arguments);
    if (C10_UNLIKELY(plan.draws)) {
        check_generator(plan, arguments);
    }
    const fl_route *const route = fl_slot_route(plan.slot);
    const fl_route_kind kind = route == nullptr ? FL_ROUTE_CPU : route->kind;
    // An accelerator's own kernels look at the devices of their operands themselves.
    if ((twin.is_host || kind == FL_ROUTE_CPU) &&
        C10_UNLIKELY(!operands_belong_together(plan, arguments))) {
        call_parts(op, stack);
        return;
    }
    fl_tally_count(thread_state().tally, plan.slot, kind);
    if (C10_UNLIKELY(plan.custom) && twin.present && kind == FL_ROUTE_NATIVE &&
        (plan.returns_view || (!plan.returns_object && is_recorded(plan, arguments))) &&
        call_recorded(plan, op, stack)) {
        return;
    }
    if (C10_LIKELY(kind == FL_ROUTE_NATIVE)) {
        if (C10_UNLIKELY(queue_is_on()) && plan.calls_libraries) {
            const Held arguments_kept(arguments, arguments + plan.arguments);
            if (call_on_worker(plan.slot->name, device_index_of(plan, arguments),
                               [&] { call_native(plan, op, stack); })) {
                return;
            }
        }
        call_native(plan, op, stack);
    } else if (twin.present && kind != FL_ROUTE_CPU) {
        call_native(plan, op, stack); // The slot's own way is that of plain tensors.
    } else {
        call_on_cpu(plan, op, stack);
    }
}

void serve_call(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    if (C10_LIKELY(!launch_blocking)) {
        return route_call(plan, op, stack);
    }
    // Asked for first, because the call takes the arguments off the stack.
    const auto device = device_index_of(plan, stack->data() + (stack->size() - plan.arguments));
    route_call(plan, op, stack);
    wait_for_launch(plan.slot->name, device);
}

void RoutedOperator::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
    if (C10_UNLIKELY(is_traced(plan_))) {
        return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    }
    serve_call(plan_, op, stack);
}

} // namespace fl_torch
