// twin.h: which of PyTorch's own devices serves flagos, and the translation of devices and dispatch
// keys between the two. The choice is made once, when the library is loaded, and never changes.
#pragma once

#include "fl/driver.h"

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fl_torch {

constexpr c10::DeviceType kFlagos = c10::DeviceType::PrivateUse1;

struct Twin {
    // Without a twin, operators come from the routes of the core and from the CPU; `type` and `key`
    // are then the CPU's, because that is what the fallback calls.
    bool present = false;
    // The twin is the host: one device, whose tensors look like any plain CPU tensor.
    bool is_host = true;
    c10::DeviceType type = c10::DeviceType::CPU;
    c10::DispatchKey key = c10::DispatchKey::CPU;
    c10::DispatchKeySet keys{c10::DispatchKey::CPU}; // Of `key` alone; making it is a call.
    c10::BackendComponent backend = c10::BackendComponent::CPUBit;
    // c10 keeps a guard for ever. Only where there is a twin that is not the host.
    const c10::impl::DeviceGuardImplInterface *guard = nullptr;
    // Bits of a raw DispatchKeySet.
    uint64_t twin_component = 0, flagos_component = 0;
    uint64_t twin_autocast = 0, flagos_autocast = 0;
    // What a shadow may keep of a tensor's keys: its functionality and its lazy conj, neg and zero
    // bits. Autograd, autocast and Python keys stay behind, because the call is below them.
    uint64_t shadow_keys = 0;
    // Functionality keys that a plain shadow cannot show (sparse, quantized, nested).
    uint64_t special_keys = 0;
};

extern Twin twin;

// Set `twin` for the chosen platform.
void twin_choose(const fl_platform &platform);

inline c10::Device to_twin(c10::Device device) {
    return c10::Device(twin.type, twin.is_host ? c10::DeviceIndex(-1) : device.index());
}

inline c10::Device to_flagos(c10::Device device) {
    return c10::Device(kFlagos, device.index() < 0 ? c10::DeviceIndex(0) : device.index());
}

// Whether tensors with these keys hold others (sparse, nested, quantized), which a plain shadow
// cannot show.
inline bool is_special(c10::DispatchKeySet keys) {
    return (keys.raw_repr() & twin.special_keys) != 0;
}

inline c10::DispatchKeySet to_shadow_keys(c10::DispatchKeySet keys) {
    return c10::DispatchKeySet(c10::DispatchKeySet::RAW,
                               (keys.raw_repr() & twin.shadow_keys) | twin.twin_component);
}

inline c10::DispatchKeySet to_flagos_keys(c10::DispatchKeySet keys) {
    uint64_t raw = keys.raw_repr();
    if (raw & twin.twin_autocast) {
        raw = (raw & ~twin.twin_autocast) | twin.flagos_autocast;
    }
    return c10::DispatchKeySet(c10::DispatchKeySet::RAW,
                               (raw & ~twin.twin_component) | twin.flagos_component);
}

inline c10::Stream to_twin(c10::Stream stream) {
    return c10::Stream(c10::Stream::UNSAFE, to_twin(stream.device()), stream.id());
}

inline c10::Stream to_flagos(c10::Stream stream) {
    return c10::Stream(c10::Stream::UNSAFE, to_flagos(stream.device()), stream.id());
}

} // namespace fl_torch
