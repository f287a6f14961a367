// register.h: registration of the whole operator surface, and the counting of the adapter's own
// operators.
#pragma once

#include "shadow.h"

#include "fl/route.h"

namespace fl_torch {

// Register everything for the chosen platform. Call once, after twin_choose.
void register_operators();

// Count a call of an operator that the adapter implements itself.
#define FL_COUNT_CALL(name, kind)                                     \
    do {                                                              \
        static fl_slot *const slot = ::fl_torch::slot_of(name);       \
        fl_tally_count(::fl_torch::thread_state().tally, slot, kind); \
    } while (0)

// The slot of an operator by its full name ("aten::view"), made if it is new.
fl_slot *slot_of(const char *name);

} // namespace fl_torch
