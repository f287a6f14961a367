// allocator.cpp: PyTorch's CUDA allocator with fast bins in front.
//
// Taking a block of PyTorch's allocator and giving it back are a tenth of what a small operator
// asks of the host. Blocks that were freed wait in bins (fastbins.h) for the next request of their
// size on their stream; everything else is PyTorch's as before: its pool, its settings, its
// snapshots, its messages. Nothing is kept while anybody looks closer than at statistics: while a
// graph is captured or a pool is used, while history is recorded or allocations are traced.
#include "fastbins.h"

#include "fl/debug.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/env.h>
#include <torch/library.h>

#include <mutex>

namespace fl_torch {

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::cuda::CUDAStream;

constexpr StatType kPools[FL__POOLS] = {StatType::AGGREGATE, StatType::SMALL_POOL,
                                        StatType::LARGE_POOL};

// PyTorch's names for the sums of fastbins.h.
StatArray &array_of(DeviceStats &stats, int sum) {
    return sum == FL__SUM_BLOCKS  ? stats.allocation
           : sum == FL__SUM_BYTES ? stats.allocated_bytes
                                  : stats.requested_bytes;
}

void sums_of(DeviceStats &stats, int64_t Stat::*field, fl__fastbins_sums &out) {
    for (int pool = 0; pool < FL__POOLS; pool++) {
        for (int sum = 0; sum < FL__SUMS; sum++) {
            out[pool][sum] = array_of(stats, sum)[static_cast<size_t>(kPools[pool])].*field;
        }
    }
}

// Streams are known to the bins by c10's number, which costs nothing to find.
uint64_t key_of(CUDAStream stream) {
    return static_cast<uint64_t>(stream.id());
}
constexpr uint64_t kNoStream = ~uint64_t{0};

DeviceIndex current_device() {
    DeviceIndex device = 0;
    const cudaError_t error = c10::cuda::GetDevice(&device);
    if (C10_UNLIKELY(error != cudaSuccess)) {
        C10_CUDA_CHECK(error); // A call, so that it is not made each time.
    }
    return device;
}

struct FastAllocator;
struct GiveBack;
FastAllocator *installed; // Never destroyed: memory may be freed after static destructors have run.

void free_block(void *pointer);

struct FastAllocator final : CUDAAllocator {
    FastAllocator(CUDAAllocator &behind, fl__fastbins &bins, int devices)
        : behind(behind), bins(bins), inner_deleter(behind.raw_deleter()), devices(devices) {
        for (DeviceIndex device = 0; device < devices; device++) {
            DeviceStats stats = behind.getDeviceStats(device);
            fl__fastbins_sums current, peak;
            sums_of(stats, &Stat::current, current);
            sums_of(stats, &Stat::peak, peak);
            fl__fastbins_begin(&bins, device, current, peak);
        }
    }

    // --- taking and giving ---------------------------------------------------------------------

    DataPtr allocate(size_t bytes) override {
        const DeviceIndex device = current_device();
        const uint64_t stream = key_of(c10::cuda::getCurrentCUDAStream(device));
        const bool is_watched = watched();
        bool large_wait = true;
        if (C10_LIKELY(bytes != 0 && !is_watched)) {
            if (void *const block = fl__fastbins_take(&bins, device, stream, bytes, &large_wait)) {
                return DataPtr(block, block, &free_block,
                               c10::Device(c10::DeviceType::CUDA, device));
            }
        }
        give_back_before(device, bytes, is_watched, large_wait);
        return allocate_behind(device, stream, bytes);
    }

    // `free_behind` is how the allocator behind frees it.
    template <class Free>
    void give(void *pointer, const Free &free_behind) {
        int device = 0;
        const bool may_keep = !watched();
        const fl__fastbins_answer answer = fl__fastbins_give(&bins, pointer, may_keep, &device);
        if (C10_LIKELY(answer == FL__FASTBINS_KEPT)) {
            return;
        }
        TORCH_CHECK(answer != FL__FASTBINS_FREED, "invalid device pointer: ", pointer);
        free_behind(pointer);
        if (answer == FL__FASTBINS_DRAIN) {
            drain(device);
        } else if (C10_UNLIKELY(answer == FL__FASTBINS_UNKNOWN)) {
            for (DeviceIndex any = 0; any < devices; any++) {
                observe(any);
            }
        }
    }
    // The deleter of what allocate() gave: a block of the cache also while caching is off.
    void give(void *pointer) {
        give(pointer, inner_deleter);
    }

