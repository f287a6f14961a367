// deferred.h: how the call of an operator becomes a task of the launch queue, at compile time.
//
// The caller's thread finds the result's sizes, strides and dtype, takes its memory, and records
// the operands as shadows of the task. The worker gives the shadows their memory and calls the
// twin's kernel that writes into given results (`out=`, or in place). What cannot be known for
// certain is not queued: the caller then drains and runs the operator as ever, so that a wrong call
// raises what it always raised.
//
// Knows the types of arguments and no operator: deferred_ops.def names those.
#pragma once

#include "queue.h"
#include "shadow.h"

#include "fl/queue.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace fl_torch {

// --- operands, on the caller's side
// ---------------------------------------------------------------

// Where the worker finds an operand of a task.
struct OperandIndex {
    static constexpr uint16_t kNone = 0xffff;
    uint16_t value = kNone;
};

// The operands of one call. Memory that late_free.h watches over needs no reference; other memory
// (older than the queue) is kept by a reference to its storage. Operators on memory of others are
// not queued.
//
// References are taken here and not while a slot is open, because taking the second one of an
// object that Python knows may wait for Python's lock.
class Capture {
  public:
    static constexpr size_t kMost = 64; // Longer lists are searched too slowly.

    struct Operand {
        const at::Tensor *tensor; // Borrowed for the call.
        bool written;
        uint16_t lender; // An earlier operand on the same storage, or kNone.
        const c10::StorageImpl *storage;
        c10::intrusive_ptr<c10::StorageImpl> kept; // Null where it need not be.
    };

    OperandIndex add(const at::Tensor &tensor, bool written);
    // A number among the arguments, which the kernel will turn into the operands' dtype.
    void add_number(const at::Scalar &number);
    // Whether every number fits the dtypes of the operands and results, or nearly: a kernel that
    // finds one that does not raises, which must be at the call.
    bool numbers_fit() const;
    // Whether a call with these operands reaches the kernel of their dtypes: without elements, or
    // without dimensions, some operators return before they look. Ask before results are added.
    bool reaches_kernel() const {
        return has_elements_ && has_dimensions_;
    }

    void refuse() {
        good_ = false;
    }
    // Whether every operand is one that a task can have.
    bool is_good() const {
        return good_;
    }
    c10::DeviceIndex device() const {
        return device_;
    }
    void set_device(c10::DeviceIndex device) {
        device_ = device;
    }
    // Stands for the dtypes of the operands, in their order, and for whether algorithms have to be
    // deterministic, which some kernels refuse; never 0.
    uint32_t dtypes() const;
    // Whether the order of the result's dimensions is that of the operands as they are. The host's
    // element-wise kernels first cast what has another dtype, and a cast lays out anew what is not
    // dense.
    bool keeps_order() const {
        return !twin.is_host || is_uniform_ || is_dense_;
    }
    // Whether two operands lie in one storage.
    bool shares() const {
        return shares_;
    }

  private:
    friend class TaskOperands;
    c10::SmallVector<Operand, 6> operands_;
    c10::SmallVector<std::optional<at::Tensor>, 2> numbers_; // Numbers that PyTorch has wrapped.
    uint32_t dtypes_ = 0;
    c10::DeviceIndex device_ = -1;
    double largest_number_ = 0; // The magnitude of the finite ones.
    bool good_ = true, shares_ = false, is_uniform_ = true, is_dense_ = true;
    bool has_elements_ = true, has_dimensions_ = false, has_infinity_ = false; // Or NaN.
};

// Which dtypes an operator has run with, with and without deterministic algorithms. A kernel that
// has none for the dtypes of its operands says so when it runs, which must be at the call: the
// first call with each combination is not queued.
class ProvenDtypes {
  public:
    bool contains(uint32_t key) const {
        for (const auto &known : keys_) {
            const uint32_t value = known.load(std::memory_order_relaxed);
            if (value == key) {
                return true;
            }
            if (value == 0) {
                break;
            }
        }
        return false;
    }
    void add(uint32_t key) {
        for (auto &known : keys_) {
            uint32_t free = 0;
            if (known.compare_exchange_strong(free, key, std::memory_order_relaxed) ||
                free == key) {
                return;
            }
        }
    }

  private:
    std::array<std::atomic<uint32_t>, 16> keys_{}; // 0: free. Beyond that many nothing is queued.
};

// --- operands, in the slot
// ------------------------------------------------------------------------

// Lives as long as its slot, so that shadows are made once. Filled by the thread that has opened
// the slot, used by the worker, emptied by the thread that retires.
class TaskOperands {
  public:
    void record(Capture &&capture);
    void release();
    void retire();

