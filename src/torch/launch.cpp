// launch.cpp: see launch.h.
#include "launch.h"

#include "twin.h"

#include "fl/debug.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <string>

namespace fl_torch {

bool launch_blocking = false;

void launch_choose() {
    launch_blocking = fl_option_bool(FL_OPT_LAUNCH_BLOCKING);
}

void wait_for_launch(const char *op_name, c10::DeviceIndex index) {
    if (!launch_blocking) {
        return;
    }
    const auto *const guard = c10::impl::getDeviceGuardImpl(kFlagos);
    const c10::Device device = index < 0 ? guard->getDevice() : c10::Device(kFlagos, index);
    try {
        guard->synchronizeStream(guard->getStream(device));
    } catch (c10::Error &error) {
        error.add_context(std::string("in '") + op_name + "' on " + device.str());
        throw;
    }
}

} // namespace fl_torch
