// pinned.cpp: at::HostAllocator for flagos over the core's cache of page-locked memory; where the
// twin is an accelerator, the twin's host allocator serves.
#include "pinned.h"

#include "check.h"
#include "twin.h"

#include "fl/pinned.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>

namespace fl_torch {

namespace {

c10::CachingAllocator::Stat to_c10(const fl_stat &from) {
    c10::CachingAllocator::Stat to;
    to.current = from.current;
    to.peak = from.peak;
    to.allocated = from.allocated;
    to.freed = from.freed;
    return to;
}

c10::CachingAllocator::DurationStat to_c10(const fl_duration_stat &from) {
    c10::CachingAllocator::DurationStat to;
    to.total = from.total;
    to.max = from.max;
    to.min = from.min;
    to.count = from.count;
    return to;
}

struct CorePinned final : at::HostAllocator {
    static void free_block(void *pointer) {
        fl_pinned_free(pointer);
    }
    c10::DataPtr allocate(size_t bytes) override {
        void *pointer = nullptr;
        check(fl_pinned_alloc(bytes, &pointer));
        return c10::DataPtr(pointer, pointer, &free_block, c10::DeviceType::CPU);
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return &free_block;
    }
    void copy_data(void *destination, const void *source, size_t bytes) const override {
        default_copy_data(destination, source, bytes);
    }
    // True if the block is ours and now waits for the stream before it is reused.
    bool record_event(void *pointer, void *, c10::Stream stream) override {
        const fl_status status =
            fl_pinned_record_stream(pointer, stream.device_index(), stream.id());
        if (status == FL_NOT_FOUND) {
            return false;
        }
        check(status);
        return true;
    }
    void empty_cache() override {
        check(fl_pinned_empty_cache());
    }
    at::HostStats get_stats() override {
        fl_pinned_stats from;
        fl_pinned_get_stats(&from);
        at::HostStats to;
        to.active_requests = to_c10(from.active_requests);
        to.active_bytes = to_c10(from.active_bytes);
        to.allocations = to_c10(from.allocations);
        to.allocated_bytes = to_c10(from.allocated_bytes);
        to.host_alloc_time = to_c10(from.host_alloc_time);
        to.host_free_time = to_c10(from.host_free_time);
        to.num_host_alloc = from.num_host_alloc;
        to.num_host_free = from.num_host_free;
        const size_t buckets = std::min<size_t>(FL_PINNED_BUCKETS, to.bucket_allocation.size());
        std::copy_n(from.bucket_allocation, buckets, to.bucket_allocation.begin());
        return to;
    }
    void reset_accumulated_stats() override {
        fl_pinned_reset_accumulated_stats();
    }
    void reset_peak_stats() override {
        fl_pinned_reset_peak_stats();
    }
};

} // namespace

c10::Allocator *pinned_allocator() {
    if (!twin.is_host) {
        return at::getHostAllocator(twin.type);
    }
    static auto *const allocator = new CorePinned;
    return allocator;
}

bool is_pinned(const void *pointer) {
    if (!twin.is_host) {
        return at::globalContext().getAcceleratorHooksInterface(twin.type).isPinnedPtr(pointer);
    }
    return fl_pinned_contains(pointer);
}

void register_pinned_allocator() {
    at::setHostAllocator(kFlagos, static_cast<at::HostAllocator *>(pinned_allocator()));
}

} // namespace fl_torch
