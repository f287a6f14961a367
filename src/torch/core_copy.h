// core_copy.h: copies on platforms without a twin, over the core's copy planner.
#pragma once

#include <ATen/core/Tensor.h>

namespace fl_torch {

// Tensor.copy_ where at least one side is a flagos tensor: broadcasts, casts, and keeps PyTorch's
// meaning of non_blocking. Ordered on the current stream of the flagos side.
at::Tensor &core_copy(at::Tensor &self, const at::Tensor &source, bool non_blocking);

// Plain bytes between two blocks of one device, ordered on its current stream.
void core_copy_bytes(void *destination, const void *source, size_t bytes);

} // namespace fl_torch
