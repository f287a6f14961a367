// routed_ops.cpp: see routed_ops.h. Decides by the kernels that PyTorch has for the twin, by tags
// and schemas; exceptions are the short lists below.
#include "routed_ops.h"

#include "register.h"
#include "router.h"
#include "schema.h"

#include "check.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fl_torch {

namespace {

using torch::jit::Stack;

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

// Factories whose composite calls a kernel of its device itself, which flagos does not have.
bool is_routed_factory(const std::string &name) {
    static const std::unordered_set<std::string> names = {
        "aten::kaiser_window", "aten::kaiser_window.periodic", "aten::kaiser_window.beta"};
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
           (twin.present || !only_copies(name)) &&
           (is_routed_factory(name) || is_routed_composite(op, name));
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
        for (const auto kind :
             {c10::DispatchKey::Dense, c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
              c10::DispatchKey::Quantized, c10::DispatchKey::NestedTensor}) {
            made->push_back({c10::toRuntimePerBackendFunctionalityKey(
                                 kind, c10::BackendComponent::PrivateUse1Bit),
                             c10::toRuntimePerBackendFunctionalityKey(kind, twin.backend),
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
    serve_call(*plan, op, stack);
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
