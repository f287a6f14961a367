// values.h: the tensors of an argument on the dispatcher's stack.
#pragma once

#include <ATen/core/ivalue.h>

namespace fl_torch {

// Visit the tensor that a value is, defined or not, or those of a list, without its gaps.
template <class Visit>
void each_tensor(const c10::IValue &value, const Visit &visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
        for (const c10::IValue &element : value.toListRef()) {
            if (element.isTensor()) {
                visit(element.toTensor());
            }
        }
    }
}

// Whether any of them is such a tensor.
template <class Predicate>
bool any_tensor(const c10::IValue &value, const Predicate &is_such) {
    bool found = false;
    each_tensor(value, [&](const at::Tensor &tensor) { found = found || is_such(tensor); });
    return found;
}

} // namespace fl_torch
