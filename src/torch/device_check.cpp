// device_check.cpp: see device_check.h.
#include "device_check.h"

#include "twin.h"

#include <unordered_set>

namespace fl_torch {

DeviceRule device_rule_of(const std::string &op_name) {
    // Operators of PyTorch that accept host tensors beside device tensors on CUDA as well: index
    // tensors, lengths, and copies, whose two sides may lie anywhere.
    static const std::unordered_set<std::string> by_meaning = {
        "aten::index.Tensor",
        "aten::index.Tensor_out",
        "aten::_unsafe_index.Tensor",
        "aten::_unsafe_masked_index",
        "aten::index_put",
        "aten::index_put_",
        "aten::index_put.out",
        "aten::_index_put_impl_",
        "aten::_index_put_impl",
        "aten::_index_put_impl.out",
        "aten::_unsafe_index_put",
        "aten::_pack_padded_sequence",
        "aten::_pack_padded_sequence_backward",
        "aten::_ctc_loss.Tensor",
        "aten::_ctc_loss_backward.Tensor",
        "aten::copy_",
        "aten::copy",
        "aten::copy.out",
        "aten::_foreach_copy_",
        "aten::_foreach_copy",
        "aten::repeat_interleave.Tensor",
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::_fused_adam_.tensor_lr",
        "aten::_fused_adamw_.tensor_lr",
        "aten::_fused_sgd_.tensor_lr",
        "aten::_fused_adagrad_",
        "aten::_fused_adagrad_.tensor_lr",
    };
    return by_meaning.count(op_name) != 0 ? DeviceRule::kOperator : DeviceRule::kSame;
}

void OperandCheck::add_slow(const at::Tensor &tensor, bool written) {
    const c10::Device device = tensor.device();
    if (device.type() == kFlagos) {
        if (seen_host_ || (seen_flagos_ && device != common_)) {
            refuse(device);
        }
        common_ = device;
        seen_flagos_ = true;
        return;
    }
    if (!written && device.is_cpu() && tensor.dim() == 0) {
        return;
    }
    if (seen_flagos_) {
        refuse(device);
    }
    seen_host_ = true;
    common_ = device;
}

void OperandCheck::refuse(c10::Device other) const {
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                common_, " and ", other, "! (when calling ", op_name_,
                "; move one of them with .to())");
}

} // namespace fl_torch
