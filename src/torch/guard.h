// guard.h: PyTorch's view of flagos devices, streams and events.
#pragma once

namespace fl_torch {

// Register the guard of the chosen platform with c10. Call once, after twin_choose.
void register_guard();

} // namespace fl_torch
