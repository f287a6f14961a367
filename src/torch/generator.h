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

// The same for a kernel of the CPU, whatever the twin. Beside an accelerator twin the CPU's numbers
// cannot be the device's: they follow from the device generator's seed and offset, which moves on,
// so that seeds and saved states repeat them and the host's own sequence stays where it is.
std::optional<at::Generator> to_host(const std::optional<at::Generator> &generator,
                                     c10::DeviceIndex index);

} // namespace fl_torch
