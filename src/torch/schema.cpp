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

// Running statistics are written by batch normalisation, though the schemas do not all say so.
bool writes_to(const c10::Argument &argument) {
    return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
           argument.name() == "running_mean" || argument.name() == "running_var";
}

bool aliases_without_writing(const c10::Argument &result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
}

std::string name_of(const c10::OperatorName &name) {
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

} // namespace fl_torch
