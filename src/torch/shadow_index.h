// shadow_index.h: finds what shows a tensor or its storage among hundreds of shadows.
#pragma once

#include "shadow.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl_torch {

// By open addressing: optimisers pass lists of hundreds of tensors, and a node on the heap for each
// would cost more than to bind it. The keys are the storages of the first shadow that shows each,
// and all other tensors. A thread keeps its index, whose entries count for one frame only.
class ShadowIndex {
  public:
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr uint32_t kFew = 24; // So many shadows are looked at one by one.

    // Forget what earlier frames have entered. Some `count` entries are to come.
    void begin(size_t count) {
        room_ = capacity();
        if (++frame_ == 0) { // The count has come round: entries of old would count again.
            std::fill(entries_.begin(), entries_.end(), Entry{});
            frame_ = 1;
        }
        while (room_ < count) {
            grow();
        }
    }

    // One bit of 64 for what may share memory. Where a call has not seen it nothing does, and
    // nobody has to look.
    static uint64_t bit_of(const c10::TensorImpl *impl, const c10::StorageImpl *storage) {
        const void *const key = storage != nullptr ? static_cast<const void *>(storage) : impl;
        const auto address = reinterpret_cast<uintptr_t>(key) >> 4;
        return uint64_t{1} << (address * UINT64_C(0x9E3779B97F4A7C15) >> 58);
    }

    // What shows a tensor: its shadow if it has one, and the first that shows its storage. If it
    // has none, `number` is entered as its shadow's.
    struct Found {
        uint32_t same, sharing;
    };
    C10_ALWAYS_INLINE Found enter(const c10::TensorImpl *impl, const c10::StorageImpl *storage,
                                  uint32_t number, ThreadState &state) {
        if (storage == nullptr) {
            return {enter(impl, number), kNone};
        }
        const uint32_t first = enter(storage, number);
        if (first == kNone || state.shadow(first).original().unsafeGetTensorImpl() == impl) {
            return {first, first};
        }
        return {enter(impl, number), first};
    }

  private:
    struct Entry {
        const void *key = nullptr;
        uint32_t number = kNone;
        uint32_t frame = 0; // That it counts for.
    };

    // The number under a key. If there is none, enters this one and answers kNone.
    C10_ALWAYS_INLINE uint32_t enter(const void *key, uint32_t number) {
        if (C10_UNLIKELY(room_ == 0)) {
            grow();
        }
        Entry &entry = place(key);
        if (C10_UNLIKELY(entry.frame == frame_)) {
            return entry.number;
        }
        entry = {key, number, frame_};
        room_--;
        return kNone;
    }
    // Where the key is, or where it would be put. There is always a free place.
    C10_ALWAYS_INLINE Entry &place(const void *key) {
        const auto bits = reinterpret_cast<uintptr_t>(key) >> 4; // The heap aligns to 16 bytes.
        Entry *const entries = entries_.data();
        size_t i = (bits ^ (bits >> 12)) & mask_;
        while (C10_UNLIKELY(entries[i].frame == frame_ && entries[i].key != key)) {
            i = (i + 1) & mask_;
        }
        return entries[i];
    }
    size_t capacity() const { // Half full at most.
        return entries_.size() / 2;
    }
    C10_NOINLINE void grow() {
        const size_t used = capacity() - room_;
        std::vector<Entry> old(std::max<size_t>(256, entries_.size() * 4));
        old.swap(entries_);
        mask_ = entries_.size() - 1;
        room_ = capacity() - used;
        for (const Entry &entry : old) {
            if (entry.frame == frame_) {
                place(entry.key) = entry;
            }
        }
    }

    std::vector<Entry> entries_; // A power of two of them, or none.
    size_t mask_ = 0;
    size_t room_ = 0; // For so many more.
    uint32_t frame_ = 1;
};

} // namespace fl_torch
