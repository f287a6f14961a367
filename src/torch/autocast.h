// autocast.h: torch.autocast("flagos").
#pragma once

namespace fl_torch {

// Register autocast for flagos with the operator lists of the twin: CUDA's on a CUDA twin, the
// CPU's elsewhere. Call once, after twin_choose.
void register_autocast();

} // namespace fl_torch
