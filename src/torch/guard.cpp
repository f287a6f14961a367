// guard.cpp: c10::impl::DeviceGuardImplInterface for flagos.
//
// Two of them, one of which is registered: where the twin is an accelerator, its guard does the
// work, so that the current device and the current stream are one truth for flagos and the twin;
// elsewhere the core's runtime does. Knows nothing of operators.
#include "guard.h"

#include "check.h"
#include "deferred.h"
#include "late_free.h"
#include "twin.h"

#include "fl/device.h"
#include "fl/memory.h"
#include "fl/stream.h"

#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fl_torch {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

void require_flagos(Device device) {
    TORCH_CHECK(device.type() == kFlagos, "expected a flagos device, got ", device);
}

// Forwards to the twin's guard with devices and streams translated. Every contract is the twin's.
struct TwinGuard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override {
        return kFlagos;
    }
    Device exchangeDevice(Device device) const override {
        return to_flagos(twin.guard->exchangeDevice(to_twin(device)));
    }
    Device getDevice() const override {
        return to_flagos(twin.guard->getDevice());
    }
    // PyTorch's engine sets the device of every guard there is before each node of a backward pass,
    // so the twin's has done so when this one is asked. A device that is alone is current anyway.
    void setDevice(Device device) const override {
        static const bool is_alone = fl_device_count() == 1;
        if (device.index() != 0 || !is_alone || C10_UNLIKELY(fl_device_in_bad_fork())) {
            twin.guard->setDevice(to_twin(device));
        }
    }
    void uncheckedSetDevice(Device device) const noexcept override {
        twin.guard->uncheckedSetDevice(to_twin(device));
    }
    Stream getStream(Device device) const override {
        return to_flagos(twin.guard->getStream(to_twin(device)));
    }
    Stream getDefaultStream(Device device) const override {
        return to_flagos(twin.guard->getDefaultStream(to_twin(device)));
    }
    Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
        return to_flagos(twin.guard->getStreamFromGlobalPool(to_twin(device), high_priority));
    }
    Stream getNewStream(Device device, int priority) const override {
        return to_flagos(twin.guard->getNewStream(to_twin(device), priority));
    }
    Stream exchangeStream(Stream stream) const override {
        return to_flagos(twin.guard->exchangeStream(to_twin(stream)));
    }
    void *getStreamNativeHandle(const Stream stream) const override {
        return twin.guard->getStreamNativeHandle(to_twin(stream));
    }
    void destroyEvent(void *event, const DeviceIndex index) const noexcept override {
        twin.guard->destroyEvent(event, index);
    }
    void record(void **event, const Stream &stream, const DeviceIndex index,
                const c10::EventFlag flag) const override {
        twin.guard->record(event, to_twin(stream), index, flag);
    }
    void block(void *event, const Stream &stream) const override {
        twin.guard->block(event, to_twin(stream));
    }
    bool queryEvent(void *event) const override {
        return twin.guard->queryEvent(event);
    }
    DeviceIndex deviceCount() const noexcept override {
        return twin.guard->deviceCount();
    }
    // PyTorch's guard of CUDA knows no answer and raises. Every dtype: what has no kernel says so.
    c10::DeviceCapability getDeviceCapability(Device device) const override {
        try {
            return twin.guard->getDeviceCapability(to_twin(device));
        } catch (const c10::Error &) {
            return c10::DeviceCapability();
        }
    }
    bool queryStream(const Stream &stream) const override {
        return twin.guard->queryStream(to_twin(stream));
    }
    void synchronizeStream(const Stream &stream) const override {
        twin.guard->synchronizeStream(to_twin(stream));
    }
    void synchronizeEvent(void *event) const override {
        twin.guard->synchronizeEvent(event);
    }
    void synchronizeDevice(const DeviceIndex index) const override {
        twin.guard->synchronizeDevice(index);
    }
    void recordDataPtrOnStream(const c10::DataPtr &pointer, const Stream &stream) const override {
        const AsTwinMade own(pointer, to_twin(stream.device()));
        twin.guard->recordDataPtrOnStream(own.get(), to_twin(stream));
    }
    double elapsedTime(void *first, void *second, const DeviceIndex index) const override {
        return twin.guard->elapsedTime(first, second, index);
    }
};

