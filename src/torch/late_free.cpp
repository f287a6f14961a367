// late_free.cpp: see late_free.h. Knows when tasks have run and nothing of what they do.
#include "late_free.h"

#include "queue.h"
#include "twin.h"

#include "fl/queue.h"

#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

namespace fl_torch {

namespace {

// What may wait at any time, and the share of what is in use that may wait beyond that. Half of it
// is not given back before somebody asks, so that results can have it.
constexpr size_t kAlwaysWaits = 1 << 20;
constexpr size_t kShare = 64;
constexpr size_t kMostKept = 512; // Blocks.

// A larger block comes from the pool of large ones (c10's, ours and those made after them), which
// joins neighbours that are free and splits what is too large. One that is missing there has
// another one split in its place, and soon the pool is larger than it would be.
constexpr size_t kSmall = 1 << 20;

// Blocks that are this far from the last one are not looked at for a result.
constexpr size_t kLooks = 16;

constexpr c10::StreamId kNoStream = -1; // Of memory that is not for other results.

struct Block {
    size_t bytes;         // As asked for: what the twin has rounded it to is its own affair.
    c10::StreamId stream; // That it was taken for.
};

// The memory of one device. Everything but atomics is under the lock.
struct Memory {
    struct Freed {
        void *pointer; // Null where a result has it.
        Block block;
        uint64_t tasks; // Must have run before it goes back.
    };
    std::mutex lock;
    ska::flat_hash_map<void *, Block> blocks; // A deleter is told the pointer alone.
    std::deque<Freed> freed;                  // In the order in which they were freed.
    std::atomic<size_t> count{0};             // Of the latter.
    std::atomic<size_t> waits{0};             // Bytes of the latter.
    std::atomic<size_t> large{0};             // Those among them that are.
    std::atomic<size_t> in_use{0};            // Bytes that the caller has.
    std::atomic<uint64_t> first{0};           // The tasks of the first that was freed.

