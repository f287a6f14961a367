// deferred_typed.h: the three ways in which a typed operator is queued, each a template over its
// schema: with results that are made, with results that are given, and in parts.
#pragma once

#include "deferred.h"
#include "infer.h"
#include "typed.h"

namespace fl_torch {

// Made once an operator.
template <class Op>
struct DeferredState {
    static inline DeferredKind *kind = nullptr;
};

// The operator has run with these dtypes.
template <class Op, class Result>
void remember_dtypes(uint64_t dtypes, Result &) {
    DeferredState<Op>::kind->proven.add(static_cast<uint32_t>(dtypes));
}

// Whether it has run with the operands' dtypes; `unproven` is set where it has not and this call
// will show it.
template <class Op>
bool is_proven(const Capture &capture, bool reaches_kernel, uint64_t &unproven) {
    const uint32_t dtypes = capture.dtypes();
    if (C10_LIKELY(DeferredState<Op>::kind->proven.contains(dtypes))) {
        return true;
    }
    unproven = reaches_kernel ? dtypes : 0;
    return false;
}

// --- results as a row
// ------------------------------------------------------------------------------

template <class R>
struct ResultRow;
template <>
struct ResultRow<at::Tensor> {
    static constexpr size_t kCount = 1;
    static at::Tensor from(std::array<at::Tensor, 1> &row) {
        return std::move(row[0]);
    }
};
template <>
struct ResultRow<std::tuple<at::Tensor, at::Tensor>> {
    static constexpr size_t kCount = 2;
    static std::tuple<at::Tensor, at::Tensor> from(std::array<at::Tensor, 2> &row) {
        return {std::move(row[0]), std::move(row[1])};
    }
};

template <size_t N>
bool all_defined(const std::array<at::Tensor, N> &row) {
    for (const at::Tensor &result : row) {
        if (!result.defined()) {
            return false;
        }
    }
    return true;
}

// --- made results
// -----------------------------------------------------------------------------------

// `Out` is the operator's form with given results, `Rule` a structured operator of at::meta or one
// of rules.h, `Quick` says how the commonest case is decided.
template <class Op, class Out, class Rule, class Quick, class Schema>
struct DeferMade;

template <class Op, class Out, class Rule, class Quick, class R, class... A>
struct DeferMade<Op, Out, Rule, Quick, R(A...)> {
    static constexpr size_t kResults = ResultRow<R>::kCount;
    using Row = std::array<at::Tensor, kResults>;
    using Kept = decltype(std::make_tuple(
        keep(std::declval<Capture &>(), std::declval<std::remove_reference_t<A> &>())...));
    struct Arguments {
        Kept kept;
        std::array<OperandIndex, kResults> results;
    };

    static bool defer(R &out, uint64_t &unproven, std::remove_reference_t<A> &...arguments) {
        Capture capture;
        Arguments kept{Kept{keep(capture, arguments)...}, {}};
        Row row;
        if (std::is_base_of_v<at::TensorIteratorBase, Rule> && !capture.keeps_order()) {
            return false;
        }
        if (!capture.is_good() || capture.device() < 0 || !make(row, arguments...)) {
            return false;
        }
        const bool reaches_kernel = capture.reaches_kernel();
        uint64_t bytes = 0;
        for (size_t i = 0; i < kResults; i++) {
            kept.results[i] = capture.add(row[i], true);
            bytes += row[i].unsafeGetTensorImpl()->unsafe_storage().nbytes();
        }
        if (!is_proven<Op>(capture, reaches_kernel, unproven) ||
            !queue_task(*DeferredState<Op>::kind, std::move(capture), std::move(kept), &run,
                        bytes)) {
            return false;
        }
        out = ResultRow<R>::from(row);
        return true;
    }

  private:
    static bool make(Row &row, std::remove_reference_t<A> &...arguments) {
        if constexpr (Quick::kIsQuick) {
            if (const at::Tensor *const like = same_shape(arguments...)) {
                row[0] = new_result_like(*like, Quick::dtype(*like));
                return true;
            }
        }
        // A wrong call raises here; whoever runs it at once raises the same in the user's words.
        try {
            if constexpr (std::is_base_of_v<at::impl::MetaBase, Rule>) {
                MadeResults<Rule, kResults> rule;
                rule.meta(as_meta(arguments)...);
                row = std::move(rule.results);
                return all_defined(row);
            } else {
                return Rule::make(row, arguments...);
            }
        } catch (const std::exception &) {
            return false;
        }
    }

