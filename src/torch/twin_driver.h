// twin_driver.h: an accelerator twin as a driver of the core.
#pragma once

namespace fl_torch {

// Tell the core that PyTorch's CUDA key answers in this process, if it does. Call before the
// platform is chosen. Neither initialises CUDA nor makes a context.
void register_twin_driver();

} // namespace fl_torch
