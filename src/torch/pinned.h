// pinned.h: PyTorch's allocator of page-locked host memory for flagos.
#pragma once

#include <c10/core/Allocator.h>

namespace fl_torch {

// The twin's own where the twin is an accelerator, else the core's cache. Never destroyed.
c10::Allocator *pinned_allocator();

// Whether a pointer lies in a block of it; also true for memory that the twin pinned. Never throws
// and makes no context.
bool is_pinned(const void *pointer);

// Make at::getHostAllocator know it. Call once, after twin_choose.
void register_pinned_allocator();

} // namespace fl_torch
