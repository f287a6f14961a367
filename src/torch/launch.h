// launch.h: the option TORCH_FL_LAUNCH_BLOCKING: each operator waits for its stream after its
// launch, so that a failure is raised where it was made.
#pragma once

#include "fl/route.h"

#include <c10/core/Device.h>

namespace fl_torch {

// Set once, before operators are registered; never changes afterwards.
extern bool launch_blocking;

// Read the option.
void launch_choose();

// Wait for the current stream of a flagos device; -1 is the current device. A failure names the
// operator that was launched last. Does nothing unless `launch_blocking`.
void wait_for_launch(const char *op_name, c10::DeviceIndex index);

} // namespace fl_torch