    // How much may wait when `wanted` bytes are taken. Without the lock an estimate.
    size_t most(size_t wanted) const {
        return std::max(kAlwaysWaits, (in_use.load(std::memory_order_relaxed) + wanted) / kShare);
    }
    bool keeps_enough() const {
        return waits.load(std::memory_order_relaxed) <= most(0) / 2 &&
               count.load(std::memory_order_relaxed) <= kMostKept;
    }
    bool lacks_large(size_t wanted) const {
        return wanted > kSmall && large.load(std::memory_order_relaxed) != 0;
    }
    void was_freed(void *pointer, const Block &block, uint64_t tasks) {
        if (freed.empty()) {
            first.store(tasks, std::memory_order_relaxed);
        }
        freed.push_back({pointer, block, tasks});
        waits.fetch_add(block.bytes, std::memory_order_relaxed);
        large.fetch_add(block.bytes > kSmall, std::memory_order_relaxed);
        count.store(freed.size(), std::memory_order_relaxed);
    }
    void leaves(const Block &block) {
        waits.fetch_sub(block.bytes, std::memory_order_relaxed);
        large.fetch_sub(block.bytes > kSmall, std::memory_order_relaxed);
        count.store(freed.size(), std::memory_order_relaxed);
    }
};

Memory &memory_of(c10::DeviceIndex device) {
    // Never destroyed: tensors may be freed after static destructors have run.
    static auto *const made = new std::array<Memory, FL_DEVICE_MAX>;
    return (*made)[static_cast<size_t>(device)];
}

// Of the allocator that the twin had when the first pointer came; those of one that the user put in
// its place later stay as they are.
std::atomic<c10::DeleterFnPtr> twin_deleter{nullptr};

void free_or_wait(void *pointer, c10::DeviceIndex device) {
    Memory &own = memory_of(device);
    {
        const std::lock_guard<std::mutex> guard(own.lock);
        const auto entry = own.blocks.find(pointer);
        const Block block = entry == own.blocks.end() ? Block{0, kNoStream} : entry->second;
        own.in_use.fetch_sub(block.bytes, std::memory_order_relaxed);
        if (fl_queue_has_work(device)) {
            own.was_freed(pointer, block, fl_queue_count_queued(device));
            return;
        }
        if (entry != own.blocks.end()) {
            own.blocks.erase(entry);
        }
    }
    twin_deleter.load(std::memory_order_relaxed)(pointer);
}

// One function a device.
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

c10::DeviceIndex current_device() {
    return twin.is_host ? c10::DeviceIndex(0) : twin.guard->getDevice().index();
}

c10::StreamId current_stream(c10::DeviceIndex device) {
    return twin.is_host ? 0 : twin.guard->getStream(c10::Device(twin.type, device)).id();
}

} // namespace

void watch_twin_memory() {
    c10::DeleterFnPtr none = nullptr;
    (void)twin_deleter.compare_exchange_strong(none, c10::GetAllocator(twin.type)->raw_deleter());
}

void watch_twin_memory_anew() {
    twin_deleter.store(c10::GetAllocator(twin.type)->raw_deleter());
}

// --- giving back
// -----------------------------------------------------------------------------------

namespace {

using Pointers = c10::SmallVector<void *, 16>;

// What no queued operator wants any more, all of it or beyond what is kept. Under the lock.
void collect_ready(Memory &own, c10::DeviceIndex device, bool all, Pointers &ready) {
    const uint64_t run = fl_queue_count_run(device);
    while (!own.freed.empty() && own.freed.front().tasks <= run && (all || !own.keeps_enough())) {
        const Memory::Freed front = own.freed.front();
        own.freed.pop_front();
        if (front.pointer != nullptr) {
            ready.push_back(front.pointer);
            own.blocks.erase(front.pointer);
            own.leaves(front.block);
        }
    }
    own.count.store(own.freed.size(), std::memory_order_relaxed);
    own.first.store(own.freed.empty() ? 0 : own.freed.front().tasks, std::memory_order_relaxed);
}

void give_back(bool all) noexcept {
    const fl_device devices = fl_queue_devices();
    for (fl_device i = 0; i < devices; i++) {
        const auto device = static_cast<c10::DeviceIndex>(i);
        Memory &own = memory_of(device);
        if (C10_LIKELY(!all &&
                       (own.keeps_enough() ||
                        fl_queue_count_run(device) < own.first.load(std::memory_order_relaxed)))) {
            continue;
        }
        Pointers ready;
        {
            const std::lock_guard<std::mutex> guard(own.lock);
            collect_ready(own, device, all, ready);
        }
        const c10::DeleterFnPtr free_block = twin_deleter.load(std::memory_order_relaxed);
        for (void *pointer : ready) {
            free_block(pointer);
        }
    }
}

} // namespace

void free_what_is_late() noexcept {
    give_back(/*all=*/false);
}

void give_back_all() noexcept {
    give_back(/*all=*/true);
}

// --- taking
// ----------------------------------------------------------------------------------------

namespace {

void free_late_on(c10::DataPtr &pointer, c10::DeviceIndex device, size_t bytes,
                  c10::StreamId stream) {
    const c10::DeleterFnPtr known = twin_deleter.load(std::memory_order_relaxed);
    if (known == nullptr || pointer.get() != pointer.get_context() ||
        !pointer.compare_exchange_deleter(known, deleters[static_cast<size_t>(device)])) {
        return;
    }
    Memory &own = memory_of(device);
    const Block block{bytes, stream};
    const std::lock_guard<std::mutex> guard(own.lock);
    // An old entry is that of a block whose deleter somebody has replaced.
    const auto [entry, is_new] = own.blocks.emplace(pointer.get(), block);
    own.in_use.fetch_add(block.bytes - (is_new ? 0 : entry->second.bytes),
                         std::memory_order_relaxed);
    entry->second = block;
}

// A block of this size that was freed on this stream, or nullptr.
void *find_freed(Memory &own, size_t bytes, c10::StreamId stream) {
    const std::lock_guard<std::mutex> guard(own.lock);
    const size_t looks = std::min(kLooks, own.freed.size());
    for (size_t i = 1; i <= looks; i++) {
        Memory::Freed &freed = own.freed[own.freed.size() - i];
        if (freed.block.bytes == bytes && freed.block.stream == stream &&
            freed.pointer != nullptr) {
            void *const pointer = std::exchange(freed.pointer, nullptr);
            const Block block = freed.block;
            while (!own.freed.empty() && own.freed.back().pointer == nullptr) {
                own.freed.pop_back();
            }
            own.leaves(block);
            own.in_use.fetch_add(bytes, std::memory_order_relaxed);
            return pointer;
        }
    }
    return nullptr;
}

// The tasks that have to run before little enough waits; 0: that is so.
uint64_t tasks_before_room(Memory &own, size_t wanted) {
    const std::lock_guard<std::mutex> guard(own.lock);
    const size_t most = own.most(wanted);
    size_t waits = own.waits.load(std::memory_order_relaxed);
    size_t large = own.lacks_large(wanted) ? own.large.load(std::memory_order_relaxed) : 0;
    uint64_t tasks = 0;
    for (auto freed = own.freed.begin(); (waits > most || large != 0) && freed != own.freed.end();
         ++freed) {
        if (freed->pointer != nullptr) {
            waits -= freed->block.bytes;
            large -= large != 0 && freed->block.bytes > kSmall;
            tasks = freed->tasks;
        }
    }
    return tasks;
}

} // namespace

void free_late(c10::DataPtr &pointer, c10::DeviceIndex device, size_t bytes) {
    free_late_on(pointer, device, bytes, kNoStream);
}

c10::DataPtr take_memory(size_t bytes, c10::Allocator &inner, MemoryFor what) {
    if (bytes == 0) {
        return inner.allocate(bytes);
    }
    const c10::DeviceIndex device = current_device();
    const c10::StreamId stream = current_stream(device);
    Memory &own = memory_of(device);
    if (what == MemoryFor::kQueuedResult && own.count.load(std::memory_order_relaxed) != 0) {
        if (void *const pointer = find_freed(own, bytes, stream)) {
            return c10::DataPtr(pointer, pointer, deleters[static_cast<size_t>(device)],
                                to_twin(c10::Device(kFlagos, device)));
        }
    }
    make_room(bytes);
    c10::DataPtr pointer;
    try {
        pointer = inner.allocate(bytes);
    } catch (const c10::Error &) {
        // What queued operators hold may be what is missing.
        drain_quietly();
        give_back_all();
        pointer = inner.allocate(bytes);
    }
    free_late_on(pointer, device, bytes, stream);
    return pointer;
}

void make_room(size_t wanted) noexcept {
    const fl_device count = fl_queue_devices();
    for (fl_device device = 0; device < count; device++) {
        Memory &own = memory_of(static_cast<c10::DeviceIndex>(device));
        const bool lacks_large = own.lacks_large(wanted);
        if (C10_LIKELY(!lacks_large &&
                       own.waits.load(std::memory_order_relaxed) <= own.most(wanted))) {
            continue;
        }
        give_back(/*all=*/lacks_large);
        if (const uint64_t tasks = tasks_before_room(own, wanted)) {
            fl_queue_wait_run(device, tasks);
            give_back(/*all=*/lacks_large);
        }
    }
}

void keep_from_results(const c10::DataPtr &pointer, c10::DeviceIndex device) {
    Memory &own = memory_of(device);
    const std::lock_guard<std::mutex> guard(own.lock);
    const auto entry = own.blocks.find(pointer.get());
    if (entry != own.blocks.end()) {
        entry->second.stream = kNoStream;
    }
}

// --- questions
// -------------------------------------------------------------------------------------

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

bool was_freed_at_once(const void *pointer, c10::DeviceIndex device) {
    Memory &own = memory_of(device);
    const uint64_t behind_this = fl_queue_count_run(device) + 1;
    const std::lock_guard<std::mutex> guard(own.lock);
    auto freed =
        std::lower_bound(own.freed.begin(), own.freed.end(), behind_this,
                         [](const Memory::Freed &a, uint64_t tasks) { return a.tasks < tasks; });
    for (; freed != own.freed.end() && freed->tasks == behind_this; ++freed) {
        if (freed->pointer == pointer) {
            return true;
        }
    }
    return false;
}

} // namespace fl_torch