    c10::DeleterFnPtr raw_deleter() const override {
        return &free_block;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        behind.copy_data(to, from, bytes);
    }
    void *raw_alloc(size_t bytes) override {
        const DeviceIndex device = current_device();
        return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(device).stream());
    }
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
        const DeviceIndex device = current_device();
        const CUDAStream current = c10::cuda::getCurrentCUDAStream(device);
        give_back_before(device, bytes, watched(), /*large_wait=*/true);
        void *const pointer = behind.raw_alloc_with_stream(bytes, stream);
        enter(device, key_of(current), bytes, pointer);
        if (stream != current.stream()) {
            fl__fastbins_record(&bins, pointer, kNoStream); // Its number is not known.
        }
        return pointer;
    }
    void raw_delete(void *pointer) override {
        if (pointer != nullptr) {
            give(pointer, [&](void *known) { behind.raw_delete(known); });
        }
    }

    void recordStream(const DataPtr &pointer, CUDAStream stream) override {
        if (pointer.get_deleter() != &free_block) {
            behind.recordStream(pointer, stream);
            return;
        }
        fl__fastbins_record(&bins, pointer.get(), key_of(stream));
        // As the allocator behind knows it; without a context nothing is freed.
        const DataPtr known(pointer.get(), nullptr, inner_deleter, pointer.device());
        behind.recordStream(known, stream);
    }

    // --- statistics ----------------------------------------------------------------------------

    DeviceStats getDeviceStats(DeviceIndex device) override {
        DeviceStats stats = behind.getDeviceStats(device);
        const fl__fastbins_stats ours = observed(device, stats);
        // Blocks that wait for other streams are active, and not allocated, in both.
        const bool all_active = same_peaks(stats.active, stats.allocation) &&
                                same_peaks(stats.active_bytes, stats.allocated_bytes);
        for (int pool = 0; pool < FL__POOLS; pool++) {
            const auto index = static_cast<size_t>(kPools[pool]);
            for (int sum = 0; sum < FL__SUMS; sum++) {
                Stat &stat = array_of(stats, sum)[index];
                const int64_t more = sum == FL__SUM_REQUESTED ? ours.requested_more[pool] : 0;
                const int64_t base = stat.current - (stat.allocated - stat.freed) + more;
                stat.current = ours.current[pool][sum];
                stat.peak = ours.peak[pool][sum];
                stat.allocated += ours.hits[pool][sum];
                stat.freed = stat.allocated - (stat.current - base);
            }
            for (int sum : {FL__SUM_BLOCKS, FL__SUM_BYTES}) {
                Stat &stat = (sum == FL__SUM_BLOCKS ? stats.active : stats.active_bytes)[index];
                stat.current -= ours.kept[pool][sum];
                stat.allocated += ours.hits[pool][sum];
                stat.freed += ours.hits[pool][sum] + ours.kept[pool][sum];
                if (all_active) {
                    stat.peak = ours.peak[pool][sum];
                }
            }
        }
        return stats;
    }
    void resetAccumulatedStats(DeviceIndex device) override {
        drain(device);
        behind.resetAccumulatedStats(device); // Raises where there is no such device.
        fl__fastbins_reset_hits(&bins, device);
    }
    void resetPeakStats(DeviceIndex device) override {
        observe(device);
        behind.resetPeakStats(device);
        fl__fastbins_reset_peaks(&bins, device);
    }

    // --- what looks closer, and finds nothing kept -----------------------------------------------

    void emptyCache(c10::MempoolId_t pool) override {
        drain_all();
        behind.emptyCache(pool);
    }
    void cacheInfo(DeviceIndex device, size_t *largest) override {
        drain(device);
        behind.cacheInfo(device, largest);
    }
    SnapshotInfo snapshot(c10::MempoolId_t pool, bool with_traces) override {
        drain_all();
        return behind.snapshot(pool, with_traces);
    }
    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
        drain(device);
        return behind.getExpandableSegmentSizes(device);
    }
    void beginAllocateToPool(DeviceIndex device, c10::MempoolId_t pool,
                             std::function<bool(cudaStream_t)> filter) override {
        pause(device);
        try {
            behind.beginAllocateToPool(device, pool, std::move(filter));
        } catch (...) {
            resume(device);
            throw;
        }
    }
    void endAllocateToPool(DeviceIndex device, c10::MempoolId_t pool) override {
        behind.endAllocateToPool(device, pool);
        drain(device); // Of a pool that was in use when the bins were put here.
        resume(device);
    }
    void recordHistory(bool enabled, CreateContextFn context, size_t entries, RecordContext when,
                       bool clear, const std::vector<std::string> &skipped) override {
        switch_all(history_, enabled);
        behind.recordHistory(enabled, context, entries, when, clear, skipped);
    }
    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
        switch_all(traced_, true); // There is no way to take a tracker off.
        behind.attachAllocatorTraceTracker(std::move(tracker));
    }
    void enable(bool value) override {
        switch_all(uncached_, !value);
        behind.enable(value);
    }
    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device,
                                                       c10::MempoolId_t id) override {
        drain(device);
        return behind.getCheckpointState(device, id);
    }
    CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                           std::shared_ptr<AllocatorState> state) override {
        drain(device);
        CheckpointDelta delta = behind.setCheckpointPoolState(device, std::move(state));
        for (DataPtr &pointer : delta.dataptrs_allocd) {
            (void)pointer.compare_exchange_deleter(inner_deleter, &free_block);
        }
        return delta;
    }

    // --- what passes through
    // -----------------------------------------------------------------------

    void init(int count) override {
        behind.init(count);
    }
    bool initialized() override {
        return behind.initialized();
    }
    double getMemoryFraction(DeviceIndex device) override {
        return behind.getMemoryFraction(device);
    }
    void setMemoryFraction(double fraction, DeviceIndex device) override {
        behind.setMemoryFraction(fraction, device);
    }
    bool isEnabled() const override {
        return behind.isEnabled();
    }
    void *getBaseAllocation(void *pointer, size_t *bytes) override {
        return behind.getBaseAllocation(pointer, bytes);
    }
    void releasePool(DeviceIndex device, c10::MempoolId_t pool) override {
        behind.releasePool(device, pool);
    }
    int getPoolUseCount(DeviceIndex device, c10::MempoolId_t pool) override {
        return behind.getPoolUseCount(device, pool);
    }
    void createOrIncrefPool(DeviceIndex device, c10::MempoolId_t pool,
                            std::shared_ptr<CUDAAllocator> allocator) override {
        behind.createOrIncrefPool(device, pool, std::move(allocator));
    }
    void setUseOnOOM(DeviceIndex device, c10::MempoolId_t pool, bool use) override {
        behind.setUseOnOOM(device, pool, use);
    }
    void setNoSplit(DeviceIndex device, c10::MempoolId_t pool) override {
        behind.setNoSplit(device, pool);
    }
    bool checkPoolLiveAllocations(DeviceIndex device, c10::MempoolId_t pool,
                                  const std::unordered_set<void *> &expected) override {
        return behind.checkPoolLiveAllocations(device, pool, expected);
    }
    ShareableHandle shareIpcHandle(void *pointer) override {
        return behind.shareIpcHandle(pointer);
    }
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
        return behind.getIpcDevPtr(std::move(handle));
    }
    bool isHistoryEnabled() override {
        return behind.isHistoryEnabled();
    }
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &pairs) override {
        behind.recordAnnotation(pairs);
    }
    void pushCompileContext(std::string &context) override {
        behind.pushCompileContext(context);
    }
    void popCompileContext() override {
        behind.popCompileContext();
    }
    void setUserMetadata(const std::string &text) override {
        behind.setUserMetadata(text);
    }
    std::string getUserMetadata() override {
        return behind.getUserMetadata();
    }
    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
        behind.attachOutOfMemoryObserver(std::move(observer));
    }
    void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
        behind.enablePeerAccess(device, other);
    }
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool peers) override {
        return behind.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
    }
    std::string name() override {
        return behind.name();
    }
    std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
        return behind.getMemoryInfo(device);
    }

  private:
    friend struct GiveBack;

    // Whether the profiler or a sanitizer wants to hear of each block.
    static bool watched() {
        return c10::impl::GPUTrace::get_trace() != nullptr || c10::memoryProfilingEnabled();
    }

    // Whether the user's settings make blocks larger than fastbins.h rounds them.
    static bool rounds_otherwise(size_t bytes) {
        return c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions(bytes) >
               1;
    }

    // What the allocator behind is to have when it is asked for so many bytes.
    void give_back_before(DeviceIndex device, size_t bytes, bool is_watched, bool large_wait) {
        if (C10_UNLIKELY(is_watched)) {
            drain(device); // What has been freed is not to be reported, nor to be freed, later.
        } else if (large_wait && bytes > FL__FASTBINS_SMALL) {
            drain(device, FL__POOL_LARGE); // Large blocks are split and joined as without us.
        }
    }

    DataPtr allocate_behind(DeviceIndex device, uint64_t stream, size_t bytes) {
        DataPtr taken = behind.allocate(bytes);
        // Without a cache the deleter is another, and the block is nothing to us.
        if (taken.compare_exchange_deleter(inner_deleter, &free_block)) {
            enter(device, stream, bytes, taken.get());
        }
        return taken;
    }

    // What the allocator behind gave.
    void enter(DeviceIndex device, uint64_t stream, size_t bytes, void *pointer) {
        if (bytes == 0) {
            return;
        }
        if (C10_UNLIKELY(rounds_otherwise(bytes))) {
            observe(device);
            return;
        }
        if (bytes <= FL__FASTBINS_SMALL &&
            fl__fastbins_enter(&bins, device, stream, bytes, pointer, nullptr)) {
            return;
        }
        DeviceStats stats = behind.getDeviceStats(device);
        fl__fastbins_sums sums;
        sums_of(stats, &Stat::current, sums);
        (void)fl__fastbins_enter(&bins, device, stream, bytes, pointer, &sums);
    }

    bool knows(int device) const {
        return device >= 0 && device < devices;
    }

    size_t drain(int device, fl__fastbins_pool pool = FL__POOL_ALL) {
        void *blocks[64];
        size_t drained = 0;
        if (!knows(device)) {
            return 0; // The allocator behind says that there is no such device.
        }
        while (const size_t count = fl__fastbins_drain(&bins, device, pool, blocks, 64)) {
            for (size_t i = 0; i < count; i++) {
                inner_deleter(blocks[i]);
            }
            drained += count;
        }
        return drained;
    }
    void drain_all() {
        for (int device = 0; device < devices; device++) {
            drain(device);
        }
    }
    // Pauses before it drains, so that nothing is kept in between.
    void pause(int device) {
        if (knows(device)) {
            fl__fastbins_pause(&bins, device);
            drain(device);
        }
    }
    void resume(int device) {
        if (knows(device)) {
            observe(static_cast<DeviceIndex>(device));
            fl__fastbins_resume(&bins, device);
        }
    }
    void switch_all(bool &is_on, bool on) {
        const std::lock_guard<std::mutex> lock(switches_);
        for (int device = 0; device < devices && is_on != on; device++) {
            if (on) {
                pause(device);
            } else {
                resume(device);
            }
        }
        is_on = on;
    }

    void observe(DeviceIndex device) {
        DeviceStats stats = behind.getDeviceStats(device);
        (void)observed(device, stats);
    }
    fl__fastbins_stats observed(DeviceIndex device, DeviceStats &stats) {
        fl__fastbins_sums sums;
        sums_of(stats, &Stat::current, sums);
        fl__fastbins_observe(&bins, device, sums);
        fl__fastbins_stats ours;
        fl__fastbins_get_stats(&bins, device, &ours);
        return ours;
    }
    static bool same_peaks(const StatArray &left, const StatArray &right) {
        for (const StatType pool : kPools) {
            const auto index = static_cast<size_t>(pool);
            if (left[index].peak != right[index].peak) {
                return false;
            }
        }
        return true;
    }

    CUDAAllocator &behind;
    fl__fastbins &bins;
    const c10::DeleterFnPtr inner_deleter;
    const int devices;
    std::mutex switches_; // Guards the three below.
    bool history_ = false, traced_ = false, uncached_ = false;
};

