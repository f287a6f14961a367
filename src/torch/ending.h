// ending.h: threads that still run when the process ends.
#pragma once

namespace fl_torch {

// To be called once Python has begun to end, by the thread that ends it.
//
// From then on Python kills each other thread at the moment it wants Python's lock. In a thread
// that is on its way out of an operator the killing meets a destructor of PyTorch's that may not
// throw, and the process would abort. Such a thread sleeps until the process is gone instead, which
// is what Python 3.14 makes of all of them.
void process_is_ending();

} // namespace fl_torch
