// deferred_ops.h: gives the typed operators their ways into the launch queue.
#pragma once

namespace fl_torch {

// After the typed operators are registered. Does nothing without a twin.
void register_deferred();

} // namespace fl_torch
