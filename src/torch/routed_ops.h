// routed_ops.h: which operators take the boxed path, and their registration with PyTorch.
#pragma once

#include "fl/route.h"

#include <ATen/core/operator_name.h>

#include <cstddef>

namespace fl_torch {

// Register the router for every operator that it should serve, and as the fallback for those that
// libraries register later. Operators that already have a flagos kernel are left alone. Returns how
// many were registered.
size_t register_router();

// Offer the routes of the chosen platform for an operator that the adapter serves.
fl_slot *offer_routes(const c10::OperatorName &name, fl_route_kind kind);

} // namespace fl_torch
