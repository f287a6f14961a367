// disguise.cpp: see disguise.h.
//
// While a composite runs, a dispatch key of this thread sends each operator that it calls to
// `call_undisguised`, which puts the originals in the place of disguised arguments, calls the
// operator as the user would, and disguises what comes back. The key is the dispatcher's generic
// mode key: it lies above all that looks at tensors (Python modes take their snapshot of the
// thread's keys below it), PyTorch itself gives it no meaning, and it is set for no longer than the
// composite's own code runs. Nothing of this is visible outside of the calling thread.
#include "disguise.h"

#include "errors.h"
#include "register.h"
#include "routed_ops.h"
#include "router.h"
#include "twin.h"
#include "values.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace fl_torch {

namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

constexpr DispatchKey kMode = DispatchKey::TESTING_ONLY_GenericMode;
// Marks a disguised tensor. Also a dispatch key, so that one is of use outside of a composite.
constexpr DispatchKey kMark = DispatchKey::TESTING_ONLY_GenericWrapper;

// Tensors that PyTorch takes apart by rules of its own: fake ones, and those of vmap and
// functionalisation. They keep PyTorch's own choice.
constexpr auto kWrapperKeys =
    c10::python_ks |
    c10::DispatchKeySet({DispatchKey::FuncTorchBatched, DispatchKey::Batched,
                         DispatchKey::BatchedNestedTensor, DispatchKey::Functionalize});

// --- a disguised tensor
// ----------------------------------------------------------------------------

// The device that a disguised tensor claims. The index tells the host's own tensors, which have
// none, from ours, also when a composite makes a tensor "like that one".
c10::Device claimed(c10::Device device) {
    return c10::Device(twin.type, twin.is_host ? c10::DeviceIndex(0) : device.index());
}

bool is_claimed(c10::Device device) {
    return device.type() == twin.type && (!twin.is_host || device.has_index());
}

class Disguise final : public c10::TensorImpl {
  public:
    explicit Disguise(at::Tensor original)
        : TensorImpl(twin.keys, original.dtype(), claimed(original.device())),
          original_(std::move(original)) {
        refresh();
    }

    // Show the original as it is now; operators in place may have changed its shape.
    void refresh() {
        c10::TensorImpl &source = *original_.unsafeGetTensorImpl();
        storage_ = source.unsafe_storage();
        if (!storage_) {
            set_storage_access_should_throw(); // The wrapper of a gradient transform has none.
        }
        set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
        // The autograd keys are never dispatched on; without them it would be an inference tensor.
        constexpr auto autograd = c10::inplace_or_view_ks | c10::autograd_dispatch_keyset;
        key_set_ = to_shadow_keys(source.key_set()) | (source.key_set() & autograd) |
                   c10::DispatchKeySet(kMark);
        if (!original_.is_inference()) {
            // Without this key a tensor counts as an inference tensor, which may not need
            // gradients.
            key_set_ = key_set_ | c10::DispatchKeySet(DispatchKey::ADInplaceOrView);
        }
        is_wrapped_number_ = source.is_wrapped_number();
        if (original_.requires_grad() != requires_grad()) {
            set_requires_grad(original_.requires_grad());
        }
    }

    const at::Tensor &original() const {
        return original_;
    }

  private:
    const at::Tensor original_;
};

Disguise *disguise_of(const at::Tensor &tensor) {
    c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    return tensor.defined() && impl->key_set().has(kMark) ? static_cast<Disguise *>(impl) : nullptr;
}

bool is_flagos(const at::Tensor &tensor) {
    return tensor.defined() && tensor.unsafeGetTensorImpl()->device_type() == kFlagos;
}

// Replace each tensor of a value, also within lists, that `wanted` names by what `convert` makes of
// it. Lists are shared between values, so a new one is made.
template <class Wanted, class Convert>
void convert_tensors(IValue &value, const Wanted &wanted, const Convert &convert) {
    if (value.isTensor()) {
        if (wanted(value.toTensor())) {
            value = IValue(convert(value.toTensor()));
        }
    } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        list.reserve(value.toListRef().size());
        for (const IValue &element : value.toListRef()) {
            const at::Tensor &tensor = element.toTensor();
            list.push_back(wanted(tensor) ? convert(tensor) : tensor);
        }
        value = IValue(std::move(list));
    } else if (is_list_with_gaps(value)) {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(value.toListRef().size());
        for (const IValue &element : value.toListRef()) {
            if (element.isNone()) {
                list.push_back(std::nullopt);
            } else {
                const at::Tensor &tensor = element.toTensor();
                list.push_back(wanted(tensor) ? convert(tensor) : tensor);
            }
        }
        value = IValue(std::move(list));
    }
}

// The twin's own tensors that a composite passes (cuDNN's dropout state) are seen by autograd, by
// hooks and by modes, so that they become flagos tensors too. On the host they are the user's.
at::Tensor adopted(at::Tensor tensor) {
    ShadowFrame frame;
    frame.adopt(tensor); // An alias, because the composite holds the tensor as well.
    return tensor;
}

