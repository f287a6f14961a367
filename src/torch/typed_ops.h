// typed_ops.h: registration of the typed operators.
#pragma once

#include <torch/library.h>

namespace fl_torch {

// Register every line of hot_ops.def that the twin can serve. Does nothing without a twin.
void register_typed(torch::Library &aten);

} // namespace fl_torch
