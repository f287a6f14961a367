// twin.cpp: the choice of the twin, and the `cuda` family of platforms, whose driver is PyTorch's
// own CUDA guard and allocator. Reaches CUDA through c10's registries only, so that one binary
// serves builds of PyTorch with and without it.
#include "twin.h"

#include <c10/core/DispatchKey.h>

namespace fl_torch {

Twin twin;

namespace {

uint64_t raw(c10::DispatchKey key) {
    return c10::DispatchKeySet(key).raw_repr();
}

uint64_t raw(c10::BackendComponent component) {
    return c10::DispatchKeySet(component).raw_repr();
}

// Bits of functionality keys alone, without the backend that DispatchKeySet(key) adds.
uint64_t functionality(c10::DispatchKey key) {
    constexpr uint64_t backends = (uint64_t(1) << c10::num_backends) - 1;
    return raw(key) & ~backends;
}

} // namespace

void twin_choose(const fl_platform &platform) {
    using c10::DispatchKey;
    Twin chosen;
    chosen.present = platform.twin != FL_TWIN_NONE;
    chosen.is_host = platform.twin != FL_TWIN_CUDA;
    chosen.type = chosen.is_host ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
    chosen.key = chosen.is_host ? DispatchKey::CPU : DispatchKey::CUDA;
    chosen.keys = c10::DispatchKeySet(chosen.key);
    chosen.guard = chosen.is_host ? nullptr : c10::impl::getDeviceGuardImpl(chosen.type);
    chosen.backend =
        chosen.is_host ? c10::BackendComponent::CPUBit : c10::BackendComponent::CUDABit;
    chosen.twin_component = raw(chosen.backend);
    chosen.flagos_component = raw(c10::BackendComponent::PrivateUse1Bit);
    chosen.twin_autocast =
        raw(chosen.is_host ? DispatchKey::AutocastCPU : DispatchKey::AutocastCUDA);
    chosen.flagos_autocast = raw(DispatchKey::AutocastPrivateUse1);
    chosen.special_keys =
        functionality(DispatchKey::Sparse) | functionality(DispatchKey::SparseCsr) |
        functionality(DispatchKey::Quantized) | functionality(DispatchKey::NestedTensor);
    chosen.shadow_keys = functionality(DispatchKey::Dense) | chosen.special_keys |
                         raw(DispatchKey::Conjugate) | raw(DispatchKey::Negative) |
                         raw(DispatchKey::ZeroTensor);
    twin = chosen;
}

} // namespace fl_torch
