// schema.cpp: see schema.h.
#include "schema.h"

namespace fl_torch {

bool holds(const c10::TypePtr &type, c10::TypeKind kind) {
    if (type->kind() == kind) {
        return true;
    }
    for (const auto &inner : type->containedTypes()) {
        if (holds(inner, kind)) {
            return true;
        }
    }
    return false;
}

bool has_argument(const c10::FunctionSchema &schema, c10::TypeKind kind) {
    for (const c10::Argument &argument : schema.arguments()) {
        if (holds(argument.type(), kind)) {
            return true;
        }
    }
    return false;
}

bool writes_to(const c10::Argument &argument) {
    return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
           is_statistics(argument.name());
}

bool aliases_without_writing(const c10::Argument &result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
}

static_assert(argument_name("a(Tensor x) -> Tensor", 0) == "x" &&
              argument_name("a(Tensor x) -> Tensor", 1).empty());
static_assert(argument_name("a(Tensor(a!) x, int[2] y=[1, 2], *, str z=\"b c\") -> ()", 1) == "y" &&
              argument_name("a(Tensor(a!) x, int[2] y=[1, 2], *, str z=\"b c\") -> ()", 2) == "z");

std::string name_of(const c10::OperatorName &name) {
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

} // namespace fl_torch
