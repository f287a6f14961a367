// deferred_learned.h: how an operator is queued whose results were learned (learned.h), a template
// over its schema.
#pragma once

#include "deferred_typed.h"
#include "learned.h"

namespace fl_torch {

// --- which calls may be queued
// ---------------------------------------------------------------------

struct Always {
    template <class T>
    static bool allows(const T &) {
        return true;
    }
};

// The one `double` that is not optional is how much is dropped out: random numbers are drawn at the
// call.
struct WithoutDropout : Always {
    using Always::allows;
    static bool allows(const double &dropout) {
        return dropout == 0;
    }
};

// A mask as an index makes results whose size depends on its values.
struct WithoutMasks : Always {
    using Always::allows;
    static bool allows(const c10::List<std::optional<at::Tensor>> &indices) {
        for (const c10::IValue &index : c10::IValue(indices).toListRef()) {
            if (index.isTensor() && index.toTensor().scalar_type() != at::kLong &&
                index.toTensor().scalar_type() != at::kInt) {
                return false;
            }
        }
        return true;
    }
};

// --- results one by one
// ----------------------------------------------------------------------------

template <class R, class Visit>
void each_result(R &result, Visit &&visit) {
    visit(result);
}
template <class... R, class Visit>
void each_result(std::tuple<R...> &results, Visit &&visit) {
    std::apply([&](R &...result) { (visit(result), ...); }, results);
}

// What a later call gets in place of the results that the first one had.
class MakeLearned {
  public:
    explicit MakeLearned(const Learned &learned) : learned_(learned) {}
    void operator()(at::Tensor &result) {
        const LearnedTensor &look = learned_.tensors[tensors_++];
        if (look.host.defined()) {
            result = look.host.clone();
        } else if (look.defined) {
            result = new_result(look.sizes, look.strides, at::TensorOptions().dtype(look.dtype));
        }
    }
    template <class T>
    void operator()(T &number) {
        number = T(learned_.numbers[numbers_++]);
    }

  private:
    const Learned &learned_;
    size_t tensors_ = 0, numbers_ = 0;
};

// --- the call
// --------------------------------------------------------------------------------------

template <class Op, class Allowed, class Schema>
struct DeferLearned;

template <class Op, class Allowed, class R, class... A>
struct DeferLearned<Op, Allowed, R(A...)> {
    using Kept = decltype(std::make_tuple(
        keep(std::declval<Capture &>(), std::declval<std::remove_reference_t<A> &>())...));
    struct Arguments {
        Kept kept;
        c10::SmallVector<OperandIndex, 10> results;
    };

    static bool defer(R &out, uint64_t &unproven, std::remove_reference_t<A> &...arguments) {
        Capture capture;
        Arguments kept{Kept{keep(capture, arguments)...}, {}};
        if (!capture.is_good() || capture.device() < 0 || !(Allowed::allows(arguments) && ...)) {
            return false;
        }
        Signature signature(DeferredState<Op>::kind);
        (signature.add(arguments), ...);
        const std::shared_ptr<const Learned> learned = find_learned(signature.value());
        if (learned == nullptr) {
            unproven = signature.value();
            return false;
        }
        if (!learned->can_be_queued) {
            return false;
        }
        R made{};
        each_result(made, MakeLearned(*learned));
        each_result(made, [&](auto &result) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(result)>, at::Tensor>) {
                const bool ours = result.defined() && ShadowFrame::needs_shadow(result);
                kept.results.push_back(ours ? capture.add(result, true) : OperandIndex());
            }
        });
        if (kept.results.empty()) { // Numbers alone.
            out = std::move(made);
            return true;
        }
        if (!capture.is_good() || !queue_task(*DeferredState<Op>::kind, std::move(capture),
                                              std::move(kept), &run, learned->bytes)) {
            return false;
        }
        out = std::move(made);
        return true;
    }

    static void remember(uint64_t signature, R &results) {
        Learned learned;
        each_result(results, [&](auto &result) { learned.look_at(result); });
        learn(signature, std::move(learned));
    }

  private:
    static void run(DeferredTask &task) {
        const TaskArguments<Arguments> arguments(task);
        R made = std::apply(
            [&](auto &...each) { return TwinKernel<Op>::call(give(*task.operands, each)...); },
            arguments.value.kept);
        size_t index = 0;
        each_result(made, [&](auto &result) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(result)>, at::Tensor>) {
                hand_over(result, task, arguments.value.results[index++]);
            }
        });
    }
};

} // namespace fl_torch
