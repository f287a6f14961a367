// learned.cpp: see learned.h. Knows no operator.
#include "learned.h"

#include "late_free.h"
#include "twin.h"

#include <ATen/Context.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <shared_mutex>
#include <unordered_map>

namespace fl_torch {

namespace {

// Beyond that the copy and the memory that it takes twice would show.
constexpr uint64_t kMostBytes = 2 << 20;
// A decoder's keys grow with each token: what was learned long ago is forgotten.
constexpr size_t kMostLearned = 4096;

std::shared_mutex &table_lock() {
    static auto *const made = new std::shared_mutex;
    return *made;
}

using Table = std::unordered_map<uint64_t, std::shared_ptr<const Learned>>;

Table &table() {
    static auto *const made = new Table; // Under the lock. Outlives every thread.
    return *made;
}

} // namespace

Signature::Signature(const void *op) {
    at::Context &context = at::globalContext();
    mix(reinterpret_cast<uintptr_t>(op));
    uint64_t settings = 0;
    for (const bool setting :
         {context.deterministicAlgorithms(), context.userEnabledCuDNN(),
          context.userEnabledMkldnn(), context.benchmarkCuDNN(), context.deterministicCuDNN(),
          context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(),
          context.userEnabledMathSDP(), context.userEnabledCuDNNSDP(), context.userEnabledFA3SDP(),
          context.userEnabledOverrideableSDP()}) {
        settings = settings << 1 | uint64_t(setting);
    }
    for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
        settings = settings * 8 + static_cast<uint64_t>(backend);
    }
    mix(settings);
    mix(twin.is_host ? static_cast<uint64_t>(at::get_num_threads()) : 0);
}

void Signature::add(const at::Tensor &tensor) {
    mix(tensor.defined());
    if (tensor.defined()) {
        mix(static_cast<uint64_t>(tensor.scalar_type()) << 8 |
            static_cast<uint64_t>(tensor.device().type()));
        add(tensor.sizes());
        add(tensor.strides());
    }
}

void Signature::add(const c10::List<std::optional<at::Tensor>> &tensors) {
    mix(tensors.size());
    for (const c10::IValue &element : c10::IValue(tensors).toListRef()) {
        add(element.isNone() ? at::Tensor() : element.toTensor());
    }
}

void Learned::look_at(const at::Tensor &result) {
    LearnedTensor &look = tensors.emplace_back();
    look.defined = result.defined();
    if (!look.defined) {
        return;
    }
    if (result.device().is_cpu()) {
        look.host = result.clone();
        return;
    }
    look.dtype = result.scalar_type();
    look.sizes.assign(result.sizes().begin(), result.sizes().end());
    look.strides.assign(result.strides().begin(), result.strides().end());
    const c10::TensorImpl &impl = *result.unsafeGetTensorImpl();
    const auto lazy = c10::DispatchKeySet(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    can_be_queued &= result.device().type() == kFlagos && result.layout() == at::kStrided &&
                     !impl.key_set().has_any(lazy);
    if (!can_be_queued) {
        return;
    }
    // Memory of its own, and no more than it shows.
    const size_t nbytes = result.storage().nbytes();
    bytes += nbytes;
    can_be_queued &=
        result.storage_offset() == 0 &&
        nbytes == at::detail::computeStorageNbytes(look.sizes, look.strides, result.itemsize()) &&
        std::find(storages_.begin(), storages_.end(), result.storage().unsafeGetStorageImpl()) ==
            storages_.end();
    storages_.push_back(result.storage().unsafeGetStorageImpl());
}

void Learned::judge() {
    can_be_queued &= bytes <= kMostBytes;
}

std::shared_ptr<const Learned> find_learned(uint64_t signature) {
    const std::shared_lock<std::shared_mutex> guard(table_lock());
    const auto entry = table().find(signature);
    return entry == table().end() ? nullptr : entry->second;
}

void learn(uint64_t signature, Learned learned) {
    learned.judge();
    const std::unique_lock<std::shared_mutex> guard(table_lock());
    if (table().size() >= kMostLearned) {
        table().clear();
    }
    table()[signature] = std::make_shared<const Learned>(std::move(learned));
}

void hand_over(const at::Tensor &made, DeferredTask &task, OperandIndex result) {
    if (result.value == OperandIndex::kNone) {
        return; // Undefined, or on the host.
    }
    at::Tensor &wanted = *task.operands->at(result);
    if (was_freed_at_once(wanted.storage().data(), task.device)) {
        return;
    }
    TORCH_CHECK(made.defined() && made.sizes() == wanted.sizes() &&
                    made.scalar_type() == wanted.scalar_type(),
                "the launch queue expected another result; please report this, and set "
                "TORCH_FL_QUEUE=0 meanwhile");
    at::native::copy_(wanted, made, /*non_blocking=*/false);
}

} // namespace fl_torch
