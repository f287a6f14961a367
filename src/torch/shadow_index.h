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
// and all other tensors.
class ShadowIndex {
  public:
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr uint32_t kFew = 24; // So many shadows are looked at one by one.

    // One bit of 64 for what may share memory. Where a call has not seen it nothing does, and
    // nobody has to look.
    static uint64_t bit_of(const c10::TensorImpl *impl, const c10::StorageImpl *storage) {
        const void *const key = storage != nullptr ? static_cast<const void *>(storage) : impl;
        const auto address = reinterpret_cast<uintptr_t>(key) >> 4;
        return uint64_t{1} << (address * UINT64_C(0x9E3779B97F4A7C15) >> 58);
    }

    void add(const Shadow &shadow, uint32_t number) {
        const c10::StorageImpl *const storage = shadow.original_storage();
        if (storage == nullptr || find(storage) != kNone) {
            add(static_cast<const void *>(shadow.original().unsafeGetTensorImpl()), number);
        } else {
            add(static_cast<const void *>(storage), number);
        }
    }

    // The shadow of a tensor, and the first one that shows its storage.
    struct Found {
        uint32_t same, sharing;
    };
    Found find(const c10::TensorImpl *impl, const c10::StorageImpl *storage,
               ThreadState &state) const {
        if (storage == nullptr) {
            return {find(impl), kNone};
        }
        const uint32_t first = find(storage);
        if (first == kNone || state.shadow(first).original().unsafeGetTensorImpl() == impl) {
            return {first, first};
        }
        return {find(impl), first};
    }

  private:
    struct Entry {
        const void *key = nullptr;
        uint32_t number = kNone;
    };

    uint32_t find(const void *key) const {
        return entries_.empty() ? kNone : entries_[place(key)].number;
    }
    // Unless the key is there already.
    void add(const void *key, uint32_t number) {
        if (used_ * 2 >= entries_.size()) {
            grow();
        }
        Entry &entry = entries_[place(key)];
        if (entry.number == kNone) {
            entry = {key, number};
            used_++;
        }
    }
    // Where the key is, or where it would be put. There is always a free place.
    size_t place(const void *key) const {
        const size_t mask = entries_.size() - 1;
        const auto bits = reinterpret_cast<uintptr_t>(key) >> 4; // The heap aligns to 16 bytes.
        size_t i = (bits ^ (bits >> 12)) & mask;
        while (entries_[i].number != kNone && entries_[i].key != key) {
            i = (i + 1) & mask;
        }
        return i;
    }
    void grow() {
        std::vector<Entry> old(std::max<size_t>(256, entries_.size() * 4));
        old.swap(entries_);
        for (const Entry &entry : old) {
            if (entry.number != kNone) {
                entries_[place(entry.key)] = entry;
            }
        }
    }

    std::vector<Entry> entries_; // A power of two of them, or none.
    size_t used_ = 0;
};

} // namespace fl_torch
