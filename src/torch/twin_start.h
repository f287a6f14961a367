// twin_start.h: the start of the twin.
#pragma once

namespace fl_torch {

// Initialise the twin's device, which is not the host, and put the fast bins of libtorch_fl_cuda.so
// in front of its allocator: at the first call, where the library is there and
// TORCH_FL_TWIN_FASTBINS allows it. Throws what PyTorch throws where there is no device.
void initialise_twin();

} // namespace fl_torch
