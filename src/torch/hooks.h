// hooks.h: what PyTorch asks of a device backend besides guard and allocator.
#pragma once

namespace fl_torch {

// Register at::PrivateUse1HooksInterface. Call once, after twin_choose.
void register_hooks();

} // namespace fl_torch
