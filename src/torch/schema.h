// schema.h: what an operator's declaration says about its arguments and results.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>

namespace fl_torch {

// Whether a value of this type is, or holds, one of that kind.
bool holds(const c10::TypePtr &type, c10::TypeKind kind);

bool has_argument(const c10::FunctionSchema &schema, c10::TypeKind kind);

// Running statistics are written by batch normalisation, though the schemas do not all say so.
constexpr bool is_statistics(std::string_view argument) {
    return argument == "running_mean" || argument == "running_var";
}

bool writes_to(const c10::Argument &argument);

// Whether an operator ("aten::add_") writes the values of its operand, and names of dimensions, and
// leaves its shape and its memory where they were: all in place, but for these.
constexpr bool writes_values_only(std::string_view name) {
    constexpr std::string_view others[] = {
        "aten::resize_",   "aten::resize_as_", "aten::set_",    "aten::as_strided_",
        "aten::squeeze_",  "aten::unsqueeze_", "aten::t_",      "aten::transpose_",
        "aten::swapaxes_", "aten::swapdims_",  "aten::detach_", "aten::rename_"};
    for (const std::string_view other : others) {
        if (name == other) {
            return false;
        }
    }
    return !name.empty() && name.back() == '_';
}

// The name of an argument, from a declaration as PyTorch writes it:
// "mm(Tensor self, Tensor mat2) -> Tensor". Empty where there are fewer arguments.
constexpr std::string_view argument_name(std::string_view declaration, size_t index) {
    size_t begin = declaration.find('(') + 1, depth = 0;
    for (size_t i = begin; i < declaration.size(); i++) {
        const char c = declaration[i];
        const bool ends = depth == 0 && (c == ',' || c == ')');
        if (ends) {
            const std::string_view argument = declaration.substr(begin, i - begin);
            const size_t space = argument.rfind(' ', argument.find('='));
            const std::string_view name = argument.substr(space + 1);
            if (name != "*" && index-- == 0) { // A star stands before arguments with a name only.
                return name.substr(0, name.find('='));
            }
            if (c == ')') {
                break;
            }
            begin = i + 1 + (i + 1 < declaration.size() && declaration[i + 1] == ' ');
        }
        depth += c == '(' || c == '[';
        depth -= !ends && (c == ')' || c == ']');
    }
    return {};
}

// A view of an argument, or the argument itself, that the operator does not write to.
bool aliases_without_writing(const c10::Argument &result);

// "aten::add.Tensor", the name of its slot.
std::string name_of(const c10::OperatorName &name);

} // namespace fl_torch
