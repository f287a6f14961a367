// allocator.h: PyTorch's allocator of flagos memory.
#pragma once

#include <c10/core/Allocator.h>

namespace fl_torch {

// The allocator of the chosen platform; one object for the life of the process.
c10::Allocator &flagos_allocator();

// That of results of operators that are about to be queued; only where there is a twin.
c10::Allocator &result_allocator();
// What it allocates.
c10::DataPtr allocate_result(size_t bytes);

// Register it with c10. Call once, after twin_choose.
void register_allocator();

} // namespace fl_torch
