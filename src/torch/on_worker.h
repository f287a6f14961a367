// on_worker.h: calls that wait for their end and are made in the worker's thread all the same.
//
// Libraries keep handles and workspaces for each thread that calls them (a matrix product's is 32
// MiB on some cards). While the queue is on, whatever calls them is therefore called by the worker,
// also where the caller has to wait for it: what is not queued, and the first call of each kind.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <string_view>

namespace fl_torch {

// Whether kernels of this operator may call such a library, by its name with namespace and
// overload.
bool calls_libraries(std::string_view name);

// Make the call in the worker of the device, after all that was queued before, and wait for it. It
// finds the caller's stream, modes and number of threads, and raises and warns as if it had been
// made here. It must take no reference to what Python knows, and drop none. `name` lives for ever.
// False where the caller has to make it: the queue is off or the calling thread is the worker.
bool call_on_worker(const char *name, c10::DeviceIndex device, c10::function_ref<void()> call);

} // namespace fl_torch
