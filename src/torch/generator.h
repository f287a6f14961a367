// generator.h: random number generators of flagos devices.
#pragma once

#include <ATen/core/Generator.h>

namespace fl_torch {

// The default generator of a device; -1 is the current one. One object a device for the life of the
// process.
const at::Generator &default_generator(c10::DeviceIndex index);

// A new generator of a device, seeded like any new generator of the twin.
at::Generator new_generator(c10::DeviceIndex index);

// What the twin's (or the CPU's) kernels are given: the generator inside ours, or of the device's
// default where the caller named none. A generator of another device raises.
std::optional<at::Generator> to_twin(const std::optional<at::Generator> &generator,
                                     c10::DeviceIndex index);

} // namespace fl_torch
