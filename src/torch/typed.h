// typed.h: the unboxed kernel of a hot operator, made from its schema at compile time.
//
// One line in hot_ops.def gives an operator a kernel that takes PyTorch's own argument types, shows
// each tensor by its shadow, calls the twin and adopts what comes back: no IValue, no reference
// count, no heap. An operator whose slot was given another route takes the boxed path.
#pragma once

#include "errors.h"
#include "on_worker.h"
#include "queue.h"
#include "router.h"
#include "schema.h"
#include "shadow.h"
#include "twin_kernel.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string_view>
#include <tuple>
#include <type_traits>

namespace fl_torch {

// --- arguments
// -------------------------------------------------------------------------------------

// A list of shadows in place of a list of tensors: handles side by side in memory, as the twin's
// kernels want them, which hold no reference.
class ShownList {
  public:
    ShownList(ShadowFrame &frame, at::TensorList tensors, bool written) {
        handles_.resize_for_overwrite(tensors.size());
        frame.show_list(tensors, written, data());
    }
    ShownList(ShadowFrame &frame, const at::ITensorListRef &tensors, bool written) {
        if (C10_LIKELY(tensors.isUnboxed())) {
            handles_.resize_for_overwrite(tensors.size());
            frame.show_list(tensors.toUnboxed(), written, data());
            return;
        }
        for (const at::Tensor &tensor : tensors) { // Whose handles are IValues of a boxed call.
            handles_.emplace_back();
            frame.show_list(tensor, written, data() + handles_.size() - 1);
        }
    }
    operator at::TensorList() const {
        return {const_cast<ShownList *>(this)->data(), handles_.size()};
    }
    operator at::ITensorListRef() const {
        return at::ITensorListRef(at::TensorList(*this));
    }

  private:
    struct Handle {
        alignas(at::Tensor) std::byte bytes[sizeof(at::Tensor)];
    };
    at::Tensor *data() {
        return reinterpret_cast<at::Tensor *>(handles_.data());
    }

    c10::SmallVector<Handle, 16> handles_;
};

inline const at::Tensor &shown(ShadowFrame &frame, const at::Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, false) : tensor;
}

inline at::Tensor &shown(ShadowFrame &frame, at::Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, true) : tensor;
}

inline const std::optional<at::Tensor> &shown(ShadowFrame &frame,
                                              const std::optional<at::Tensor> &tensor) {
    return tensor.has_value() && ShadowFrame::needs_shadow(*tensor) ? frame.show(*tensor, false)
                                                                    : tensor;
}

inline ShownList shown(ShadowFrame &frame, const at::ITensorListRef &tensors) {
    return ShownList(frame, tensors, false);
}

inline ShownList shown(ShadowFrame &frame, at::TensorList &tensors) {
    return ShownList(frame, tensors, false);
}

inline c10::List<std::optional<at::Tensor>>
shown(ShadowFrame &frame, const c10::List<std::optional<at::Tensor>> &tensors) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(tensors.size());
    // IValues in place of the list's proxies, so that what is shown lives as long as the list.
    for (const c10::IValue &element : c10::IValue(tensors).toListRef()) {
        if (element.isNone()) {
            list.push_back(std::nullopt);
        } else {
            const at::Tensor &tensor = element.toTensor();
            list.push_back(ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, false) : tensor);
        }
    }
    return list;
}

// Everything else passes as it is. What would have to be translated but is not is refused, so that
// an operator that needs it cannot be added to the list by mistake.
template <class T>
T &&shown(ShadowFrame &, T &&value) {
    using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
    static_assert(!std::is_same_v<Plain, at::Device> &&
                      !std::is_same_v<Plain, std::optional<at::Device>> &&
                      !std::is_same_v<Plain, std::optional<at::Generator>>,
                  "this argument is translated on the boxed path only");
    return std::forward<T>(value);
}

