// late_free.cpp: see late_free.h. Knows when tasks have run and nothing of what they do.
#include "late_free.h"

#include "queue.h"
#include "twin.h"

#include "fl/queue.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fl_torch {

namespace {

// Blocks of at least this size are counted. Smaller ones are at most as many as an operator may
// free, times the slots of the queue, and not worth the time.
constexpr size_t kCounted = 64 << 10;

// What may wait at any time, and the share of what is in use that may wait beyond that.
constexpr size_t kAlwaysWaits = 1 << 20;
constexpr size_t kShare = 64;

// Blocks of one device in the order in which they were freed.
struct Waiting {
    struct Block {
        void *pointer;
        size_t bytes;   // 0 where it is not counted.
        uint64_t tasks; // Must have run before.
    };
    std::mutex lock;
    std::deque<Block> blocks;                 // Under the lock, as is what follows but atomics.
    std::unordered_map<void *, size_t> sizes; // Of counted blocks in use: a deleter is told none.
    std::atomic<size_t> count{0};
    std::atomic<size_t> bytes{0};  // Of counted blocks that wait.
    std::atomic<size_t> in_use{0}; // Of counted blocks that the caller has.

    // Without the lock an estimate.
    bool has_too_much(size_t wanted) const {
        const size_t waits = bytes.load(std::memory_order_relaxed);
        return waits > kAlwaysWaits &&
               waits > (in_use.load(std::memory_order_relaxed) + wanted) / kShare;
    }
};

std::array<Waiting, FL_DEVICE_MAX> &waiting() {
    // Never destroyed: tensors may be freed after static destructors have run.
    static auto *const made = new std::array<Waiting, FL_DEVICE_MAX>;
    return *made;
}

// Of the allocator that the twin had when the first pointer came; those of one that the user put in
// its place later stay as they are.
std::atomic<c10::DeleterFnPtr> twin_deleter{nullptr};

// Under the lock: what the caller frees is no longer in use.
size_t take_size(Waiting &own, void *pointer) {
    const auto entry = own.sizes.find(pointer);
    if (entry == own.sizes.end()) {
        return 0;
    }
    const size_t bytes = entry->second;
    own.sizes.erase(entry);
    own.in_use.fetch_sub(bytes, std::memory_order_relaxed);
    return bytes;
}

template <bool counted>
void free_or_wait(void *pointer, c10::DeviceIndex device) {
    const bool waits = fl_queue_has_work(device);
    if (counted || waits) {
        Waiting &own = waiting()[static_cast<size_t>(device)];
        const std::lock_guard<std::mutex> guard(own.lock);
        const size_t bytes = counted ? take_size(own, pointer) : 0;
        if (waits) {
            own.blocks.push_back({pointer, bytes, fl_queue_count_queued(device)});
            own.count.store(own.blocks.size(), std::memory_order_relaxed);
            own.bytes.fetch_add(bytes, std::memory_order_relaxed);
            return;
        }
    }
    twin_deleter.load(std::memory_order_relaxed)(pointer);
}

// A deleter is told the pointer alone: two functions a device.
template <size_t device, bool counted>
void delete_of(void *pointer) {
    free_or_wait<counted>(pointer, static_cast<c10::DeviceIndex>(device));
}

template <bool counted, size_t... device>
constexpr std::array<c10::DeleterFnPtr, sizeof...(device)>
make_deleters(std::index_sequence<device...>) {
    return {&delete_of<device, counted>...};
}

constexpr auto devices = std::make_index_sequence<FL_DEVICE_MAX>();
constexpr auto deleters = make_deleters<false>(devices);
constexpr auto counting_deleters = make_deleters<true>(devices);

} // namespace

void watch_twin_memory() {
    c10::DeleterFnPtr none = nullptr;
    (void)twin_deleter.compare_exchange_strong(none, c10::GetAllocator(twin.type)->raw_deleter());
}

void free_late(c10::DataPtr &pointer, c10::DeviceIndex device, size_t bytes) {
    const c10::DeleterFnPtr known = twin_deleter.load(std::memory_order_relaxed);
    const auto index = static_cast<size_t>(device);
    if (known == nullptr || pointer.get() != pointer.get_context()) {
        return;
    }
    if (C10_LIKELY(bytes < kCounted)) {
        (void)pointer.compare_exchange_deleter(known, deleters[index]);
    } else if (pointer.compare_exchange_deleter(known, counting_deleters[index])) {
        Waiting &own = waiting()[index];
        const std::lock_guard<std::mutex> guard(own.lock);
        (void)take_size(own, pointer.get()); // Of a block whose deleter somebody has replaced.
        own.sizes.emplace(pointer.get(), bytes);
        own.in_use.fetch_add(bytes, std::memory_order_relaxed);
    }
}

bool is_freed_late(const c10::DataPtr &pointer, c10::DeviceIndex device) {
    const c10::DeleterFnPtr deleter = pointer.get_deleter();
    const auto index = static_cast<size_t>(device);
    return deleter == deleters[index] || deleter == counting_deleters[index] ||
           pointer.get() == nullptr;
}

bool is_twin_made(const c10::DataPtr &pointer, c10::DeviceIndex device) {
    return is_freed_late(pointer, device) ||
           (pointer.get() == pointer.get_context() &&
            pointer.get_deleter() == twin_deleter.load(std::memory_order_relaxed));
}

AsTwinMade::AsTwinMade(const c10::DataPtr &pointer, c10::Device device)
    : pointer_(pointer.get(), pointer.get_context(), pointer.get_deleter(), device) {
    const c10::DeleterFnPtr own = twin_deleter.load(std::memory_order_relaxed);
    for (size_t index = 0; index < deleters.size(); index++) {
        if (pointer_.compare_exchange_deleter(deleters[index], own) ||
            pointer_.compare_exchange_deleter(counting_deleters[index], own)) {
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
                own.bytes.fetch_sub(own.blocks.front().bytes, std::memory_order_relaxed);
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

bool was_freed_at_once(const void *pointer, c10::DeviceIndex device) {
    Waiting &own = waiting()[static_cast<size_t>(device)];
    const uint64_t behind_this = fl_queue_count_run(device) + 1;
    const std::lock_guard<std::mutex> guard(own.lock);
    for (const Waiting::Block &block : own.blocks) {
        if (block.tasks > behind_this) {
            break;
        }
        if (block.pointer == pointer) {
            return block.tasks == behind_this;
        }
    }
    return false;
}

namespace {

// The tasks that have to run before little enough waits; 0: that is so.
uint64_t tasks_before_room(Waiting &own, size_t wanted) {
    const std::lock_guard<std::mutex> guard(own.lock);
    uint64_t tasks = 0;
    const size_t most =
        std::max(kAlwaysWaits, (own.in_use.load(std::memory_order_relaxed) + wanted) / kShare);
    size_t waits = own.bytes.load(std::memory_order_relaxed);
    for (auto block = own.blocks.begin(); waits > most && block != own.blocks.end(); ++block) {
        waits -= block->bytes;
        tasks = block->tasks;
    }
    return tasks;
}

} // namespace

void make_room(size_t wanted) noexcept {
    const fl_device count = fl_queue_devices();
    for (fl_device device = 0; device < count; device++) {
        Waiting &own = waiting()[static_cast<size_t>(device)];
        if (C10_LIKELY(!own.has_too_much(wanted))) {
            continue;
        }
        if (const uint64_t tasks = tasks_before_room(own, wanted)) {
            fl_queue_wait_run(device, tasks);
            free_what_is_late();
        }
    }
}

} // namespace fl_torch
