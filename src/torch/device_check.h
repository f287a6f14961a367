// device_check.h: what CUDA says about operands on different devices, said for platforms whose
// kernels would not notice: on the host twin every tensor looks like a CPU tensor, and the CPU
// fallback would copy anything.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fl_torch {

enum class DeviceRule : uint8_t {
    kSame, // All tensors on one device; a 0-dim CPU tensor that is only read may stand beside them.
    kOperator, // The operator takes host tensors by its meaning (indices, lengths).
};

DeviceRule device_rule_of(const std::string &op_name);

// Collects the operands of one call and raises if they do not belong together.
class OperandCheck {
  public:
    OperandCheck(const char *op_name, DeviceRule rule) : op_name_(op_name), rule_(rule) {}

    void add(const at::Tensor &tensor, bool written) {
        if (rule_ == DeviceRule::kSame && tensor.defined()) {
            add_slow(tensor, written);
        }
    }

  private:
    void add_slow(const at::Tensor &tensor, bool written);
    [[noreturn]] void refuse(c10::Device other) const;

    const char *const op_name_;
    const DeviceRule rule_;
    c10::Device common_ = c10::Device(c10::DeviceType::CPU);
    bool seen_flagos_ = false, seen_host_ = false;
};

} // namespace fl_torch
