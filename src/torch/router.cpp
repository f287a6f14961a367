// router.cpp: the boxed path of every operator, and the decision which operators take it.
//
// Converts the arguments of a call that speak of flagos (tensors, lists, optionals, devices,
// generators), calls the twin's kernel, and converts what comes back. Knows no operator's meaning
// but what schemas and tags say; exceptions are the short lists below.
#include "router.h"

#include "errors.h"
#include "fallback.h"
#include "generator.h"
#include "launch.h"
#include "packed.h"
#include "register.h"
#include "shadow.h"
#include "structural.h"

#include "check.h"
#include "fl/device.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fl_torch {

namespace {

using c10::IValue;
using torch::jit::Stack;

// --- schemas -------------------------------------------------------------------------------------

bool holds(const c10::TypePtr &type, c10::TypeKind kind) {
    if (type->kind() == kind) {
        return true;
    }
    for (const auto &inner : type->containedTypes()) {
        if (holds(inner, kind)) {
            return true;
        }
    }
    return false;
}

// Device arguments are declared as int in some schemas' printed form, but have a type of their own.
bool may_matter(const c10::TypePtr &type) {
    return holds(type, c10::TypeKind::TensorType) || holds(type, c10::TypeKind::DeviceObjType) ||
           holds(type, c10::TypeKind::GeneratorType);
}

bool has_argument(const c10::FunctionSchema &schema, c10::TypeKind kind) {
    for (const c10::Argument &argument : schema.arguments()) {
        if (holds(argument.type(), kind)) {
            return true;
        }
    }
    return false;
}

// Running statistics are written by batch normalisation, though the schemas do not all say so.
bool writes_to(const c10::Argument &argument) {
    return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
           argument.name() == "running_mean" || argument.name() == "running_var";
}

bool aliases_without_writing(const c10::Argument &result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
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

std::string name_of(const c10::OperatorName &name) {
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// --- one call through shadows --------------------------------------------------------------------

// Keeps the caller's arguments alive while shadows stand in their place on the stack.
using Held = c10::SmallVector<IValue, 8>;

IValue shown_list(ShadowFrame &frame, const IValue &list, bool written) {
    const bool optional = list.isOptionalTensorList();
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

bool is_tensor_list(const IValue &value) {
    return value.isTensorList() || value.isOptionalTensorList();
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
    try {
        op.redispatchBoxed(c10::DispatchKeySet(plan.keys.twin), stack);
    } catch (...) {
        rethrow_in_user_words(plan.slot->name);
    }
    if (plan.writes) {
        frame.commit();
    }
    adopt_results(frame, plan, stack);
}

// A flagos generator may be all that led a call here. Kernels that draw for a CPU tensor want the
// CPU's generator, and would take the numbers of what ours wraps without a word.
void check_generator(const OperatorPlan &plan, const IValue *arguments) {
    bool given = false, on_flagos = false;
    for (const auto &argument : plan.relevant) {
        const IValue &value = arguments[argument.index];
        if (value.isTensor()) {
            on_flagos |= ShadowFrame::needs_shadow(value.toTensor());
        } else if (is_tensor_list(value)) {
            for (const IValue &element : value.toListRef()) {
                on_flagos |= element.isTensor() && ShadowFrame::needs_shadow(element.toTensor());
            }
        } else if (value.isDevice()) {
            on_flagos |= value.toDevice().type() == kFlagos;
        } else if (argument.generator && value.isGenerator()) {
            given = value.toGenerator().device().type() == kFlagos;
        }
    }
    TORCH_CHECK(!given || on_flagos,
                "Expected a 'cpu' device type for generator but found 'flagos'");
}

void serve(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    if (C10_LIKELY(!launch_blocking)) {
        return route_call(plan, op, stack);
    }
    // Asked for first, because the call takes the arguments off the stack.
    const auto device = device_index_of(plan, stack->data() + (stack->size() - plan.arguments));
    route_call(plan, op, stack);
    wait_for_launch(plan.slot->name, device);
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
            relevant.push_back(
                {i, writes_to(argument), holds(argument.type(), c10::TypeKind::GeneratorType)});
            writes |= relevant.back().written;
            draws |= relevant.back().generator;
        }
    }
    for (const c10::Argument &result : schema.returns()) {
        returns_view |= aliases_without_writing(result);
    }
    structural = is_structural(*this, op);
    asks_gradient = std::string_view(slot->name) == "aten::_sparse_mm_reduce_impl";
}

void route_call(const OperatorPlan &plan, const c10::OperatorHandle &op, Stack *stack) {
    if (C10_UNLIKELY(plan.structural)) {
        call_structural(plan, op, stack);
        return;
    }
    const IValue *const arguments = stack->data() + (stack->size() - plan.arguments);
    if (C10_UNLIKELY(plan.draws)) {
        check_generator(plan, arguments);
    }
    if (twin.is_host && C10_UNLIKELY(!operands_belong_together(plan, arguments))) {
        call_parts(op, stack);
        return;
    }
    const fl_route *const route = fl_slot_route(plan.slot);
    const fl_route_kind kind = route == nullptr ? FL_ROUTE_CPU : route->kind;
    fl_tally_count(thread_state().tally, plan.slot, kind);
    if (C10_LIKELY(kind == FL_ROUTE_NATIVE)) {
        call_native(plan, op, stack);
    } else if (twin.present && kind != FL_ROUTE_CPU) {
        call_native(plan, op, stack); // The slot's own way is that of plain tensors.
    } else {
        call_on_cpu(plan, op, stack);
    }
}

void RoutedOperator::operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
    serve(plan_, op, stack);
}

// --- which operators are routed ------------------------------------------------------------------

namespace {

// Namespaces whose operators are no kernels on tensors of one device, or that are ours.
bool is_routed_namespace(std::string_view name) {
    static const std::unordered_set<std::string_view> others = {
        "flagos",
        "c10d",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "symm_mem",
        "profiler",
        "prims",
        "debugprims",
        "rngprims",
        "inductor",
        "_test",
        "static_runtime",
        "debug_mode_ops",
        "export",
        "_dtensor",
    };
    return others.count(name.substr(0, name.find("::"))) == 0;
}

// Composites that stay composites: they only make or describe tensors, so that their parts are ours
// already, or their meaning is ours (storage and metadata).
bool stays_composite(const std::string &name) {
    static const std::unordered_set<std::string> names = {
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_to_copy",
        "aten::is_same_size",
        "aten::_has_same_storage_numel",
        "aten::_new_zeros_with_same_feature_meta",
        "aten::lift",
        "aten::lift_fresh",
        "aten::_lazy_clone",
        "aten::is_pinned",
        "aten::_pin_memory",
        "aten::set",
        "aten::copy_sparse_to_sparse",
        "aten::unsafe_split.Tensor",
        "aten::unsafe_split_with_sizes",
        "aten::_make_dep_token",
        // Its lengths must lie on the host, and so does one of its results.
        "aten::_pack_padded_sequence",
    };
    return names.count(name) != 0;
}

// A composite over explicit kernels is routed whole, so that every choice inside it is the twin's
// (convolution's backend, for one). Not routed: views, which are metadata; what names a device, for
// it makes tensors anywhere; random ones that name no generator, where the default is not the
// twin's.
bool is_routed_composite(const c10::OperatorHandle &op, const std::string &name) {
    const c10::FunctionSchema &schema = op.schema();
    if (!has_argument(schema, c10::TypeKind::TensorType) ||
        has_argument(schema, c10::TypeKind::DeviceObjType) || stays_composite(name)) {
        return false;
    }
    for (const c10::Argument &result : schema.returns()) {
        if (aliases_without_writing(result)) {
            return false;
        }
    }
    for (const char *prefix : {"aten::set", "aten::resize", "aten::sparse_resize", "aten::_test"}) {
        if (name.rfind(prefix, 0) == 0) {
            return false;
        }
    }
    if (op.hasTag(at::Tag::inplace_view)) {
        return false;
    }
    // Where PyTorch has no kernel that counts the versions of what the operator writes to (lists:
    // foreach, out= of splits), the parts count them, on the tensors that they are given.
    const auto writes = [](const c10::Argument &argument) { return writes_to(argument); };
    if (std::any_of(schema.arguments().begin(), schema.arguments().end(), writes) &&
        !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView)) {
        return false;
    }
    if (twin.is_host && op.hasTag(at::Tag::nondeterministic_seeded) &&
        !has_argument(schema, c10::TypeKind::GeneratorType)) {
        return false;
    }
    return true;
}

// Composites that only make tensors, alias and copy: without a twin their parts are views and the
// core's copies, where the whole would go to the host and back, and could alias nothing.
bool only_copies(const std::string &name) {
    static const std::unordered_set<std::string> names = {
        "aten::_unsafe_view",  "aten::clone",           "aten::narrow_copy",
        "aten::repeat",        "aten::select_backward", "aten::slice_backward",
        "aten::slice_scatter", "aten::select_scatter",  "aten::unsafe_split.Tensor",
        "aten::expand_copy",   "aten::permute_copy",    "aten::unsafe_split_with_sizes"};
    return names.count(name) != 0;
}

bool is_routed(const c10::OperatorHandle &op, const std::string &name, const KindKeys &keys) {
    if (op.hasKernelForDispatchKey(keys.flagos)) {
        return false;
    }
    if (op.hasKernelForDispatchKey(keys.twin)) {
        return true;
    }
    return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
           (twin.present || !only_copies(name)) && is_routed_composite(op, name);
}

const fl_route kNativeRoute = {FL_ROUTE_NATIVE, nullptr};
const fl_route kCpuRoute = {FL_ROUTE_CPU, nullptr};
const fl_route kViewRoute = {FL_ROUTE_VIEW, nullptr};
const fl_route kOwnRoute = {FL_ROUTE_OWN, nullptr};

std::vector<c10::RegistrationHandleRAII> &registrations() {
    // Never destroyed: deregistering at exit would race with threads that still run.
    static auto *const handles = new std::vector<c10::RegistrationHandleRAII>;
    return *handles;
}

// The kinds of tensors that are routed, plain ones first.
const std::vector<KindKeys> &kinds() {
    static const auto *const list = [] {
        auto *made = new std::vector<KindKeys>;
        const auto host = c10::BackendComponent::CPUBit;
        const auto backend = twin.is_host ? host : c10::BackendComponent::CUDABit;
        for (const auto kind :
             {c10::DispatchKey::Dense, c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
              c10::DispatchKey::Quantized, c10::DispatchKey::NestedTensor}) {
            made->push_back({c10::toRuntimePerBackendFunctionalityKey(
                                 kind, c10::BackendComponent::PrivateUse1Bit),
                             c10::toRuntimePerBackendFunctionalityKey(kind, backend),
                             c10::toRuntimePerBackendFunctionalityKey(kind, host)});
        }
        return made;
    }();
    return *list;
}

const KindKeys &kind_of(c10::DispatchKey flagos) {
    for (const KindKeys &kind : kinds()) {
        if (kind.flagos == flagos) {
            return kind;
        }
    }
    return kinds().front();
}

// The slot of an operator, with routes unless other code has offered some already: one operator
// has one slot for all kinds of tensors.
fl_slot *slot_with_routes(const c10::OperatorName &name) {
    fl_slot *slot = nullptr;
    check(fl_slot_get(name_of(name).c_str(), &slot));
    return fl_slot_route(slot) != nullptr
               ? slot
               : offer_routes(name, twin.present ? FL_ROUTE_NATIVE : FL_ROUTE_CPU);
}

// Operators that came after us and have no composite: found by name on their first call.
void route_late(const c10::OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) {
    using Plans = std::unordered_map<c10::OperatorName, std::unique_ptr<OperatorPlan>>;
    static auto *const lock = new std::mutex;
    static auto *const plans = new std::unordered_map<c10::DispatchKey, Plans>;
    const KindKeys &kind = kind_of(keys.highestPriorityTypeId());
    const OperatorPlan *plan = nullptr;
    {
        const std::lock_guard<std::mutex> guard(*lock);
        auto &entry = (*plans)[kind.flagos][op.operator_name()];
        if (entry == nullptr) {
            TORCH_CHECK_NOT_IMPLEMENTED(
                op.hasKernelForDispatchKey(kind.twin) ||
                    op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd),
                "Could not run '", name_of(op.operator_name()),
                "' on flagos: it has no kernel for '", c10::toString(kind.flagos),
                "' and none for '", c10::toString(kind.twin),
                "' that could serve it. Register one with torch.library for device type 'flagos' "
                "or '",
                c10::DeviceTypeName(twin.type, /*lower_case=*/true), "'.");
            entry = std::make_unique<OperatorPlan>(op, slot_with_routes(op.operator_name()), kind);
        }
        plan = entry.get();
    }
    serve(*plan, op, stack);
}

} // namespace

