// special.h: shadows of tensors that are more than one block of memory. Sparse tensors hold other
// tensors, quantized ones a quantizer, nested ones a table of sizes: each gets a twin's object of
// its own kind, made for one call, whose parts are plain shadows of the frame.
#pragma once

#include "shadow.h"

#include <ATen/core/QuantizerBase.h>

#include <array>
#include <deque>
#include <optional>

namespace fl_torch {

// One operand of one call and its shadow.
struct SpecialShadow {
    const at::Tensor *original = nullptr; // Borrowed for the call.
    std::optional<at::Tensor> shadow;
    bool written = false;
    // Handles of the tensors that the original holds. The frame's shadows borrow these, not the
    // original's fields, which the call may replace.
    std::array<at::Tensor, 3> parts;
    at::QuantizerPtr shown_quantizer; // Quantized: what the shadow was given.
};

class SpecialShadows {
  public:
    // The shadow of `tensor`, which lives until `drop`; a second call for the same tensor gives the
    // same shadow.
    std::optional<at::Tensor> &show(ShadowFrame &frame, const at::Tensor &tensor, bool written);

    // After the call: what the callee changed of written operands becomes theirs. The frame has
    // written its plain shadows back before.
    void write_back(ShadowFrame &frame);

    // The caller's tensor whose shadow `result` is, nullptr if it is none.
    const at::Tensor *original_of(const at::Tensor &result) const;

    // The quantizer of the operand that was shown with `shown`, or null.
    at::QuantizerPtr quantizer_behind(const at::QuantizerPtr &shown) const;

    // Let go of the shadows, so that the plain ones below them can be released. The originals'
    // parts are kept until this object dies, for a plain shadow that escapes looks at its original.
    void drop();

  private:
    std::deque<SpecialShadow> entries_; // Addresses stay valid while it grows.
};

// Make a result of the twin that no plain tensor can hold a flagos tensor. Raises for kinds that
// flagos does not have.
void adopt_special(ShadowFrame &frame, at::Tensor &result);

// --- from device to device, where no twin sees the tensors

bool is_special(const at::Tensor &tensor);

// A copy on another device, parts included.
at::Tensor copy_of_special(const at::Tensor &tensor, c10::Device device);

// `target` becomes equal to `source`, which may lie on another device. Parts whose sizes stay are
// written in place, so that whoever shares them sees it.
void assign_special(const at::Tensor &target, const at::Tensor &source);

// Bytes of all parts.
uint64_t nbytes_of_special(const at::Tensor &tensor);

// --- what each kind does for the above

// `make` fills `entry.shadow`, `write_back` sees written ones.
namespace sparse {
void make(ShadowFrame &frame, SpecialShadow &entry);
void write_back(ShadowFrame &frame, SpecialShadow &entry);
void adopt(ShadowFrame &frame, at::Tensor &result);
void assign(const at::Tensor &target, const at::Tensor &source);
uint64_t nbytes(const at::Tensor &tensor);
} // namespace sparse

namespace quantized {
void make(ShadowFrame &frame, SpecialShadow &entry);
void write_back(ShadowFrame &frame, SpecialShadow &entry);
void adopt(ShadowFrame &frame, at::Tensor &result);
at::Tensor copy(const at::Tensor &tensor, c10::Device device);
void assign(const at::Tensor &target, const at::Tensor &source);
} // namespace quantized

namespace nested {
void make(ShadowFrame &frame, SpecialShadow &entry);
void adopt(ShadowFrame &frame, at::Tensor &result);
at::Tensor copy(const at::Tensor &tensor, c10::Device device);
void assign(const at::Tensor &target, const at::Tensor &source);
} // namespace nested

// The keys of a flagos tensor for a result of the twin, those of autograd and autocast included,
// which an object made from a shadow lacks.
c10::DispatchKeySet result_keys(c10::DispatchKeySet twin_keys);

// Where the memory of a result lies that is one block with something beside it.
struct ResultMemory {
    c10::Storage storage; // On flagos.
    // The result and its storage belong to this call alone: relabelling them in place is enough.
    bool is_exclusive;
};
ResultMemory memory_of(const ShadowFrame &frame, const at::Tensor &result);

} // namespace fl_torch
