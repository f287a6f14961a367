// allocator.cpp: c10::DeviceAllocator for flagos.
//
// With a twin the memory is the twin's, from one pool, with the twin's own deleters: DataPtrs pass
// through and only their device label changes. Without one it is the core's. The twin's allocator
// is looked up on each call, because a user may exchange it. Nothing here takes the GIL.
#include "allocator.h"

#include "check.h"
#include "core_copy.h"
#include "late_free.h"
#include "queue.h"
#include "twin.h"

#include "fl/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fl_torch {

namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::Stat;

fl_device checked(c10::DeviceIndex index) {
    const fl_device device = index < 0 ? fl_device_current() : index;
    check(fl_device_check(device));
    return device;
}

struct TwinMemory final : c10::DeviceAllocator {
    static c10::Allocator &inner() {
        return *c10::GetAllocator(twin.type);
    }
    // Statistics: the host's allocator keeps none, and none are invented.
    static c10::DeviceAllocator &counted(const char *what) {
        settle_queue(); // Memory that queued operators hold is about to be free.
        TORCH_CHECK_NOT_IMPLEMENTED(!twin.is_host, what,
                                    " is not served on platform 'cpu': the host's allocator keeps "
                                    "no statistics and no cache");
        return *c10::getDeviceAllocator(twin.type);
    }
    static c10::DataPtr allocate_inner(size_t bytes) {
        return C10_LIKELY(!queue_in_use()) ? inner().allocate(bytes)
                                           : take_memory(bytes, inner(), MemoryFor::kAnything);
    }
    c10::DataPtr allocate(size_t bytes) override {
        c10::DataPtr pointer = allocate_inner(bytes);
        pointer.unsafe_set_device(to_flagos(pointer.device()));
        return pointer;
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return inner().raw_deleter();
    }
    bool is_simple_data_ptr(const c10::DataPtr &pointer) const override {
        return inner().is_simple_data_ptr(pointer);
    }
    void copy_data(void *destination, const void *source, size_t bytes) const override {
        inner().copy_data(destination, source, bytes);
    }
    bool initialized() override {
        return twin.is_host || counted("initialized").initialized();
    }
    void emptyCache(c10::MempoolId_t pool) override {
        if (!twin.is_host) {
            counted("empty_cache").emptyCache(pool);
        } // The host's allocator has no cache: there is nothing to give back.
    }
    void recordStream(const c10::DataPtr &pointer, c10::Stream stream) override {
        c10::impl::getDeviceGuardImpl(kFlagos)->recordDataPtrOnStream(pointer, stream);
    }
    DeviceStats getDeviceStats(c10::DeviceIndex index) override {
        return counted("memory_stats").getDeviceStats(index);
    }
    void resetAccumulatedStats(c10::DeviceIndex index) override {
        counted("reset_accumulated_memory_stats").resetAccumulatedStats(index);
    }
    void resetPeakStats(c10::DeviceIndex index) override {
        counted("reset_peak_memory_stats").resetPeakStats(index);
    }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
        if (!twin.is_host) {
            return counted("mem_get_info").getMemoryInfo(index);
        }
        uint64_t free_bytes = 0, total_bytes = 0;
        check(fl_device_memory_info(checked(index), &free_bytes, &total_bytes));
        return {free_bytes, total_bytes};
    }
};

Stat to_c10(const fl_stat &from) {
    Stat to;
    to.current = from.current;
    to.peak = from.peak;
    to.allocated = from.allocated;
    to.freed = from.freed;
    return to;
}

void to_c10(const fl_stat (&from)[FL_POOL_COUNT], c10::CachingAllocator::StatArray &to) {
    for (size_t pool = 0; pool < FL_POOL_COUNT; pool++) {
        to[pool] = to_c10(from[pool]);
    }
}

// Makes the results of operators that are about to be queued, and nothing else.
struct ResultMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        return allocate_result(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return TwinMemory::inner().raw_deleter();
    }
    void copy_data(void *destination, const void *source, size_t bytes) const override {
        TwinMemory::inner().copy_data(destination, source, bytes);
    }
};

