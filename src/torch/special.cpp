// special.cpp: see special.h.
#include "special.h"

#include <c10/util/Exception.h>

namespace fl_torch {

std::optional<at::Tensor> &SpecialShadows::show(const at::Tensor &tensor, bool written) {
    for (Entry &entry : entries_) {
        if (entry.original->is_same(tensor)) {
            entry.written |= written;
            return entry.shadow;
        }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "flagos does not serve tensors of layout ", tensor.layout(),
                                tensor.is_quantized() ? " (quantized)" : "",
                                " yet; convert with .to_dense() or .dequantize() first");
}

void SpecialShadows::write_back() {}

const at::Tensor *SpecialShadows::original_of(const at::Tensor &result) const {
    for (const Entry &entry : entries_) {
        if (entry.shadow->is_same(result)) {
            return entry.original;
        }
    }
    return nullptr;
}

at::Tensor SpecialShadows::adopt(const at::Tensor &result, SpecialShadows *) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "flagos does not serve results of layout ", result.layout(),
                                " yet");
}

} // namespace fl_torch
