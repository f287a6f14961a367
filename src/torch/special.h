// special.h: shadows of tensors that are more than one block of memory: sparse, quantized and
// nested tensors hold other tensors or a quantizer, so each gets a twin's object of its own kind.
#pragma once

#include "twin.h"

#include <ATen/core/Tensor.h>

#include <deque>
#include <optional>

namespace fl_torch {

class SpecialShadows {
  public:
    // The shadow of `tensor`, which lives until this object does; a second call for the same tensor
    // gives the same shadow.
    std::optional<at::Tensor> &show(const at::Tensor &tensor, bool written);

    // After the call: what the callee changed of written operands becomes theirs.
    void write_back();

    // The caller's tensor whose shadow `result` is, nullptr if it is none.
    const at::Tensor *original_of(const at::Tensor &result) const;

    // Make a result of the twin a flagos tensor. `shadows` may be nullptr.
    static at::Tensor adopt(const at::Tensor &result, SpecialShadows *shadows);

  private:
    struct Entry {
        std::optional<at::Tensor> shadow;
        const at::Tensor *original;
        bool written;
    };
    std::deque<Entry> entries_; // Addresses stay valid while it grows.
};

} // namespace fl_torch