// What an operator writes without a type that says so.
template <bool statistics, class T>
C10_ALWAYS_INLINE decltype(auto) shown_as(ShadowFrame &frame, T &argument) {
    if constexpr (statistics) {
        using Optional = const std::optional<at::Tensor>;
        Optional &tensor = argument;
        return tensor.has_value() && ShadowFrame::needs_shadow(*tensor)
                   ? static_cast<Optional &>(frame.show(*tensor, true))
                   : tensor;
    } else {
        return shown(frame, argument);
    }
}

// --- operands of one device
// ------------------------------------------------------------------------

inline bool is_plain(const at::Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) || !tensor.defined() ||
           tensor.unsafeGetTensorImpl()->is_wrapped_number();
}
inline bool is_plain(const std::optional<at::Tensor> &tensor) {
    return !tensor.has_value() || is_plain(*tensor);
}
inline bool is_plain(const at::ITensorListRef &tensors) {
    for (const at::Tensor &tensor : tensors) {
        if (!is_plain(tensor)) {
            return false;
        }
    }
    return true;
}
inline bool is_plain(const c10::List<std::optional<at::Tensor>> &tensors) {
    for (const c10::IValue &element : c10::IValue(tensors).toListRef()) {
        if (element.isTensor() && !is_plain(element.toTensor())) {
            return false;
        }
    }
    return true;
}
inline bool is_plain(const at::TensorList &tensors) {
    return is_plain(at::ITensorListRef(tensors));
}
template <class T>
bool is_plain(const T &) {
    return true;
}

// The device of the first operand on flagos; -1: none is.
inline void find_device(c10::DeviceIndex &device, const at::Tensor &tensor) {
    if (device < 0 && ShadowFrame::needs_shadow(tensor)) {
        device = tensor.device().index();
    }
}
inline void find_device(c10::DeviceIndex &device, const std::optional<at::Tensor> &tensor) {
    if (tensor.has_value()) {
        find_device(device, *tensor);
    }
}
inline void find_device(c10::DeviceIndex &device, const at::ITensorListRef &tensors) {
    for (const at::Tensor &tensor : tensors) {
        find_device(device, tensor);
    }
}
inline void find_device(c10::DeviceIndex &device, const at::TensorList &tensors) {
    find_device(device, at::ITensorListRef(tensors));
}
template <class T>
void find_device(c10::DeviceIndex &, const T &) {}

template <class A>
constexpr bool is_written = std::is_same_v<A, at::Tensor &>;

// --- results
// ---------------------------------------------------------------------------------------

inline void adopt_result(ShadowFrame &frame, at::Tensor &result) {
    frame.adopt(result);
}

inline void adopt_result(ShadowFrame &frame, std::vector<at::Tensor> &results) {
    c10::SmallVector<at::Tensor *, 8> pointers;
    for (at::Tensor &result : results) {
        pointers.push_back(&result);
    }
    frame.adopt(pointers.data(), pointers.size());
}

// Tuples may hold numbers beside tensors (attention's seeds and lengths).
template <class... R>
void adopt_result(ShadowFrame &frame, std::tuple<R...> &results) {
    at::Tensor *pointers[sizeof...(R)];
    size_t count = 0;
    const auto collect = [&](auto &result) {
        using Result = std::remove_reference_t<decltype(result)>;
        static_assert(!std::is_same_v<Result, std::vector<at::Tensor>>,
                      "lists within tuples are adopted on the boxed path only");
        if constexpr (std::is_same_v<Result, at::Tensor>) {
            pointers[count++] = &result;
        }
    };
    std::apply([&](R &...result) { (collect(result), ...); }, results);
    frame.adopt(pointers, count);
}

template <class T>
std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, at::Scalar>>
adopt_result(ShadowFrame &, T &) {}

// --- the kernel
// ------------------------------------------------------------------------------------

// In place of a result where the result is an argument, or there is none.
struct NoResult {};