// Tells the profiler of a block that begins or ends to be used, as CUDA's allocator does.
void report_block(const fl_pointer_info &block, int64_t bytes) {
    fl_memory_stats stats;
    if (block.kind == FL_POINTER_DEVICE && fl_memory_get_stats(block.device, &stats) == FL_OK) {
        c10::reportMemoryUsageToProfiler(
            block.base, bytes, static_cast<size_t>(stats.allocated_bytes[FL_POOL_ALL].current),
            static_cast<size_t>(stats.reserved_bytes[FL_POOL_ALL].current),
            c10::Device(kFlagos, static_cast<c10::DeviceIndex>(block.device)));
    }
}

struct CoreMemory final : c10::DeviceAllocator {
    static void free_block(void *pointer) {
        if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
            fl_memory_free(pointer);
            return;
        }
        fl_pointer_info block;
        fl_pointer_lookup(pointer, &block);
        fl_memory_free(pointer);
        report_block(block, -static_cast<int64_t>(block.size));
    }
    c10::DataPtr allocate(size_t bytes) override {
        const fl_device device = fl_device_current();
        void *pointer = nullptr;
        check(fl_memory_alloc(device, bytes, fl_stream_current(device), &pointer));
        if (C10_UNLIKELY(c10::memoryProfilingEnabled() && pointer != nullptr)) {
            fl_pointer_info block;
            fl_pointer_lookup(pointer, &block);
            report_block(block, static_cast<int64_t>(block.size));
        }
        return c10::DataPtr(pointer, pointer, &free_block,
                            c10::Device(kFlagos, static_cast<c10::DeviceIndex>(device)));
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return &free_block;
    }
    void copy_data(void *destination, const void *source, size_t bytes) const override {
        core_copy_bytes(destination, source, bytes);
    }
    bool initialized() override {
        return fl_device_is_initialized();
    }
    void emptyCache(c10::MempoolId_t) override {
        check(fl_memory_empty_cache(-1));
    }
    void recordStream(const c10::DataPtr &pointer, c10::Stream stream) override {
        if (pointer.get() != nullptr) {
            check(fl_memory_record_stream(pointer.get(), stream.id()));
        }
    }
    DeviceStats getDeviceStats(c10::DeviceIndex index) override {
        fl_memory_stats from;
        check(fl_memory_get_stats(checked(index), &from));
        DeviceStats to;
        to_c10(from.allocation, to.allocation);
        to_c10(from.segment, to.segment);
        to_c10(from.active, to.active);
        to_c10(from.inactive_split, to.inactive_split);
        to_c10(from.allocated_bytes, to.allocated_bytes);
        to_c10(from.reserved_bytes, to.reserved_bytes);
        to_c10(from.active_bytes, to.active_bytes);
        to_c10(from.inactive_split_bytes, to.inactive_split_bytes);
        to_c10(from.requested_bytes, to.requested_bytes);
        to.num_alloc_retries = from.num_alloc_retries;
        to.num_ooms = from.num_ooms;
        to.num_sync_all_streams = from.num_sync_all_streams;
        to.num_device_alloc = from.num_device_alloc;
        to.num_device_free = from.num_device_free;
        to.max_split_size = from.max_split_size;
        to.oversize_allocations = to_c10(from.oversize_allocations);
        to.oversize_segments = to_c10(from.oversize_segments);
        return to;
    }
    void resetAccumulatedStats(c10::DeviceIndex index) override {
        check(fl_memory_reset_accumulated_stats(checked(index)));
    }
    void resetPeakStats(c10::DeviceIndex index) override {
        check(fl_memory_reset_peak_stats(checked(index)));
    }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
        uint64_t free_bytes = 0, total_bytes = 0;
        check(fl_device_memory_info(checked(index), &free_bytes, &total_bytes));
        return {free_bytes, total_bytes};
    }
};

} // namespace

c10::Allocator &flagos_allocator() {
    // Never destroyed: tensors may be freed after static destructors have run.
    static c10::Allocator *const allocator =
        twin.present ? static_cast<c10::Allocator *>(new TwinMemory) : new CoreMemory;
    return *allocator;
}

c10::DataPtr allocate_result(size_t bytes) {
    c10::DataPtr pointer = take_memory(bytes, TwinMemory::inner(), MemoryFor::kQueuedResult);
    pointer.unsafe_set_device(to_flagos(pointer.device()));
    return pointer;
}

c10::Allocator &result_allocator() {
    static auto *const allocator = new ResultMemory; // Never destroyed either.
    return *allocator;
}

void register_allocator() {
    c10::SetAllocator(kFlagos, &flagos_allocator());
}

} // namespace fl_torch