    // As the kernel gets it.
    std::optional<at::Tensor> &at(OperandIndex index) {
        if (index.value == OperandIndex::kNone) {
            return none_;
        }
        return index.value < shadows_.size() ? shadows_[index.value]
                                             : numbers_[kFirstNumber - index.value];
    }

    static constexpr uint16_t kFirstNumber = 0xfffe; // Numbers count down from here.

  private:
    Shadow &shadow(size_t index) {
        return *static_cast<Shadow *>(shadows_[index]->unsafeGetTensorImpl());
    }

    size_t count_ = 0;
    std::vector<ThreadState::Slot> shadows_; // At least `count_`.
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
    c10::SmallVector<std::optional<at::Tensor>, 2> numbers_;
    std::optional<at::Tensor> none_{at::Tensor()};
};

// --- the task
// -------------------------------------------------------------------------------------

// What an operator's tasks have in common; made once.
struct DeferredKind {
    explicit DeferredKind(const char *name);
    fl_task_kind kind;
    ProvenDtypes proven;
};

struct DeferredTask {
    TaskOperands *operands;           // Owned by the slot for ever; NULL before its first task.
    void (*call)(DeferredTask &task); // Also destroys the arguments.
    const char *name;
    c10::DeviceIndex device;
    CallerState caller;
    alignas(16) unsigned char arguments[640];
};
static_assert(sizeof(DeferredTask) <= FL_TASK_PAYLOAD_BYTES, "raise FL_TASK_PAYLOAD_BYTES");
static_assert(offsetof(DeferredTask, operands) == 0, "zeroed memory means that there are none");

// Open a slot and record everything but the arguments; NULL where the caller has to run the call.
fl_task *open_task(const DeferredKind &kind, Capture &&capture, void (*call)(DeferredTask &),
                   uint64_t bytes);

// Queue `call` with its arguments. False where the caller has to run it.
template <class Arguments>
bool queue_task(const DeferredKind &kind, Capture &&capture, Arguments &&arguments,
                void (*call)(DeferredTask &), uint64_t bytes) {
    using Kept = std::remove_reference_t<Arguments>;
    static_assert(sizeof(Kept) <= sizeof(DeferredTask::arguments), "these arguments do not fit");
    static_assert(alignof(Kept) <= 16);
    fl_task *const task = open_task(kind, std::move(capture), call, bytes);
    if (C10_UNLIKELY(task == nullptr)) {
        return false;
    }
    auto *const payload = static_cast<DeferredTask *>(fl_task_payload(task));
    new (payload->arguments) Kept(std::move(arguments));
    fl_queue_submit(task);
    t_wait_habit.calls++;
    drop_put_aside();
    return true;
}

// The kind of tasks of this name, a literal or another text that lives for ever.
const DeferredKind &kind_named(const char *name);

// Queue a call that is no operator and has no operands, in the order of a device's operators.
// `name` is a literal. False where the caller has to make it.
bool queue_call(const char *name, c10::DeviceIndex device, std::function<void()> call);

// The arguments of a task, which are destroyed when the call ends.
template <class Arguments>
struct TaskArguments {
    explicit TaskArguments(DeferredTask &task)
        : value(*reinterpret_cast<Arguments *>(task.arguments)) {}
    ~TaskArguments() {
        value.~Arguments();
    }
    Arguments &value;
};

// --- how each type of argument is kept and given back
// ----------------------------------------------

using KeptInts = c10::SmallVector<int64_t, 5>;
using KeptList = c10::SmallVector<OperandIndex, 8>;

struct KeptTensor {
    OperandIndex index;
};
struct KeptWritten {
    OperandIndex index;
};
struct KeptOptional {
    OperandIndex index;
};
struct KeptIndices {
    KeptList list;
};
struct KeptSymInts {
    KeptInts ints;
};