void undisguise(IValue &value) {
    convert_tensors(
        value, [](const at::Tensor &tensor) { return disguise_of(tensor) != nullptr; },
        [](const at::Tensor &tensor) { return undisguised(tensor); });
}

// --- operators that a composite calls
// --------------------------------------------------------------

// Not under the mode while it lives: what runs then is the user's side of the call.
class ModeOff {
  public:
    ModeOff() {
        c10::impl::tls_set_dispatch_key_included(kMode, false);
    }
    ~ModeOff() {
        c10::impl::tls_set_dispatch_key_included(kMode, was_on_);
    }
    ModeOff(const ModeOff &) = delete;
    ModeOff &operator=(const ModeOff &) = delete;

  private:
    const bool was_on_ = c10::impl::tls_is_dispatch_key_included(kMode);
};

// Composites registered by us, by the address of their schema, which is the operator's own.
std::unordered_set<const void *> &registered() {
    static auto *const schemas = new std::unordered_set<const void *>;
    return *schemas;
}

// Whether the twin would take this operator apart: then it is taken apart here too, so that its
// parts ask their questions of disguised tensors.
bool is_composite_of_twin(const c10::OperatorHandle &op) {
    if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
        op.hasKernelForDispatchKey(twin.key)) {
        return false;
    }
    if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1) &&
        registered().count(&op.schema()) == 0) {
        return false; // Somebody serves it on flagos as a whole.
    }
    // Autocast must see the tensors themselves, and casts before the composite.
    return !(at::autocast::is_autocast_enabled(kFlagos) &&
             op.hasKernelForDispatchKey(DispatchKey::AutocastPrivateUse1));
}

// What the twin keeps for itself: cuDNN's dropout state outlives the call in a cache of PyTorch's.
bool is_twins_own(const c10::OperatorHandle &op) {
    static const auto *const own = new c10::OperatorName("aten::_cudnn_init_dropout_state", "");
    return op.operator_name() == *own;
}

bool is_twins_default(const at::Generator &generator) {
    return generator.device().type() == twin.type && !twin.is_host &&
           at::globalContext().defaultGenerator(generator.device()) == generator;
}

// Whether this thread runs a library's kernel in disguise. The host's own tensors are then what the
// kernel has made, and belong beside its arguments; under a composite they are the user's.
thread_local bool t_in_library = false;

class InLibrary {
  public:
    explicit InLibrary(bool now) : before_(std::exchange(t_in_library, now)) {}
    ~InLibrary() {
        t_in_library = before_;
    }
    InLibrary(const InLibrary &) = delete;
    InLibrary &operator=(const InLibrary &) = delete;

  private:
    const bool before_;
};

bool any_disguised(const IValue *values, size_t count) {
    return std::any_of(values, values + count, [](const IValue &value) {
        return any_tensor(value, [](const at::Tensor &tensor) { return disguise_of(tensor); });
    });
}

// Results are disguised again while a composite runs, whose next question is about them.
template <bool kInComposite>
void call_undisguised(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
    if (is_composite_of_twin(op)) {
        op.callBoxedForDispatchKey(DispatchKey::CompositeImplicitAutograd, *stack);
        return;
    }
    const c10::FunctionSchema &schema = op.schema();
    const size_t count = schema.arguments().size();
    IValue *const arguments = stack->data() + (stack->size() - count);
    const bool twins_own = is_twins_own(op);
    const bool adopts = !twin.is_host || (t_in_library && any_disguised(arguments, count));
    c10::SmallVector<at::Tensor, 4> written; // Disguises whose originals the operator may change.
    for (size_t i = 0; i < count; i++) {
        IValue &value = arguments[i];
        if (value.isTensor()) {
            if (Disguise *const disguise = disguise_of(value.toTensor())) {
                const c10::AliasInfo *const alias = schema.arguments()[i].alias_info();
                if (alias != nullptr && alias->isWrite()) {
                    written.push_back(value.toTensor());
                }
                value = IValue(disguise->original());
            } else if (adopts && value.toTensor().defined() &&
                       value.toTensor().device().type() == twin.type) {
                value = IValue(adopted(value.toTensor()));
            }
        } else if (value.isDevice()) {
            if (is_claimed(value.toDevice()) && !twins_own) {
                value = IValue(to_flagos(value.toDevice()));
            }
        } else if (value.isGenerator()) {
            if (is_twins_default(value.toGenerator())) {
                value = IValue(); // Where none is named, flagos draws from that one.
            }
        } else {
            undisguise(value);
        }
    }
    {
        const ModeOff mode_off;
        const InLibrary outside(false);
        op.callBoxed(*stack);
    }
    for (const at::Tensor &tensor : written) {
        disguise_of(tensor)->refresh();
    }
    if constexpr (!kInComposite) {
        return;
    }
    const size_t results = schema.returns().size();
    for (IValue *value = stack->data() + (stack->size() - results);
         value != stack->data() + stack->size(); value++) {
        convert_tensors(*value, is_flagos, [&written](const at::Tensor &tensor) {
            for (const at::Tensor &candidate : written) {
                if (disguise_of(candidate)->original().is_same(tensor)) {
                    return candidate;
                }
            }
            return disguised(tensor);
        });
    }
}

