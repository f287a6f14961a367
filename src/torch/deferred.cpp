// deferred.cpp: see deferred.h. The part of a task that is the same for every operator.
#include "deferred.h"

#include "late_free.h"
#include "twin.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace fl_torch {

namespace {

// Plain dense tensors whose memory is theirs: no lazy bits, names or symbols, and neither another
// library's memory nor copy-on-write, which have deleters of their own.
bool can_be_recorded(const c10::TensorImpl &impl, const c10::StorageImpl *storage, bool written) {
    constexpr auto lazy = c10::DispatchKeySet(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    const uint64_t refused = lazy.raw_repr() | twin.special_keys;
    // What has sizes and no memory is refused when it is bound, which must be at the call.
    const bool has_memory = storage != nullptr && (storage->nbytes() != 0 || impl.numel() == 0);
    return (impl.key_set().raw_repr() & refused) == 0 && has_memory &&
           !impl.has_named_tensor_meta() && !impl.has_symbolic_sizes_strides() &&
           is_twin_made(storage->data_ptr(), impl.device().index()) && !is_known(storage, written);
}

// Dtypes that every kernel of copies and casts has; of others the first call says nothing about the
// next.
bool is_common(at::ScalarType dtype) {
    return (c10::isFloatingType(dtype) || c10::isComplexType(dtype) ||
            c10::isIntegralType(dtype, /*includeBool=*/true)) &&
           dtype != at::ScalarType::Float4_e2m1fn_x2 && dtype != at::ScalarType::Float8_e8m0fnu;
}

// The largest magnitude that a number may have to become this dtype. Every number has a truth.
double largest_of(at::ScalarType dtype) {
    switch (c10::toRealValueType(dtype)) {
#define FL_LARGEST(type, name) \
    case at::ScalarType::name: \
        return static_cast<double>(std::numeric_limits<type>::max());
        AT_FORALL_INT_TYPES(FL_LARGEST)
        FL_LARGEST(uint16_t, UInt16)
        FL_LARGEST(uint32_t, UInt32)
        FL_LARGEST(uint64_t, UInt64)
        FL_LARGEST(at::Half, Half)
        FL_LARGEST(at::BFloat16, BFloat16)
        FL_LARGEST(float, Float)
        FL_LARGEST(double, Double)
        FL_LARGEST(at::Float8_e4m3fn, Float8_e4m3fn)
        FL_LARGEST(at::Float8_e4m3fnuz, Float8_e4m3fnuz)
        FL_LARGEST(at::Float8_e5m2, Float8_e5m2)
        FL_LARGEST(at::Float8_e5m2fnuz, Float8_e5m2fnuz)
#undef FL_LARGEST
    case at::ScalarType::Bool:
        return std::numeric_limits<double>::infinity();
    default:
        return 0;
    }
}

bool holds_infinity(at::ScalarType dtype) {
    return dtype == at::ScalarType::Bool || dtype == at::ScalarType::Float8_e5m2 ||
           c10::isComplexType(dtype) || (c10::isFloatingType(dtype) && !c10::isFloat8Type(dtype));
}

} // namespace

void Capture::add_number(const at::Scalar &number) {
    if (number.isSymbolic()) {
        refuse();
        return;
    }
    const c10::complex<double> value = number.toComplexDouble();
    const double magnitude = std::max(std::abs(value.real()), std::abs(value.imag()));
    if (std::isfinite(magnitude) && std::isfinite(value.imag())) {
        largest_number_ = std::max(largest_number_, magnitude);
    } else {
        has_infinity_ = true;
    }
}

bool Capture::numbers_fit() const {
    constexpr double kFitsAll = 1; // Most numbers are those that leave operands as they are.
    if (C10_LIKELY(largest_number_ <= kFitsAll && !has_infinity_)) {
        return true;
    }
    return std::all_of(operands_.begin(), operands_.end(), [this](const Operand &operand) {
        const at::ScalarType dtype = operand.tensor->scalar_type();
        return largest_number_ <= largest_of(dtype) && (!has_infinity_ || holds_infinity(dtype));
    });
}

OperandIndex Capture::add(const at::Tensor &tensor, bool written) {
    if (!tensor.defined()) {
        return {};
    }
    c10::TensorImpl &impl = *tensor.unsafeGetTensorImpl();
    dtypes_ = dtypes_ * 64 + dtypes_ / (1u << 25) + 1 + static_cast<uint32_t>(tensor.scalar_type());
    if (!ShadowFrame::needs_shadow(tensor)) {
        // A tensor of the host may be changed after the call, except the ones that PyTorch made of
        // a number for this call.
        good_ &= impl.is_wrapped_number() && !written;
        numbers_.emplace_back(tensor);
        return {static_cast<uint16_t>(TaskOperands::kFirstNumber - (numbers_.size() - 1))};
    }
    c10::StorageImpl *const storage = impl.unsafe_storage().unsafeGetStorageImpl();
    uint16_t lender = OperandIndex::kNone;
    for (size_t i = 0; i < operands_.size(); i++) {
        Operand &known = operands_[i];
        if (known.tensor->unsafeGetTensorImpl() == &impl) {
            if (written && !known.written) {
                known.written = true;
                good_ &= can_be_recorded(impl, storage, true);
            }
            return {static_cast<uint16_t>(i)};
        }
        if (known.lender == OperandIndex::kNone && known.storage == storage) {
            lender = static_cast<uint16_t>(i);
            shares_ = true;
        }
    }
    const c10::DeviceIndex device = impl.device().index();
    good_ &= can_be_recorded(impl, storage, written) && (device_ == -1 || device_ == device) &&
             operands_.size() < kMost;
    if (!good_) {
        return {};
    }
    device_ = device;
    const at::ScalarType dtype = tensor.scalar_type();
    good_ &= is_common(dtype);
    has_elements_ &= impl.numel() != 0;
    has_dimensions_ |= impl.dim() != 0;
    is_uniform_ &= (operands_.empty() || operands_[0].tensor->scalar_type() == dtype) &&
                   (c10::isFloatingType(dtype) || c10::isComplexType(dtype));
    is_dense_ &= impl.is_non_overlapping_and_dense();
    operands_.push_back(Operand{&tensor, written, lender, storage, {}});
    if (C10_UNLIKELY(!is_freed_late(storage->data_ptr(), device))) {
        operands_.back().kept = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
    }
    return {static_cast<uint16_t>(operands_.size() - 1)};
}

uint32_t Capture::dtypes() const {
    constexpr uint32_t kHash = (1u << 30) - 1;
    return (dtypes_ & kHash) | 1u << 31 |
           (at::globalContext().deterministicAlgorithms() ? 1u << 30 : 0);
}

void TaskOperands::record(Capture &&capture) {
    count_ = 0;
    while (shadows_.size() < capture.operands_.size()) {
        shadows_.emplace_back(Shadow::create());
    }
    for (size_t i = 0; i < capture.operands_.size(); i++) {
        Capture::Operand &operand = capture.operands_[i];
        Shadow *const lender =
            operand.lender == OperandIndex::kNone ? nullptr : &shadow(operand.lender);
        shadow(i).record(*operand.tensor, operand.written, lender);
        if (C10_UNLIKELY(operand.kept.defined())) {
            storages_.push_back(std::move(operand.kept));
        }
        count_++;
    }
    numbers_ = std::move(capture.numbers_);
}

void TaskOperands::release() {
    for (size_t i = count_; i-- != 0;) {
        if (C10_UNLIKELY(!shadow(i).release())) {
            shadows_[i] = Shadow::create();
        }
    }
}

void TaskOperands::retire() {
    for (auto &storage : storages_) {
        put_aside(std::move(storage));
    }
    storages_.clear();
    for (auto &number : numbers_) {
        put_aside(std::move(*number));
    }
    numbers_.clear();
}

namespace {

fl_status run_task(void *payload) {
    DeferredTask &task = *static_cast<DeferredTask *>(payload);
    task.caller.install(task.device);
    fl_status status = FL_OK;
    try {
        task.call(task);
    } catch (...) {
        status = keep_exception(task.name);
    }
    task.operands->release();
    return status;
}

void retire_task(void *payload) {
    static_cast<DeferredTask *>(payload)->operands->retire();
}

} // namespace

DeferredKind::DeferredKind(const char *name) : kind{name, &run_task, &retire_task}, proven{} {}

fl_task *open_task(const DeferredKind &kind, Capture &&capture, void (*call)(DeferredTask &),
                   uint64_t bytes) {
    if (C10_UNLIKELY(!capture.numbers_fit())) {
        return nullptr;
    }
    // A kernel that is called from within a parallel loop runs on one thread; the worker's would
    // not, and might add up in another order.
    if (C10_UNLIKELY(twin.is_host && at::in_parallel_region())) {
        return nullptr;
    }
    // A profiler wants to see kernels in the thread and within the operator that called them.
    if (C10_UNLIKELY(at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value())) {
        return nullptr;
    }
    const c10::DeviceIndex device = std::max<c10::DeviceIndex>(capture.device(), 0);
    const CallerState caller = CallerState::now(device);
    // Where the caller has not switched the counting of versions off, as PyTorch's own kernels
    // above this one do, a kernel counts its inner writes on the result that it makes; one that is
    // given a shadow would not.
    constexpr auto counting = c10::DispatchKey::ADInplaceOrView;
    if (C10_UNLIKELY(caller.keys.included().has(counting) &&
                     !caller.keys.excluded().has(counting))) {
        return nullptr;
    }
    fl_task *const task = fl_queue_open(device, caller.stream, &kind.kind, bytes);
    if (C10_UNLIKELY(task == nullptr)) {
        return nullptr;
    }
    auto *const payload = static_cast<DeferredTask *>(fl_task_payload(task));
    if (C10_UNLIKELY(payload->operands == nullptr)) {
        payload->operands = new TaskOperands;
    }
    payload->call = call;
    payload->name = kind.kind.name;
    payload->device = device;
    payload->caller = caller;
    try {
        payload->operands->record(std::move(capture));
    } catch (...) {
        // The number is taken, and later tasks wait for it.
        payload->call = [](DeferredTask &) {};
        fl_queue_submit(task);
        throw;
    }
    return task;
}

const DeferredKind &kind_named(const char *name) {
    // Made at its first use and kept.
    static auto *const lock = new std::mutex;
    static auto *const kinds = new std::unordered_map<const char *, const DeferredKind *>;
    const std::lock_guard<std::mutex> guard(*lock);
    const DeferredKind *&known = (*kinds)[name];
    if (known == nullptr) {
        known = new DeferredKind(name);
    }
    return *known;
}

bool queue_call(const char *name, c10::DeviceIndex device, std::function<void()> call) {
    using Call = std::function<void()>;
    Capture nothing;
    nothing.set_device(device);
    return queue_task(
        kind_named(name), std::move(nothing), std::move(call),
        [](DeferredTask &task) {
            const TaskArguments<Call> kept(task);
            kept.value();
        },
        0);
}

} // namespace fl_torch
