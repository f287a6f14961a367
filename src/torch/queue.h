// queue.h: the adapter's side of the launch queue: the switch, draining, and what a queued call
// needs of its caller's thread. The core runs the tasks; deferred.h makes them of operators.
//
// The rule that everything keeps: nothing reads, writes, moves or frees the memory of a flagos
// tensor, and nothing asks a device how far it is, while work that was queued before has not been
// launched. What is queued itself keeps it by the order of the queue; everything else drains.
#pragma once

#include "twin.h"

#include "fl/queue.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>

namespace fl_torch {

struct QueueState {
    std::atomic<bool> is_on{false};  // Operators may be queued.
    std::atomic<bool> in_use{false}; // Something may have been queued; never false again.
    bool always = false;             // Also for threads that wait after each operator; set once.
};
extern QueueState queue_state;

// Costs one load where the queue was never used.
inline bool queue_is_on() {
    return queue_state.is_on.load(std::memory_order_relaxed);
}

inline bool queue_in_use() {
    return queue_state.in_use.load(std::memory_order_relaxed);
}

// Read the option. Call once, after twin_choose and launch_choose.
void queue_choose();

// Switch it. Raises where this platform or LAUNCH_BLOCKING allows no queue.
void queue_set(bool on);

void drain_in_use();

// Wait until what was queued before has been launched, and raise the failure of a queued operator
// if there is one.
inline void drain_queue() {
    if (C10_UNLIKELY(queue_in_use())) {
        drain_in_use();
    }
}

// The same, and give back all memory that waited to be freed.
void settle_queue();

// Wait where no exception may leave; a failure is kept for the next call that may raise it.
void drain_quietly() noexcept;

// Drain and stop for good; Python is about to end.
void queue_shut_down();

// --- waits that come at once
// -----------------------------------------------------------------------

// How the calling thread has lately waited. Where it waits after every operator, as a loop around
// item() does, handing the operator to another thread only adds the way there and back: such a
// thread calls it itself, and queues again once it has called two without a wait between.
struct WaitHabit {
    static constexpr uint32_t kSure = 2;
    uint32_t calls; // Since the last wait: queued, or made in place of that.
    uint32_t alone; // How many waits in a row came after a single call, up to kSure.

    bool expects_wait() const {
        return calls == 0 && alone == kSure;
    }
    void has_waited() {
        if (calls != 0) {
            alone = calls > 1 ? 0 : alone + (alone < kSure ? 1 : 0);
            calls = 0;
        }
    }
};
extern __attribute__((tls_model("initial-exec"))) __thread WaitHabit t_wait_habit;

// --- memory that others know
// -----------------------------------------------------------------------

enum class Known {
    kAddress, // Somebody was told the address: nothing that writes to it is queued any more.
    kShared,  // A tensor or array of another library lies on it: nothing on it is queued any more.
};

// From now on somebody outside PyTorch's order may look at this memory. Drains.
void memory_is_known(const at::Tensor &tensor, Known how);

// The same without the drain, for the end of a call that has drained.
void note_known(const c10::Storage &storage, Known how);

// Whether an operand on this storage keeps its operator out of the queue.
bool is_known(const c10::StorageImpl *storage, bool written);

// --- the caller's thread
// -----------------------------------------------------------------------------

// What kernels read of the thread that calls them.
struct CallerState {
    c10::impl::PODLocalDispatchKeySet keys;
    c10::StreamId stream;
    int threads;
    uint32_t float_mode;
    uint8_t autograd; // The switches of c10::AutogradState, one bit each.

    // Of the calling thread, for work on its current stream of a device.
    static CallerState now(c10::DeviceIndex device);
    // Make it the calling thread's, which is a worker.
    void install(c10::DeviceIndex device) const;
};

// Keep the exception of the catch block that calls this, and answer the status for the core.
fl_status keep_exception(const char *name);

// Things that a retired task held. They are dropped by the thread that retired it, outside every
// lock, because dropping may run Python.
void put_aside(c10::intrusive_ptr<c10::StorageImpl> storage);
void put_aside(at::Tensor tensor);
void drop_put_aside() noexcept;

} // namespace fl_torch