// What every instance shares: its plan, made at registration.
template <class Op>
struct TypedState {
    static inline const OperatorPlan *plan = nullptr;
    static inline const c10::OperatorHandle *handle = nullptr;
    static inline const c10::BoxedKernel *boxed = nullptr; // The router's kernel of the operator.
};

template <class Op, class Schema>
struct Typed;

template <class Op, class R, class... A>
struct Typed<Op, R(A...)> {
    template <size_t index>
    static constexpr bool kIsStatistics = is_statistics(argument_name(Op::schema_str, index));
    static constexpr bool kWritesStatistics =
        std::string_view(Op::schema_str).find("running_mean") != std::string_view::npos;
    static constexpr bool kWrites = (is_written<A> || ...) || kWritesStatistics;
    static constexpr bool kWritesList =
        (std::is_same_v<A, at::TensorList> || ...) && std::is_void_v<R>;
    static constexpr bool kWritesValuesOnly = writes_values_only(Op::name);
    using Result =
        std::conditional_t<std::is_void_v<R> || std::is_lvalue_reference_v<R>, NoResult, R>;

    // Queues a call, where the operator has a way to (deferred_ops.def) and this call can be. Where
    // all that is missing is that the operator has run with these dtypes, or operands like these,
    // sets the number, with which to call `remember` once it has.
    static inline bool (*defer)(Result &, uint64_t &unproven,
                                std::remove_reference_t<A> &...) = nullptr;
    static inline void (*remember)(uint64_t unproven, Result &) = nullptr;

    static R call(A... arguments) {
        const OperatorPlan &plan = *TypedState<Op>::plan;
        const fl_route *const route = fl_slot_route(plan.slot);
        if (C10_UNLIKELY(route->kind != FL_ROUTE_NATIVE)) {
            return call_boxed(std::forward<A>(arguments)...);
        }
        if constexpr (std::string_view(Op::name) == kTracedInParts) {
            if (C10_UNLIKELY(is_traced(plan))) {
                return call_boxed(std::forward<A>(arguments)...);
            }
        }
        if (twin.is_host && C10_UNLIKELY(!(is_plain(arguments) && ...))) {
            return call_boxed(std::forward<A>(arguments)...); // Which knows the rules of devices.
        }
        if (C10_UNLIKELY(queue_is_on())) {
            if (C10_UNLIKELY(defer != nullptr && t_wait_habit.expects_wait() &&
                             !plan.calls_libraries)) {
                const CountedAtEnd counted;
                return call_native(plan, arguments...);
            }
            std::optional<Result> result;
            if (call_queueing(plan, result, arguments...)) {
                return queued_result(*result, arguments...);
            }
        }
        return call_native(plan, arguments...);
    }

  private:
    // The call itself looks whether there is something to wait for, which must not end its count.
    struct CountedAtEnd {
        ~CountedAtEnd() {
            t_wait_habit.calls++;
        }
    };

    // False where the call has to be made here.
    static bool call_queueing(const OperatorPlan &plan, std::optional<Result> &result,
                              std::remove_reference_t<A> &...arguments) {
        uint64_t unproven = 0;
        // What is queued may be another operator, one that writes into results made here.
        if (defer != nullptr && C10_LIKELY(TwinKernel<Op>::is_unchanged())) {
            result.emplace();
            if (defer(*result, unproven, arguments...)) {
                fl_tally_count(thread_state().tally, plan.slot, FL_ROUTE_NATIVE);
                return true;
            }
        }
        if (C10_LIKELY(unproven == 0 && !plan.calls_libraries)) {
            return false;
        }
        c10::DeviceIndex device = -1;
        (find_device(device, arguments), ...);
        if (!call_on_worker(plan.slot->name, device, [&] {
                if constexpr (std::is_same_v<Result, NoResult>) {
                    call_native(plan, arguments...);
                    result.emplace();
                } else {
                    result.emplace(call_native(plan, arguments...));
                }
            })) {
            return false;
        }
        if (unproven != 0) {
            remember(unproven, *result);
        }
        return true;
    }

