// values.h: the tensors of an argument on the dispatcher's stack.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace fl_torch {

// A list of tensors of which some may be missing: indices. TorchScript makes one whose elements
// have another type by name, with the shapes that it has seen, and kernels take that as well.
inline bool is_list_with_gaps(const c10::IValue &value) {
    if (C10_LIKELY(!value.isList() || value.isTensorList())) {
        return false;
    }
    if (value.isOptionalTensorList()) {
        return true;
    }
    const c10::TypePtr type = value.toList().elementType();
    return type->kind() == c10::TypeKind::OptionalType &&
           type->expectRef<c10::OptionalType>().getElementType()->kind() ==
               c10::TypeKind::TensorType;
}

inline bool is_tensor_list(const c10::IValue &value) {
    return value.isTensorList() || is_list_with_gaps(value);
}

// Visit the tensor that a value is, defined or not, or those of a list, without its gaps.
template <class Visit>
void each_tensor(const c10::IValue &value, const Visit &visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (is_tensor_list(value)) {
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