// PyTorch's allocator asks for this when no block of its cache will do, before it fetches memory
// and before it says that there is none; then it looks again.
struct GiveBack final : c10::FreeMemoryCallback {
    bool Execute() override {
        return installed != nullptr && installed->drain(current_device()) != 0;
    }
};

void free_block(void *pointer) {
    if (pointer != nullptr) {
        installed->give(pointer);
    }
}

// Puts the bins in front of PyTorch's CUDA allocator, once CUDA is initialised. Does nothing a
// second time, and nothing in front of an allocator that somebody else brought or that has no
// cache. Answers whether they are there.
bool put_fastbins() {
    static std::mutex lock;
    const std::lock_guard<std::mutex> guard(lock);
    CUDAAllocator *const behind = get();
    if (installed != nullptr) {
        return behind == installed;
    }
    const int devices = c10::cuda::device_count();
    if (!fl_option_bool(FL_OPT_TWIN_FASTBINS) || behind == nullptr || !behind->initialized() ||
        behind->name() != "native" || c10::utils::has_env("PYTORCH_NO_CUDA_MEMORY_CACHING") ||
        !behind->isEnabled() || behind->isHistoryEnabled() || devices > FL__FASTBINS_DEVICES) {
        return false;
    }
    fl__fastbins *const bins = fl__fastbins_create();
    if (bins == nullptr) {
        return false;
    }
    installed = new FastAllocator(*behind, *bins, devices);
    c10::FreeCudaMemoryCallbacksRegistry()->Register("torch_fl_fastbins",
                                                     [] { return std::make_unique<GiveBack>(); });
    allocator.store(installed);
    c10::SetAllocator(c10::DeviceType::CUDA, installed);
    return true;
}

} // namespace

} // namespace fl_torch

TORCH_LIBRARY_FRAGMENT(flagos, library) {
    library.def("_put_fastbins() -> bool", &fl_torch::put_fastbins);
    library.impl("_put_fastbins", c10::DispatchKey::Tracer, torch::CppFunction::makeFallthrough());
}