inline KeptTensor keep(Capture &capture, const at::Tensor &tensor) {
    return {capture.add(tensor, false)};
}
inline KeptWritten keep(Capture &capture, at::Tensor &tensor) {
    return {capture.add(tensor, true)};
}
inline KeptOptional keep(Capture &capture, const std::optional<at::Tensor> &tensor) {
    return {tensor.has_value() && tensor->defined() ? capture.add(*tensor, false) : OperandIndex{}};
}
inline KeptList keep(Capture &capture, const at::ITensorListRef &tensors) {
    KeptList list;
    for (const at::Tensor &tensor : tensors) {
        list.push_back(capture.add(tensor, false));
    }
    return list;
}
inline at::Scalar keep(Capture &capture, const at::Scalar &number) {
    capture.add_number(number);
    return number;
}
inline std::optional<at::Scalar> keep(Capture &capture, const std::optional<at::Scalar> &number) {
    if (number.has_value()) {
        capture.add_number(*number);
    }
    return number;
}
inline int64_t keep(Capture &capture, const c10::SymInt &number) {
    const std::optional<int64_t> known = number.maybe_as_int();
    if (!known.has_value()) {
        capture.refuse();
    }
    return known.value_or(0);
}
inline KeptSymInts keep(Capture &capture, c10::SymIntArrayRef ints) {
    KeptSymInts kept;
    for (const c10::SymInt &number : ints) {
        kept.ints.push_back(keep(capture, number));
    }
    return kept;
}
inline std::optional<KeptSymInts> keep(Capture &capture, const at::OptionalSymIntArrayRef &ints) {
    return ints.has_value() ? std::make_optional(keep(capture, *ints)) : std::nullopt;
}
inline KeptIndices keep(Capture &capture, const c10::List<std::optional<at::Tensor>> &tensors) {
    KeptIndices kept;
    // The elements belong to the caller's list, which outlives the capture.
    for (const c10::IValue &element : c10::IValue(tensors).toListRef()) {
        kept.list.push_back(element.isTensor() ? capture.add(element.toTensor(), false)
                                               : OperandIndex());
    }
    return kept;
}
inline KeptInts keep(Capture &, at::IntArrayRef ints) {
    return KeptInts(ints.begin(), ints.end());
}
inline std::optional<KeptInts> keep(Capture &, at::OptionalIntArrayRef ints) {
    return ints.has_value() ? std::make_optional(KeptInts(ints->begin(), ints->end()))
                            : std::nullopt;
}
inline std::string keep(Capture &, c10::string_view text) {
    return std::string(text);
}
template <class T>
std::enable_if_t<
    std::is_trivially_copyable_v<T> && !std::is_same_v<T, c10::string_view> &&
        !std::is_same_v<T, at::IntArrayRef> && !std::is_same_v<T, at::OptionalIntArrayRef> &&
        !std::is_same_v<T, c10::SymIntArrayRef> && !std::is_same_v<T, at::OptionalSymIntArrayRef>,
    T>
keep(Capture &, const T &value) {
    return value;
}

inline const at::Tensor &give(TaskOperands &operands, const KeptTensor &kept) {
    return *operands.at(kept.index);
}
inline at::Tensor &give(TaskOperands &operands, const KeptWritten &kept) {
    return *operands.at(kept.index);
}
inline std::optional<at::Tensor> give(TaskOperands &operands, const KeptOptional &kept) {
    return kept.index.value == OperandIndex::kNone ? std::nullopt : operands.at(kept.index);
}

// Handles side by side, as kernels want them.
class GivenList {
  public:
    GivenList(TaskOperands &operands, const KeptList &kept) {
        for (const OperandIndex index : kept) {
            tensors_.push_back(*operands.at(index));
        }
    }
    operator at::ITensorListRef() const {
        return at::ITensorListRef(at::TensorList(tensors_));
    }

  private:
    c10::SmallVector<at::Tensor, 8> tensors_;
};
inline GivenList give(TaskOperands &operands, const KeptList &kept) {
    return GivenList(operands, kept);
}
inline c10::List<std::optional<at::Tensor>> give(TaskOperands &operands, const KeptIndices &kept) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(kept.list.size());
    for (const OperandIndex index : kept.list) {
        list.push_back(index.value == OperandIndex::kNone ? std::nullopt : operands.at(index));
    }
    return list;
}
inline c10::SymIntArrayRef give(TaskOperands &, const KeptSymInts &kept) {
    return c10::fromIntArrayRefSlow(kept.ints);
}
inline at::OptionalSymIntArrayRef give(TaskOperands &, const std::optional<KeptSymInts> &kept) {
    return kept.has_value() ? at::OptionalSymIntArrayRef(c10::fromIntArrayRefSlow(kept->ints))
                            : std::nullopt;
}
inline at::IntArrayRef give(TaskOperands &, const KeptInts &kept) {
    return kept;
}
inline at::OptionalIntArrayRef give(TaskOperands &, const std::optional<KeptInts> &kept) {
    return kept.has_value() ? at::OptionalIntArrayRef(*kept) : std::nullopt;
}
inline c10::string_view give(TaskOperands &, const std::string &kept) {
    return kept;
}
template <class T>
const T &give(TaskOperands &, const T &kept) {
    return kept;
}

} // namespace fl_torch
