// generator.cpp: a flagos generator is an object of its own that wraps one of the twin's kind and
// draws the twin's numbers. On an accelerator twin the default generators are the twin's defaults,
// for its kernels draw from those where an operator names none; on the host they are our own, or a
// host draw between two device draws would move the device's sequence.
#include "generator.h"

#include "check.h"
#include "twin.h"

#include "fl/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>

namespace fl_torch {

namespace {

class FlagosGenerator final : public c10::GeneratorImpl {
  public:
    FlagosGenerator(c10::Device device, at::Generator inner)
        : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
          inner_(std::move(inner)) {}

    static c10::DeviceType device_type() {
        return kFlagos;
    }
    const at::Generator &inner() const {
        return inner_;
    }
    void set_current_seed(uint64_t seed) override {
        const std::lock_guard<std::mutex> lock(inner_.mutex());
        inner_.set_current_seed(seed);
    }
    uint64_t current_seed() const override {
        return inner_.current_seed();
    }
    uint64_t seed() override {
        const std::lock_guard<std::mutex> lock(inner_.mutex());
        return inner_.unsafeGetGeneratorImpl()->seed();
    }
    // The host's generator counts no draws beside its state. Pickling asks every device's for that
    // number, and hands it back.
    void set_offset(uint64_t offset) override {
        if (inner_.device().is_cpu()) {
            TORCH_CHECK_VALUE(offset == 0, "a generator of ", device_,
                              " has no offset but 0 on this "
                              "platform, where its state is all there is: use set_state");
        } else {
            inner_.set_offset(offset);
        }
    }
    uint64_t get_offset() const override {
        return inner_.device().is_cpu() ? 0 : inner_.unsafeGetGeneratorImpl()->get_offset();
    }
    void set_state(const c10::TensorImpl &state) override {
        const std::lock_guard<std::mutex> lock(inner_.mutex());
        if (inner_.device().is_cpu()) {
            at::detail::check_rng_state(state);
            const int64_t size = inner_.unsafeGetGeneratorImpl()->get_state()->numel();
            TORCH_CHECK(state.numel() == size, "RNG state is wrong size: a generator of ", device_,
                        " has one of ", size, " bytes on this platform, got ", state.numel());
        }
        inner_.unsafeGetGeneratorImpl()->set_state(state);
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        const std::lock_guard<std::mutex> lock(inner_.mutex());
        return inner_.unsafeGetGeneratorImpl()->get_state();
    }
    void graphsafe_set_state(const c10::intrusive_ptr<GeneratorImpl> &state) override {
        auto *other = dynamic_cast<FlagosGenerator *>(state.get());
        TORCH_CHECK(other != nullptr,
                    "graphsafe_set_state expects the state of a flagos generator");
        inner_.unsafeGetGeneratorImpl()->graphsafe_set_state(other->inner_.getIntrusivePtr());
    }
    c10::intrusive_ptr<GeneratorImpl> graphsafe_get_state() const override {
        return c10::make_intrusive<FlagosGenerator>(device_, inner_.graphsafe_get_state());
    }

  private:
    FlagosGenerator *clone_impl() const override {
        const std::lock_guard<std::mutex> lock(inner_.mutex());
        return new FlagosGenerator(device_, inner_.clone());
    }

    // Generator's accessors are not const, though they do not change which generator it is.
    mutable at::Generator inner_;
};

c10::DeviceIndex resolve(c10::DeviceIndex index) {
    const fl_device device = index < 0 ? fl_device_current() : index;
    check(fl_device_check(device));
    return static_cast<c10::DeviceIndex>(device);
}

const at::AcceleratorHooksInterface &twin_hooks() {
    return at::globalContext().getAcceleratorHooksInterface(twin.type);
}

at::Generator wrap(c10::DeviceIndex index, at::Generator inner) {
    return at::make_generator<FlagosGenerator>(c10::Device(kFlagos, index), std::move(inner));
}

} // namespace

at::Generator new_generator(c10::DeviceIndex index) {
    index = resolve(index);
    return wrap(index, twin.is_host ? at::Generator(at::detail::createCPUGenerator())
                                    : twin_hooks().getNewGenerator(index));
}

const at::Generator &default_generator(c10::DeviceIndex index) {
    // Leaked on purpose: generators are asked for while the process ends.
    static auto *const generators = new at::Generator[FL_DEVICE_MAX];
    static auto *const once = new std::once_flag[FL_DEVICE_MAX];
    index = resolve(index);
    std::call_once(once[index], [index] {
        at::Generator inner;
        if (twin.is_host) {
            // Seeded like the host's own default: at random unless torch.manual_seed comes first.
            inner = at::Generator(
                at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom()));
        } else {
            inner = at::globalContext().defaultGenerator(c10::Device(twin.type, index));
        }
        generators[index] = wrap(index, std::move(inner));
    });
    return generators[index];
}

namespace {

// What is inside the generator that the caller named; nothing where none was named.
std::optional<at::Generator> inside(const std::optional<at::Generator> &generator) {
    if (!generator.has_value() || !generator->defined()) {
        return std::nullopt;
    }
    TORCH_CHECK(generator->device().type() == kFlagos,
                "Expected a 'flagos' device type for generator but found '",
                generator->device().type(), "'");
    return static_cast<const FlagosGenerator *>(generator->unsafeGetGeneratorImpl())->inner();
}

} // namespace

std::optional<at::Generator> to_twin(const std::optional<at::Generator> &generator,
                                     c10::DeviceIndex index) {
    std::optional<at::Generator> inner = inside(generator);
    if (inner.has_value() || !twin.is_host) {
        return inner; // Where none was named the accelerator's default is ours.
    }
    return inside(default_generator(index));
}

std::optional<at::Generator> to_host(const std::optional<at::Generator> &generator,
                                     c10::DeviceIndex index) {
    if (twin.is_host) {
        return to_twin(generator, index);
    }
    std::optional<at::Generator> device = inside(generator);
    if (!device.has_value()) {
        device = inside(default_generator(index));
    }
    constexpr uint64_t kDraw = 4; // Offsets of the accelerator's generators count in fours.
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15; // Spreads neighbouring offsets over all seeds.
    const std::lock_guard<std::mutex> lock(device->mutex());
    const uint64_t offset = device->unsafeGetGeneratorImpl()->get_offset();
    device->set_offset(offset + kDraw);
    return at::Generator(
        at::detail::createCPUGenerator(device->current_seed() ^ (offset / kDraw * kOdd)));
}

} // namespace fl_torch
