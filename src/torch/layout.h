// layout.h: which arguments of which operators must be laid out otherwise before the twin sees
// them. The table is layout_ops.def.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>

#include <vector>

namespace fl_torch {

struct WantedLayout {
    uint16_t argument;
    at::MemoryFormat format;
};

// The rows of one operator for the chosen twin; empty for nearly all.
std::vector<WantedLayout> wanted_layouts(const char *op_name, const c10::FunctionSchema &schema);

// Replace flagos tensors among the arguments by copies in the wanted layout, where they are not in
// it. Call before anything is shown.
void prepare_layouts(const std::vector<WantedLayout> &wanted, c10::IValue *arguments);

} // namespace fl_torch
