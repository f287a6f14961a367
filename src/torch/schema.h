// schema.h: what an operator's declaration says about its arguments and results.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>

namespace fl_torch {

// Whether a value of this type is, or holds, one of that kind.
bool holds(const c10::TypePtr &type, c10::TypeKind kind);

bool has_argument(const c10::FunctionSchema &schema, c10::TypeKind kind);

bool writes_to(const c10::Argument &argument);

// A view of an argument, or the argument itself, that the operator does not write to.
bool aliases_without_writing(const c10::Argument &result);

// "aten::add.Tensor", the name of its slot.
std::string name_of(const c10::OperatorName &name);

} // namespace fl_torch