    static R call_native(const OperatorPlan &plan, std::remove_reference_t<A> &...arguments) {
        ShadowFrame frame;
        fl_tally_count(frame.state().tally, plan.slot, FL_ROUTE_NATIVE);
        try {
            return call_shown(frame, arguments...);
        } catch (...) {
            rethrow_in_user_words(plan.slot->name);
        }
    }

    static R queued_result(Result &result, std::remove_reference_t<A> &...arguments) {
        if constexpr (std::is_lvalue_reference_v<R>) {
            return written_of(arguments...);
        } else if constexpr (!std::is_void_v<R>) {
            return std::move(result);
        }
    }
    static R written_of(std::remove_reference_t<A> &...arguments) {
        static_assert((is_written<A> + ...) == 1,
                      "which of the written ones it returns is not known");
        std::remove_reference_t<R> *written = nullptr;
        (find_written<A>(written, arguments), ...);
        return *written;
    }
    template <class Declared, class Pointer, class T>
    static void find_written(Pointer &written, T &argument) {
        if constexpr (is_written<Declared>) {
            written = &argument;
        }
    }

    static R call_shown(ShadowFrame &frame, std::remove_reference_t<A> &...arguments) {
        if constexpr (kWritesList) {
            call_list(frame, std::index_sequence_for<A...>(), arguments...);
        } else if constexpr (std::is_void_v<R>) {
            TwinKernel<Op>::call(shown(frame, arguments)...);
            if constexpr (kWrites) {
                commit(frame);
            }
        } else if constexpr (std::is_lvalue_reference_v<R>) {
            TwinKernel<Op>::call(shown(frame, arguments)...);
            commit(frame);
            return written_of(arguments...); // Its shadow is what came back.
        } else {
            R result = call_plain(frame, std::index_sequence_for<A...>(), arguments...);
            if constexpr (kWrites) {
                commit(frame);
            }
            adopt_result(frame, result);
            return result;
        }
    }

    static void commit(ShadowFrame &frame) {
        if constexpr (kWritesValuesOnly) {
            frame.commit_values();
        } else {
            frame.commit();
        }
    }

    template <size_t... index>
    C10_ALWAYS_INLINE static R call_plain(ShadowFrame &frame, std::index_sequence<index...>,
                                          std::remove_reference_t<A> &...arguments) {
        return TwinKernel<Op>::call(shown_as<kIsStatistics<index>>(frame, arguments)...);
    }

    template <bool written, class T>
    static decltype(auto) show_argument(ShadowFrame &frame, T &argument) {
        if constexpr (written) {
            return ShownList(frame, argument, true);
        } else {
            return shown(frame, argument);
        }
    }
    template <size_t... index>
    static void call_list(ShadowFrame &frame, std::index_sequence<index...>,
                          std::remove_reference_t<A> &...arguments) {
        // A list that is written has no type of its own. It is the first argument of an operator in
        // place, whose name ends with an underscore.
        static_assert(std::string_view(Op::name).back() == '_',
                      "lists for out= are shown on the boxed path only");
        // Kept until the call, which comes after versions are shown.
        std::tuple<decltype(show_argument<index == 0>(frame, arguments))...> all{
            show_argument<index == 0>(frame, arguments)...};
        const bool counts_versions = TypedState<Op>::plan->counts_versions;
        if (counts_versions) {
            frame.show_versions();
        }
        TwinKernel<Op>::call(std::get<index>(all)...);
        if (counts_versions) {
            frame.return_versions();
        }
        commit(frame);
    }

    static R call_boxed(A... arguments) {
        return c10::impl::BoxedKernelWrapper<R(A...)>::call(
            *TypedState<Op>::boxed, *TypedState<Op>::handle,
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<A>(arguments)...);
    }
};

} // namespace fl_torch