// Over the core's runtime: the host itself, the simulated device and chips without a twin.
struct CoreGuard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override {
        return kFlagos;
    }
    Device exchangeDevice(Device device) const override {
        const Device previous = getDevice();
        if (previous.index() != device.index()) {
            setDevice(device);
        }
        return previous;
    }
    Device getDevice() const override {
        return Device(kFlagos, static_cast<DeviceIndex>(fl_device_current()));
    }
    void setDevice(Device device) const override {
        require_flagos(device);
        check(fl_device_set_current(device.index()));
    }
    // Called from destructors: a failure is left to the next call that can report it.
    void uncheckedSetDevice(Device device) const noexcept override {
        (void)fl_device_set_current(device.index());
    }
    Stream getStream(Device device) const override {
        const fl_device index = resolve(device);
        return make(index, fl_stream_current(index));
    }
    Stream getDefaultStream(Device device) const override {
        return make(resolve(device), FL_STREAM_DEFAULT);
    }
    Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
        const fl_device index = resolve(device);
        fl_stream stream = FL_STREAM_DEFAULT;
        check(fl_stream_from_pool(index, high_priority ? -1 : 0, &stream));
        return make(index, stream);
    }
    // A stream of the pool, as with CUDA: c10 has no call that would end a stream's life.
    Stream getNewStream(Device device, int priority) const override {
        const fl_device index = resolve(device);
        fl_stream stream = FL_STREAM_DEFAULT;
        check(fl_stream_from_pool(index, priority, &stream));
        return make(index, stream);
    }
    Stream exchangeStream(Stream stream) const override {
        const fl_device index = resolve(stream.device());
        const Stream previous = make(index, fl_stream_current(index));
        check(fl_stream_set_current(index, stream.id()));
        return previous;
    }
    void *getStreamNativeHandle(const Stream stream) const override {
        fl_native_stream native = nullptr;
        check(fl_stream_native(resolve(stream.device()), stream.id(), &native));
        return native;
    }
    void destroyEvent(void *event, const DeviceIndex) const noexcept override {
        fl_event_destroy(static_cast<fl_event *>(event));
    }
    // Creates the event on its first record; recording again moves it.
    void record(void **event, const Stream &stream, const DeviceIndex index,
                const c10::EventFlag flag) const override {
        const fl_device device = resolve(stream.device());
        TORCH_CHECK(index == -1 || index == device, "Event device index ", int(index),
                    " does not match recording stream's device index ", device, ".");
        auto *known = static_cast<fl_event *>(*event);
        if (known == nullptr) {
            const uint32_t flags =
                flag == c10::EventFlag::PYTORCH_DEFAULT ? 0u : uint32_t(FL_EVENT_TIMING);
            check(fl_event_create(device, flags, &known));
            *event = known;
        }
        check(fl_event_record(known, device, stream.id()));
    }
    void block(void *event, const Stream &stream) const override {
        if (event != nullptr) {
            check(fl_event_block(static_cast<fl_event *>(event), resolve(stream.device()),
                                 stream.id()));
        }
    }
    bool queryEvent(void *event) const override {
        return event == nullptr || ready(fl_event_query(static_cast<fl_event *>(event)));
    }
    DeviceIndex deviceCount() const noexcept override {
        return static_cast<DeviceIndex>(fl_device_count());
    }
    c10::DeviceCapability getDeviceCapability(Device) const override {
        return c10::DeviceCapability(); // Every dtype: what is missing here is served by the CPU.
    }
    bool queryStream(const Stream &stream) const override {
        return ready(fl_stream_query(resolve(stream.device()), stream.id()));
    }
    void synchronizeStream(const Stream &stream) const override {
        check(fl_stream_synchronize(resolve(stream.device()), stream.id()));
    }
    void synchronizeEvent(void *event) const override {
        if (event != nullptr) {
            check(fl_event_synchronize(static_cast<fl_event *>(event)));
        }
    }
    void synchronizeDevice(const DeviceIndex index) const override {
        check(fl_device_synchronize(index < 0 ? fl_device_current() : index));
    }
    void recordDataPtrOnStream(const c10::DataPtr &pointer, const Stream &stream) const override {
        if (!twin.present && pointer.get() != nullptr) {
            check(fl_memory_record_stream(pointer.get(), stream.id()));
        }
    }
    double elapsedTime(void *first, void *second, const DeviceIndex) const override {
        TORCH_CHECK(first != nullptr && second != nullptr,
                    "Both events must be recorded before calculating elapsed time.");
        double milliseconds = 0;
        check(fl_event_elapsed_ms(static_cast<fl_event *>(first), static_cast<fl_event *>(second),
                                  &milliseconds));
        return milliseconds;
    }

  private:
    static fl_device resolve(Device device) {
        require_flagos(device);
        const fl_device index = device.index() < 0 ? fl_device_current() : device.index();
        check(fl_device_check(index));
        return index;
    }
    static Stream make(fl_device index, fl_stream stream) {
        return Stream(Stream::UNSAFE, Device(kFlagos, static_cast<DeviceIndex>(index)), stream);
    }
    static bool ready(fl_status status) {
        if (status == FL_NOT_READY) {
            return false;
        }
        check(status);
        return true;
    }
};