fl_slot *offer_routes(const c10::OperatorName &name, fl_route_kind kind) {
    fl_slot *slot = nullptr;
    check(fl_slot_get(name_of(name).c_str(), &slot));
    switch (kind) {
    case FL_ROUTE_NATIVE:
        check(fl_slot_offer(slot, &kNativeRoute));
        check(fl_slot_offer(slot, &kCpuRoute));
        break;
    case FL_ROUTE_CPU:
        check(fl_slot_offer(slot, &kCpuRoute));
        break;
    case FL_ROUTE_VIEW:
        check(fl_slot_offer(slot, &kViewRoute));
        break;
    default:
        check(fl_slot_offer(slot, &kOwnRoute));
        break;
    }
    return slot;
}

size_t register_router() {
    auto &dispatcher = c10::Dispatcher::singleton();
    size_t count = 0;
    for (const c10::OperatorName &op_name : dispatcher.getAllOpNames()) {
        const auto op = dispatcher.findOp(op_name);
        if (!op.has_value() || !op->hasSchema() || !is_routed_namespace(op_name.name)) {
            continue;
        }
        const std::string name = name_of(op_name);
        for (const KindKeys &kind : kinds()) {
            if (!is_routed(*op, name, kind)) {
                continue;
            }
            auto kernel = std::make_unique<RoutedOperator>(
                OperatorPlan(*op, slot_with_routes(op_name), kind));
            registrations().push_back(dispatcher.registerImpl(
                op_name, kind.flagos, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
                std::nullopt, nullptr, "flagos router"));
            count++;
        }
    }
    for (const KindKeys &kind : kinds()) {
        registrations().push_back(dispatcher.registerFallback(
            kind.flagos, c10::KernelFunction::makeFromBoxedFunction<&route_late>(),
            "flagos router"));
    }
    return count;
}

} // namespace fl_torch
