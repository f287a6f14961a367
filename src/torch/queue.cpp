// queue.cpp: see queue.h. Knows no operator.
#include "queue.h"

#include "check.h"
#include "errors.h"
#include "late_free.h"
#include "launch.h"

#include "fl/debug.h"
#include "fl/driver.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace fl_torch {

QueueState queue_state;

// --- the switch
// -------------------------------------------------------------------------------------

void queue_set(bool on) {
    if (on) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            twin.present, "the launch queue is not served on platform '",
            fl_platform_chosen()->name,
            "', where operators run on the host: only those of a twin can be queued");
        TORCH_CHECK(!launch_blocking,
                    "the launch queue is off while TORCH_FL_LAUNCH_BLOCKING is 1");
        watch_twin_memory();
        t_wait_habit = {0, 0};
        queue_state.in_use.store(true);
        queue_state.is_on.store(true);
    } else {
        queue_state.is_on.store(false);
        settle_queue();
    }
}

void queue_choose() {
    // On a host twin the worker would take a processor from the kernels. Where the queue cannot be
    // served the option has no effect, so that one environment does for all platforms.
    queue_state.always = fl_option_bool(FL_OPT_QUEUE_ALWAYS);
    const bool wanted =
        fl_option_is_set(FL_OPT_QUEUE) ? fl_option_bool(FL_OPT_QUEUE) : !twin.is_host;
    if (wanted && twin.present && !launch_blocking) {
        queue_set(true);
    }
}

// --- failures
// ---------------------------------------------------------------------------------------

namespace {

std::mutex kept_lock;
std::exception_ptr kept; // Of the failure that the core keeps; under the lock.

[[noreturn]] void raise_kept(const fl_queue_failure &failure) {
    std::exception_ptr exception;
    {
        const std::lock_guard<std::mutex> guard(kept_lock);
        std::swap(exception, kept);
    }
    const std::string context =
        c10::str("in '", failure.name, "', task ", failure.number, " of flagos:", failure.device,
                 ", which the launch queue ran after the call had returned",
                 failure.where[0] != 0 ? c10::str(" from ", failure.where) : "",
                 failure.count > 1 ? c10::str(" (", failure.count - 1, " more failed since)") : "",
                 "; TORCH_FL_LAUNCH_BLOCKING=1 raises it at the call");
    TORCH_CHECK(exception != nullptr, failure.message, "\n", context);
    try {
        try {
            std::rethrow_exception(exception);
        } catch (...) {
            rethrow_in_user_words(failure.name);
        }
    } catch (c10::Error &error) {
        error.add_context(context);
        throw;
    } catch (const std::runtime_error &error) { // PyTorch's conversion of numbers throws these.
        TORCH_CHECK(false, error.what(), "\n", context);
    }
}

} // namespace

fl_status keep_exception(const char *name) {
    const std::exception_ptr exception = std::current_exception();
    std::string text = "an exception of an unknown class";
    try {
        throw;
    } catch (const c10::Error &error) {
        text = error.msg();
    } catch (const std::exception &error) {
        text = error.what();
    } catch (...) {
    }
    {
        const std::lock_guard<std::mutex> guard(kept_lock);
        if (!fl_queue_has_failed()) {
            kept = exception;
        }
    }
    return fl_fail(FL_DEVICE_ERROR, "%s: %s", name, text.c_str());
}

// --- draining
// ---------------------------------------------------------------------------------------

__thread WaitHabit t_wait_habit{0, 0};

void drain_in_use() {
    if (fl_queue_on_worker()) {
        return;
    }
    fl_queue_drain(-1);
    if (!queue_state.always) {
        t_wait_habit.has_waited();
    }
    drop_put_aside();
    fl_queue_failure failure;
    if (C10_UNLIKELY(fl_queue_has_failed()) && fl_queue_take_failure(&failure)) {
        raise_kept(failure);
    }
}

void settle_queue() {
    drain_queue();
    if (queue_in_use()) {
        give_back_all();
    }
}

void drain_quietly() noexcept {
    if (queue_in_use() && !fl_queue_on_worker()) {
        fl_queue_drain(-1);
        drop_put_aside();
    }
}

void queue_shut_down() {
    if (queue_in_use()) {
        queue_state.is_on.store(false);
        fl_queue_shutdown(10000);
        drop_put_aside();
    }
}

// --- memory that others know
// -----------------------------------------------------------------------

namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// A weak reference keeps the object, not the memory, so that no other storage gets its address
// while the entry is there.
struct KnownStorage {
    WeakStorage storage;
    Known how;
};

std::shared_mutex known_lock;
std::unordered_map<const c10::StorageImpl *, KnownStorage> known; // Under the lock.
std::atomic<size_t> known_count{0};
size_t known_before_sweep = 64; // Under the lock.

void sweep_known() {
    for (auto entry = known.begin(); entry != known.end();) {
        entry = entry->second.storage.expired() ? known.erase(entry) : std::next(entry);
    }
    known_before_sweep = 64 + 2 * known.size();
}

} // namespace

void note_known(const c10::Storage &storage, Known how) {
    const std::unique_lock<std::shared_mutex> guard(known_lock);
    if (known.size() >= known_before_sweep) {
        sweep_known();
    }
    const auto [entry, is_new] =
        known.try_emplace(storage.unsafeGetStorageImpl(),
                          KnownStorage{WeakStorage(storage.getWeakStorageImpl()), how});
    if (!is_new && how == Known::kShared) {
        entry->second.how = how;
    }
    known_count.store(known.size());
}