    static void run(DeferredTask &task) {
        const TaskArguments<Arguments> arguments(task);
        call(*task.operands, arguments.value, std::index_sequence_for<A...>(),
             std::make_index_sequence<kResults>());
    }
    template <size_t... I, size_t... O>
    static void call(TaskOperands &operands, Arguments &kept, std::index_sequence<I...>,
                     std::index_sequence<O...>) {
        Out::redispatch(twin.keys, give(operands, std::get<I>(kept.kept))...,
                        *operands.at(kept.results[O])...);
    }
};

// --- given results
// -----------------------------------------------------------------------------------

template <class Op, class Rule, class Quick, class Schema>
struct DeferGiven;

template <class Op, class Rule, class Quick, class R, class... A>
struct DeferGiven<Op, Rule, Quick, R(A...)> {
    static constexpr size_t kResults = (size_t(is_written<A>) + ...);
    using Given = std::array<at::Tensor *, kResults>;
    using Kept = decltype(std::make_tuple(
        keep(std::declval<Capture &>(), std::declval<std::remove_reference_t<A> &>())...));

    static bool defer(NoResult &, uint64_t &unproven, std::remove_reference_t<A> &...arguments) {
        Capture capture;
        Kept kept{keep(capture, arguments)...};
        if (!capture.is_good() || capture.device() < 0 || !fits(capture, arguments...)) {
            return false;
        }
        return is_proven<Op>(capture, capture.reaches_kernel(), unproven) &&
               queue_task(*DeferredState<Op>::kind, std::move(capture), std::move(kept), &run, 0);
    }

  private:
    static bool fits(const Capture &capture, std::remove_reference_t<A> &...arguments) {
        if constexpr (Quick::kIsQuick) {
            // Operands that share a storage may overlap in part, which the rule knows to refuse.
            if (!capture.shares() && same_shape(arguments...) != nullptr) {
                return true;
            }
        }
        try {
            Given given{};
            size_t count = 0;
            (collect<A>(given, count, arguments), ...);
            if constexpr (std::is_base_of_v<at::impl::MetaBase, Rule>) {
                GivenResults<Rule, kResults> rule(given);
                meta<A...>(rule, arguments...);
                return rule.fit;
            } else {
                return Rule::fits(arguments...);
            }
        } catch (const std::exception &) {
            return false;
        }
    }
    template <class Declared, class T>
    static void collect(Given &given, size_t &count, T &argument) {
        if constexpr (is_written<Declared>) {
            given[count++] = &argument;
        }
    }
    // In place the first operand is a result as well; an `out=` is a result alone.
    template <class First, class... Rest>
    static void meta(GivenResults<Rule, kResults> &rule, std::remove_reference_t<First> &first,
                     std::remove_reference_t<Rest> &...rest) {
        if constexpr (is_written<First>) {
            rule.meta(as_meta(first), as_meta(rest)...);
        } else {
            static_assert(kResults == 1, "one result behind the operands");
            without_last(rule, std::forward_as_tuple(first, rest...),
                         std::make_index_sequence<sizeof...(Rest)>());
        }
    }
    template <class Tuple, size_t... I>
    static void without_last(GivenResults<Rule, kResults> &rule, const Tuple &arguments,
                             std::index_sequence<I...>) {
        rule.meta(as_meta(std::get<I>(arguments))...);
    }

    static void run(DeferredTask &task) {
        const TaskArguments<Kept> kept(task);
        std::apply([&](auto &...each) { TwinKernel<Op>::call(give(*task.operands, each)...); },
                   kept.value);
    }
};

// --- in parts
// ----------------------------------------------------------------------------------------

// PyTorch's own function of an operator that it makes of others, each of which queues or drains.
template <auto function, class Schema>
struct DeferParts;

template <auto function, class R, class... A>
struct DeferParts<function, R(A...)> {
    using Result = typename Typed<void, R(A...)>::Result;

    static bool defer(Result &out, uint64_t &, std::remove_reference_t<A> &...arguments) {
        if constexpr (std::is_same_v<Result, NoResult>) {
            function(arguments...);
        } else {
            out = function(arguments...);
        }
        return true;
    }
};

} // namespace fl_torch
