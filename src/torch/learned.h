// learned.h: the results of operators that are learned by running them: of each signature (the
// operator, what its operands look like, its other arguments) the first call shows what the results
// look like, and later ones are queued.
//
// For operators whose results are new tensors that depend in their looks on nothing else, and for
// which PyTorch has no form that writes into given results: convolution, attention and the like,
// where a library chooses the layout. The worker calls the kernel and copies what it made into the
// memory that the caller has taken. So only small results are queued; for large ones, where the
// copy would cost and the device is the slower side anyway, the caller waits as ever.
#pragma once

#include "deferred.h"

#include <ATen/core/List.h>

#include <cstring>
#include <memory>

namespace fl_torch {

// --- signatures
// -----------------------------------------------------------------------------------

class Signature {
  public:
    // Begins with the settings of the process that choose kernels, and is nowhere 0.
    explicit Signature(const void *op);

    uint64_t value() const {
        return value_ | 1;
    }

    void add(const at::Tensor &tensor);
    void add(const std::optional<at::Tensor> &tensor) {
        add(tensor.has_value() ? *tensor : at::Tensor());
    }
    void add(const c10::List<std::optional<at::Tensor>> &tensors);
    void add(at::IntArrayRef ints) {
        mix(ints.size());
        for (const int64_t value : ints) {
            mix(static_cast<uint64_t>(value));
        }
    }
    void add(c10::SymIntArrayRef ints) {
        mix(ints.size());
        for (const c10::SymInt &value : ints) {
            add(value);
        }
    }
    void add(const c10::SymInt &value) {
        mix(static_cast<uint64_t>(value.maybe_as_int().value_or(-1))); // Symbols are refused.
    }
    void add(at::OptionalSymIntArrayRef ints) {
        mix(ints.has_value());
        if (ints.has_value()) {
            add(*ints);
        }
    }
    template <class T>
    std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>> add(T value) {
        uint64_t word = 0;
        std::memcpy(&word, &value, sizeof(value));
        mix(word);
    }
    template <class T>
    std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>
    add(const std::optional<T> &value) {
        mix(value.has_value());
        add(value.value_or(T()));
    }
    template <size_t N>
    void add(const std::array<bool, N> &values) {
        for (const bool value : values) {
            mix(value);
        }
    }

  private:
    void mix(uint64_t word) {
        value_ = (value_ ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        value_ ^= value_ >> 29;
    }
    uint64_t value_ = 0;
};

// --- what is learned
// -------------------------------------------------------------------------------

struct LearnedTensor {
    bool defined = false;
    at::ScalarType dtype = at::ScalarType::Undefined;
    KeptInts sizes, strides;
    at::Tensor host; // A result that lies on the host, whatever the operands are: copied.
};

struct Learned {
    bool can_be_queued = true;
    uint64_t bytes = 0;
    std::vector<LearnedTensor> tensors;
    std::vector<int64_t> numbers;

    void look_at(const at::Tensor &result);
    void look_at(const c10::SymInt &result) {
        numbers.push_back(result.expect_int());
    }
    void look_at(int64_t result) {
        numbers.push_back(result);
    }
    // After the last result.
    void judge();

  private:
    std::vector<const void *> storages_;
};

// Null where this signature has not been seen.
std::shared_ptr<const Learned> find_learned(uint64_t signature);
void learn(uint64_t signature, Learned learned);

// --- in the worker
// ---------------------------------------------------------------------------------

// Copy what a kernel made into the result that the caller has, unless the caller has freed that.
void hand_over(const at::Tensor &made, DeferredTask &task, OperandIndex result);

} // namespace fl_torch