// In order with what is queued for launch: records and waits are queued themselves, questions and
// handles wait for the queue. Where the queue was never used every call is the inner guard's.
template <class Inner>
struct Ordered final : Inner {
    void record(void **event, const Stream &stream, const DeviceIndex index,
                const c10::EventFlag flag) const override {
        if (!fl_queue_has_work(stream.device_index())) {
            return Inner::record(event, stream, index, flag);
        }
        if (*event == nullptr) {
            // Makes the event, which has to be there when this returns; the record that counts is
            // the queued one.
            Inner::record(event, stream, index, flag);
        }
        void *const made = *event;
        if (!queue_call("record of an event", stream.device_index(),
                        [this, made, stream, index, flag] {
                            void *known = made;
                            Inner::record(&known, stream, index, flag);
                        })) {
            drain_queue();
            Inner::record(event, stream, index, flag);
        }
    }
    void block(void *event, const Stream &stream) const override {
        // The event may have been recorded through another device's queue.
        const DeviceIndex device = stream.device_index();
        const bool alone = only_queue_with_work(device);
        if (!alone || !fl_queue_has_work(device) ||
            !queue_call("wait of a stream", device,
                        [this, event, stream] { Inner::block(event, stream); })) {
            drain_queue();
            Inner::block(event, stream);
        }
    }
    void destroyEvent(void *event, const DeviceIndex index) const noexcept override {
        // Behind the records and waits that are queued for it; another device's queue may have
        // some.
        const DeviceIndex device = std::max<DeviceIndex>(index, 0);
        if (!fl_queue_has_work(device) || !only_queue_with_work(device) ||
            !queue_call("end of an event", device,
                        [this, event, index] { Inner::destroyEvent(event, index); })) {
            drain_quietly();
            Inner::destroyEvent(event, index);
        }
    }
    bool queryEvent(void *event) const override {
        drain_queue();
        return Inner::queryEvent(event);
    }
    bool queryStream(const Stream &stream) const override {
        drain_queue();
        return Inner::queryStream(stream);
    }
    void synchronizeStream(const Stream &stream) const override {
        drain_queue();
        Inner::synchronizeStream(stream);
    }
    void synchronizeEvent(void *event) const override {
        drain_queue();
        Inner::synchronizeEvent(event);
    }
    void synchronizeDevice(const DeviceIndex index) const override {
        drain_queue();
        Inner::synchronizeDevice(index);
    }
    double elapsedTime(void *first, void *second, const DeviceIndex index) const override {
        drain_queue();
        return Inner::elapsedTime(first, second, index);
    }
    void *getStreamNativeHandle(const Stream stream) const override {
        drain_queue();
        return Inner::getStreamNativeHandle(stream);
    }
    void recordDataPtrOnStream(const c10::DataPtr &pointer, const Stream &stream) const override {
        drain_queue();
        if (queue_in_use()) {
            keep_from_results(pointer, stream.device_index());
        }
        Inner::recordDataPtrOnStream(pointer, stream);
    }

  private:
    bool only_queue_with_work(DeviceIndex device) const {
        for (DeviceIndex other = 0; other < this->deviceCount(); other++) {
            if (other != device && fl_queue_has_work(other)) {
                return false;
            }
        }
        return true;
    }
};

} // namespace

void register_guard() {
    // c10 keeps a guard for ever; so do we.
    const c10::impl::DeviceGuardImplInterface *guard = nullptr;
    if (twin.is_host) {
        guard = new Ordered<CoreGuard>;
    } else {
        guard = new Ordered<TwinGuard>;
    }
    const c10::impl::DeviceGuardImplRegistrar registrar(kFlagos, guard);
}

} // namespace fl_torch