// --- the composites
// --------------------------------------------------------------------------------

bool can_take_part(const IValue &value) {
    if (value.isTensor()) {
        return can_be_disguised(value.toTensor());
    }
    if (is_tensor_list(value)) {
        for (const IValue &element : value.toListRef()) {
            if (element.isTensor() && !can_take_part(element)) {
                return false;
            }
        }
    }
    return true;
}

// Calls the operator's kernel of this key. False, and nothing has been done, where an argument
// cannot take part.
bool run_in_disguise(const c10::OperatorHandle &op, Stack *stack, DispatchKey kernel) {
    const size_t count = op.schema().arguments().size();
    IValue *const arguments = stack->data() + (stack->size() - count);
    if (!std::all_of(arguments, arguments + count, can_take_part)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        convert_tensors(arguments[i], is_flagos, disguised);
    }
    {
        const WithinDisguise within;
        op.callBoxedForDispatchKey(kernel, *stack);
    }
    const size_t results = op.schema().returns().size();
    for (size_t i = stack->size() - results; i < stack->size(); i++) {
        undisguise((*stack)[i]);
    }
    return true;
}

class DisguisedComposite final : public c10::OperatorKernel {
  public:
    explicit DisguisedComposite(fl_slot *slot) : slot_(slot) {}

    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
        fl_tally_count(thread_state().tally, slot_, FL_ROUTE_OWN);
        try {
            if (!run_in_disguise(op, stack, DispatchKey::CompositeImplicitAutograd)) {
                op.callBoxedForDispatchKey(DispatchKey::CompositeImplicitAutograd, *stack);
            }
        } catch (...) {
            rethrow_in_user_words(slot_->name);
        }
    }

  private:
    fl_slot *const slot_; // Owned by the core, lives as long as the process.
};

} // namespace

at::Tensor disguised(at::Tensor original) {
    return at::detail::make_tensor<Disguise>(std::move(original));
}

at::Tensor undisguised(const at::Tensor &tensor) {
    Disguise *const disguise = disguise_of(tensor);
    return disguise == nullptr ? tensor : disguise->original();
}

WithinDisguise::WithinDisguise() : mode_on_(kMode) {}

bool call_in_disguise(const c10::OperatorHandle &op, Stack *stack) {
    const InLibrary library(true);
    return run_in_disguise(op, stack, twin.key);
}

// Wrappers are asked first: the device that they tell C++ may be another than the one they stand
// for.
bool can_be_disguised(const at::Tensor &tensor) {
    const c10::DispatchKeySet keys = tensor.unsafeGetTensorImpl()->key_set();
    return !keys.has_any(kWrapperKeys) && (!is_flagos(tensor) || !is_special(keys));
}

c10::BoxedKernel disguised_kernel(const c10::OperatorHandle &op) {
    registered().insert(&op.schema());
    return c10::BoxedKernel::makeFromFunctor(
        std::make_unique<DisguisedComposite>(offer_routes(op.operator_name(), FL_ROUTE_OWN)));
}

size_t register_disguised() {
    constexpr bool kAnyTwin = true;
    const bool kHostTwin = twin.is_host;
    const bool kAcceleratorTwin = !twin.is_host;
    static const struct {
        const char *name;
        bool wanted;
    } list[] = {
#define FL_DISGUISED(name, twins) {name, twins},
#include "disguised_ops.def"
#undef FL_DISGUISED
    };

    auto &dispatcher = c10::Dispatcher::singleton();
    // Never destroyed: deregistering at exit would race with threads that still run.
    static auto *const handles = new std::vector<c10::RegistrationHandleRAII>;
    const auto keep = [&](c10::RegistrationHandleRAII handle) {
        handles->push_back(std::move(handle));
    };
    size_t count = 0;
    for (const auto &row : list) {
        if (!row.wanted) {
            continue;
        }
        const std::string full(row.name);
        const size_t dot = full.find('.');
        const c10::OperatorName name("aten::" + full.substr(0, dot),
                                     dot == std::string::npos ? "" : full.substr(dot + 1));
        const auto op = dispatcher.findSchema(name);
        TORCH_CHECK(op.has_value(), "flagos: this torch has no operator '", name, "'");
        registered().insert(&op->schema());
        fl_slot *const slot = offer_routes(name, FL_ROUTE_OWN);
        // Above autograd, so that each part is recorded; and below, for calls from there.
        for (const DispatchKey key : {DispatchKey::AutogradPrivateUse1, DispatchKey::PrivateUse1}) {
            keep(dispatcher.registerImpl(name, key,
                                         c10::KernelFunction::makeFromBoxedFunctor(
                                             std::make_unique<DisguisedComposite>(slot)),
                                         std::nullopt, nullptr, "flagos disguise"));
        }
        count++;
    }
    keep(dispatcher.registerFallback(
        kMode, c10::KernelFunction::makeFromBoxedFunction<&call_undisguised<true>>(),
        "flagos disguise"));
    keep(dispatcher.registerFallback(
        kMark, c10::KernelFunction::makeFromBoxedFunction<&call_undisguised<false>>(),
        "flagos disguise"));
    return count;
}

} // namespace fl_torch
