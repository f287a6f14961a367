// late_free.cpp: see late_free.h. Knows when tasks have run and nothing of what they do.
#include "late_free.h"

#include "queue.h"
#include "twin.h"

#include "fl/queue.h"

#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

namespace fl_torch {

namespace {

// Blocks of one device in the order in which they were freed.
struct Waiting {
    struct Block {
        void *pointer;
        uint64_t tasks; // Must have run before.
    };
    std::mutex lock;
    std::deque<Block> blocks; // Under the lock.
    std::atomic<size_t> count{0};
};

std::array<Waiting, FL_DEVICE_MAX> &waiting() {
    // Never destroyed: tensors may be freed after static destructors have run.
    static auto *const made = new std::array<Waiting, FL_DEVICE_MAX>;
    return *made;
}

// Of the allocator that the twin had when the first pointer came; those of one that the user put in
// its place later stay as they are.
std::atomic<c10::DeleterFnPtr> twin_deleter{nullptr};

void free_or_wait(void *pointer, c10::DeviceIndex device) {
    if (fl_queue_has_work(device)) {
        Waiting &own = waiting()[static_cast<size_t>(device)];
        const std::lock_guard<std::mutex> guard(own.lock);
        own.blocks.push_back({pointer, fl_queue_count_queued(device)});
        own.count.store(own.blocks.size(), std::memory_order_relaxed);
        return;
    }
    twin_deleter.load(std::memory_order_relaxed)(pointer);
}

// A deleter is told the pointer alone: one function a device.
template <size_t device>
void delete_of(void *pointer) {
    free_or_wait(pointer, static_cast<c10::DeviceIndex>(device));
}

template <size_t... device>
constexpr std::array<c10::DeleterFnPtr, sizeof...(device)>
make_deleters(std::index_sequence<device...>) {
    return {&delete_of<device>...};
}

constexpr auto deleters = make_deleters(std::make_index_sequence<FL_DEVICE_MAX>());

} // namespace

void watch_twin_memory() {
    c10::DeleterFnPtr none = nullptr;
    (void)twin_deleter.compare_exchange_strong(none, c10::GetAllocator(twin.type)->raw_deleter());
}

void free_late(c10::DataPtr &pointer, c10::DeviceIndex device) {
    const c10::DeleterFnPtr known = twin_deleter.load(std::memory_order_relaxed);
    if (known != nullptr && pointer.get() == pointer.get_context()) {
        (void)pointer.compare_exchange_deleter(known, deleters[static_cast<size_t>(device)]);
    }
}

bool is_freed_late(const c10::DataPtr &pointer, c10::DeviceIndex device) {
    return pointer.get_deleter() == deleters[static_cast<size_t>(device)] ||
           pointer.get() == nullptr;
}

bool is_twin_made(const c10::DataPtr &pointer, c10::DeviceIndex device) {
    return is_freed_late(pointer, device) ||
           (pointer.get() == pointer.get_context() &&
            pointer.get_deleter() == twin_deleter.load(std::memory_order_relaxed));
}

AsTwinMade::AsTwinMade(const c10::DataPtr &pointer, c10::Device device)
    : pointer_(pointer.get(), pointer.get_context(), pointer.get_deleter(), device) {
    for (const c10::DeleterFnPtr deleter : deleters) {
        if (pointer_.compare_exchange_deleter(deleter,
                                              twin_deleter.load(std::memory_order_relaxed))) {
            break;
        }
    }
}

void free_what_is_late() noexcept {
    const fl_device devices = fl_queue_devices();
    for (fl_device device = 0; device < devices; device++) {
        Waiting &own = waiting()[static_cast<size_t>(device)];
        if (C10_LIKELY(own.count.load(std::memory_order_relaxed) == 0)) {
            continue;
        }
        c10::SmallVector<void *, 16> ready;
        {
            const std::lock_guard<std::mutex> guard(own.lock);
            const uint64_t run = fl_queue_count_run(device);
            while (!own.blocks.empty() && own.blocks.front().tasks <= run) {
                ready.push_back(own.blocks.front().pointer);
                own.blocks.pop_front();
            }
            own.count.store(own.blocks.size(), std::memory_order_relaxed);
        }
        const c10::DeleterFnPtr free_block = twin_deleter.load(std::memory_order_relaxed);
        for (void *pointer : ready) {
            free_block(pointer);
        }
    }
}

} // namespace fl_torch