void memory_is_known(const at::Tensor &tensor, Known how) {
    if (twin.present && tensor.device().type() == kFlagos && tensor.has_storage()) {
        note_known(tensor.storage(), how);
        drain_queue(); // After the entry: what is queued from now on has seen it.
    }
}

bool is_known(const c10::StorageImpl *storage, bool written) {
    if (C10_LIKELY(known_count.load(std::memory_order_relaxed) == 0)) {
        return false;
    }
    const std::shared_lock<std::shared_mutex> guard(known_lock);
    const auto entry = known.find(storage);
    return entry != known.end() && (written || entry->second.how == Known::kShared);
}

// --- the caller's thread
// -----------------------------------------------------------------------------

namespace {

// How the processor treats numbers too small for the usual form; a thread's own, on the host twin.
uint32_t float_mode_now() {
#if defined(__SSE__)
    constexpr uint32_t kExceptions = 0x3f; // Flags that operations raise, not a mode.
    return _mm_getcsr() & ~kExceptions;
#else
    return 0;
#endif
}

void set_float_mode(uint32_t mode) {
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
}

uint8_t autograd_now() {
    const c10::AutogradState &state = c10::AutogradState::get_tls_state();
    return static_cast<uint8_t>(
        state.get_grad_mode() | state.get_inference_mode() << 1 | state.get_fw_grad_mode() << 2 |
        state.get_multithreading_enabled() << 3 | state.get_view_replay_enabled() << 4);
}

void set_autograd(uint8_t bits) {
    c10::AutogradState &state = c10::AutogradState::get_tls_state();
    state.set_grad_mode(bits & 1);
    state.set_inference_mode(bits >> 1 & 1);
    state.set_fw_grad_mode(bits >> 2 & 1);
    state.set_multithreading_enabled(bits >> 3 & 1);
    state.set_view_replay_enabled(bits >> 4 & 1);
}

} // namespace

CallerState CallerState::now(c10::DeviceIndex device) {
    CallerState state{};
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    state.keys.set_included(keys.included_);
    state.keys.set_excluded(keys.excluded_);
    state.autograd = autograd_now();
    if (twin.is_host) {
        state.threads = at::get_num_threads();
        state.float_mode = float_mode_now();
    } else {
        state.stream = twin.guard->getStream(c10::Device(twin.type, device)).id();
    }
    return state;
}

void CallerState::install(c10::DeviceIndex device) const {
    const c10::impl::LocalDispatchKeySet own = c10::impl::tls_local_dispatch_key_set();
    if (own.included_ != keys.included() || own.excluded_ != keys.excluded()) {
        c10::impl::_force_tls_local_dispatch_key_set(c10::impl::LocalDispatchKeySet(keys));
    }
    if (autograd_now() != autograd) {
        set_autograd(autograd);
    }
    if (twin.is_host) {
        if (at::get_num_threads() != threads) {
            at::set_num_threads(threads);
        }
        if (float_mode_now() != float_mode) {
            set_float_mode(float_mode);
        }
        return;
    }
    static thread_local c10::StreamId current = -1;
    static thread_local bool is_set = false;
    if (!is_set || current != stream) {
        const c10::Device where(twin.type, device);
        const c10::Stream wanted(c10::Stream::UNSAFE, where, stream);
        twin.guard->setDevice(where);
        twin.guard->exchangeStream(wanted);
        if (!is_set) {
            // Setting the device that is the current one already does nothing, and libraries beside
            // the runtime then find no context in a new thread. Any question makes it current.
            (void)twin.guard->queryStream(wanted);
        }
        current = stream;
        is_set = true;
    }
}

// --- what a task held
// ---------------------------------------------------------------------------------

namespace {

struct Aside {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
    std::vector<at::Tensor> tensors;
};

// A plain pointer, so that it can still be used when this thread's destructors have run, as they
// have when the process exits; what is made then is never freed.
thread_local Aside *t_aside = nullptr;

struct AsideOwner {
    ~AsideOwner() {
        delete t_aside;
        t_aside = nullptr;
    }
};

Aside &aside() {
    if (C10_UNLIKELY(t_aside == nullptr)) {
        t_aside = new Aside;
        static thread_local bool has_owner = false;
        if (!has_owner) {
            has_owner = true;
            static thread_local AsideOwner owner;
            (void)owner;
        }
    }
    return *t_aside;
}

} // namespace

void put_aside(c10::intrusive_ptr<c10::StorageImpl> storage) {
    aside().storages.push_back(std::move(storage));
}

void put_aside(at::Tensor tensor) {
    aside().tensors.push_back(std::move(tensor));
}

void drop_put_aside() noexcept {
    free_what_is_late();
    Aside *const mine = t_aside;
    if (mine == nullptr) {
        return;
    }
    // One at a time and off the list first: dropping may run Python, which may come back here.
    while (!mine->storages.empty()) {
        const auto storage = std::move(mine->storages.back());
        mine->storages.pop_back();
    }
    while (!mine->tensors.empty()) {
        const auto tensor = std::move(mine->tensors.back());
        mine->tensors.pop_back();
    }
}

} // namespace fl_torch
