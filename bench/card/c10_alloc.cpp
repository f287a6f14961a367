// c10_alloc.cpp: PyTorch's CUDA allocator as a source of memory for the programs of bench/c.
//
// Blocks are asked for by raw_alloc_with_stream and given back by raw_delete, the shortest way in
// that it has: no DataPtr is made. bench/card/alloc.py builds it. An exception ends the process,
// and the runtime of C++ prints its words.
#include "source.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::vector<c10::cuda::CUDAStream> streams;
std::vector<cudaStream_t> handles;

void prepare(int count) noexcept {
    while (static_cast<int>(streams.size()) < count) {
        streams.push_back(streams.empty() ? c10::cuda::getDefaultCUDAStream(0)
                                          : c10::cuda::getStreamFromPool(false, 0));
        handles.push_back(streams.back().stream());
    }
}

void *take(size_t bytes, int stream) noexcept {
    return allocator::raw_alloc_with_stream(bytes, handles[static_cast<size_t>(stream)]);
}

void give(void *ptr) noexcept {
    allocator::raw_delete(ptr);
}

void record(void *ptr, int stream) noexcept {
    // It takes a DataPtr, and looks at its deleter to know that the memory is its own.
    c10::DataPtr pointer(ptr, ptr, allocator::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
    allocator::recordStream(pointer, streams[static_cast<size_t>(stream)]);
    static_cast<void>(pointer.release_context());
}

void empty() noexcept {
    allocator::emptyCache();
}

void restart() noexcept {
    allocator::resetPeakStats(0);
    allocator::resetAccumulatedStats(0);
}

void read(source_peaks *out) noexcept {
    const auto stats = allocator::getDeviceStats(0);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    out->allocated = static_cast<uint64_t>(stats.allocated_bytes[all].peak);
    out->reserved = static_cast<uint64_t>(stats.reserved_bytes[all].peak);
    out->segments = stats.num_device_alloc;
    out->retries = stats.num_alloc_retries;
}

} // namespace

extern "C" const source *fl_bench_source() noexcept {
    static const source table = {"c10's cache", prepare, take, give,   record,
                                 empty,         restart, read, nullptr};
    allocator::init(c10::cuda::device_count_ensure_non_zero());
    prepare(1);
    return &table;
}
