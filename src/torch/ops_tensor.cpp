// ops_tensor.cpp: operators that make, move and describe tensors. With a twin the twin's kernels do
// the work on shadows; without one the core's memory and copies do.
#include "ops.h"

#include "allocator.h"
#include "check.h"
#include "core_copy.h"
#include "deferred.h"
#include "errors.h"
#include "infer.h"
#include "late_free.h"
#include "launch.h"
#include "register.h"
#include "shadow.h"
#include "twin_kernel.h"

#include "fl/device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/NamedTensorUtils.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

namespace fl_torch::ops {

namespace {

constexpr auto kTensorKeys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);

// The twin's device for a device argument, whose index is checked: the host twin would take any.
// Without an index device 0, which is always there, is asked for: that fails in a forked child.
std::optional<at::Device> twin_device(const std::optional<at::Device> &device) {
    check(fl_device_check(device.has_value() && device->has_index() ? device->index() : 0));
    return device.has_value() ? to_twin(*device) : at::Device(twin.type);
}

at::Device core_device(const std::optional<at::Device> &device) {
    const fl_device index =
        device.has_value() && device->has_index() ? device->index() : fl_device_current();
    check(fl_device_check(index));
    return at::Device(kFlagos, static_cast<c10::DeviceIndex>(index));
}

void refuse_pinned(const std::optional<bool> &pin_memory) {
    TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

template <class Make>
Tensor adopted(const Make &make) {
    if (C10_UNLIKELY(queue_in_use())) {
        make_room(0); // Whatever is wanted: what it adds to the share is little.
    }
    ShadowFrame frame;
    try {
        Tensor result = make();
        frame.adopt(result);
        return result;
    } catch (...) {
        rethrow_in_user_words("aten::empty");
    }
}

} // namespace

// --- making
// ----------------------------------------------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
    FL_COUNT_CALL("aten::empty.memory_format", FL_ROUTE_OWN);
    refuse_pinned(pin_memory);
    if (twin.present) {
        return adopted([&] {
            return TwinKernel<at::_ops::empty_memory_format>::call(
                size, dtype, layout, twin_device(device), pin_memory, memory_format);
        });
    }
    const c10::DeviceGuard guard(core_device(device));
    const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
    Tensor result = at::detail::empty_generic(
        sizes, &flagos_allocator(), kTensorKeys,
        dtype.value_or(c10::get_default_dtype_as_scalartype()), memory_format);
    return at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()
               ? at::native::fill_empty_deterministic_(result)
               : result;
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
    FL_COUNT_CALL("aten::empty_strided", FL_ROUTE_OWN);
    refuse_pinned(pin_memory);
    if (twin.present) {
        return adopted([&] {
            return TwinKernel<at::_ops::empty_strided>::call(size, stride, dtype, layout,
                                                             twin_device(device), pin_memory);
        });
    }
    const c10::DeviceGuard guard(core_device(device));
    Tensor result = at::detail::empty_strided_generic(
        C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &flagos_allocator(),
        kTensorKeys, dtype.value_or(c10::get_default_dtype_as_scalartype()));
    return at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()
               ? at::native::fill_empty_deterministic_(result)
               : result;
}

// --- moving
// ----------------------------------------------------------------------------------------

namespace {

using DeferredCopy = std::tuple<KeptWritten, KeptTensor>;

// Queues the copy of one plain flagos tensor to another one of its device.
bool queue_copy(const DeferredKind &kind, Tensor &self, const Tensor &source, uint64_t bytes) {
    Capture capture;
    DeferredCopy kept{keep(capture, self), keep(capture, source)};
    if (!capture.is_good() || capture.shares()) {
        return false;
    }
    return queue_task(
        kind, std::move(capture), std::move(kept),
        [](DeferredTask &task) {
            const TaskArguments<DeferredCopy> kept(task);
            at::native::copy_(give(*task.operands, std::get<0>(kept.value)),
                              give(*task.operands, std::get<1>(kept.value)),
                              /*non_blocking=*/false);
        },
        bytes);
}

// The casts that warn must do so at the call.
bool casts_silently(at::ScalarType from, at::ScalarType to) {
    return c10::isComplexType(to) || !c10::isComplexType(from);
}

// The one kind of copy whose operands nobody else can see.
bool defer_copy(Tensor &self, const Tensor &source) {
    static auto *const kind = new DeferredKind("aten::copy_"); // Kept for ever.
    return ShadowFrame::needs_shadow(self) && ShadowFrame::needs_shadow(source) &&
           !self.is_same(source) && casts_silently(source.scalar_type(), self.scalar_type()) &&
           cannot_overlap(self) && at::is_expandable_to(source.sizes(), self.sizes()) &&
           queue_copy(*kind, self, source, 0);
}

// A copy on the same device in the source's own layout, or contiguous where that is asked for.
bool defer_to_copy(Tensor &result, const Tensor &self, std::optional<at::ScalarType> dtype,
                   const std::optional<at::MemoryFormat> &format) {
    static auto *const kind = new DeferredKind("aten::_to_copy"); // Kept for ever.
    const auto wanted = format.value_or(at::MemoryFormat::Preserve);
    const at::ScalarType type = dtype.value_or(self.scalar_type());
    const bool preserve = wanted == at::MemoryFormat::Preserve;
    if (!(preserve ? self.is_non_overlapping_and_dense()
                   : wanted == at::MemoryFormat::Contiguous) ||
        !casts_silently(self.scalar_type(), type) || c10::isQIntType(type)) {
        return false;
    }
    Tensor fresh = new_result(self.sizes(), preserve ? self.strides() : at::IntArrayRef(),
                              self.options().dtype(type));
    if (!queue_copy(*kind, fresh, self, fresh.storage().nbytes())) {
        return false;
    }
    result = std::move(fresh);
    return true;
}

} // namespace

Tensor &copy_(Tensor &self, const Tensor &source, bool non_blocking) {
    FL_COUNT_CALL("aten::copy_", FL_ROUTE_OWN);
    if (C10_UNLIKELY(queue_is_on()) && defer_copy(self, source)) {
        return self;
    }
    if (!twin.present) {
        auto names = at::namedinference::compute_broadcast_outnames(self, source);
        {
            const at::NoNamesGuard unnamed;
            core_copy(self, source, non_blocking);
        }
        at::namedinference::propagate_names_if_nonempty(self, names);
        return self;
    }
    ShadowFrame frame;
    Tensor &shown_self = ShadowFrame::needs_shadow(self) ? *frame.show(self, true) : self;
    const Tensor &shown_source =
        ShadowFrame::needs_shadow(source) ? *frame.show(source, false) : source;
    try {
        at::native::copy_(shown_self, shown_source, non_blocking);
    } catch (...) {
        rethrow_in_user_words("aten::copy_");
    }
    frame.commit_values();
    wait_for_launch("aten::copy_",
                    (self.device().type() == kFlagos ? self : source).device().index());
    return self;
}

Tensor copy_from(const Tensor &self, const Tensor &destination, bool non_blocking) {
    Tensor target = destination;
    return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor &self, const Tensor &destination) {
    Tensor target = destination;
    target.resize_(self.sizes());
    return copy_(target, self, /*non_blocking=*/false);
}

namespace {

// Whether PyTorch's composite would make a result with the operand's own strides and copy into it.
// That is done here without its ways through the dispatcher, unless a profiler watches those.
bool keeps_layout(const Tensor &self, std::optional<at::ScalarType> dtype,
                  const std::optional<at::Layout> &layout, const std::optional<bool> &pin_memory,
                  const std::optional<at::MemoryFormat> &format) {
    return format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve &&
           !layout.has_value() && !pin_memory.value_or(false) && !self.is_quantized() &&
           !c10::isQIntType(dtype.value_or(self.scalar_type())) && !self.has_names() &&
           self.is_non_overlapping_and_dense() && !at::hasCallbacks();
}

} // namespace

Tensor to_copy(const Tensor &self, std::optional<at::ScalarType> dtype,
               std::optional<at::Layout> layout, std::optional<at::Device> device,
               std::optional<bool> pin_memory, bool non_blocking,
               std::optional<at::MemoryFormat> memory_format) {
    FL_COUNT_CALL("aten::_to_copy", FL_ROUTE_OWN);
    const bool stays =
        ShadowFrame::needs_shadow(self) &&
        (!device.has_value() ||
         (device->type() == kFlagos && (!device->has_index() || *device == self.device())));
    if (!twin.present || !stays || self.layout() != at::kStrided) {
        // The composite makes the result on its device and copies into it: one pass of copy_.
        return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking,
                                    memory_format);
    }
    if (Tensor queued; C10_UNLIKELY(queue_is_on()) && !pin_memory.value_or(false) &&
                       layout.value_or(at::kStrided) == at::kStrided &&
                       defer_to_copy(queued, self, dtype, memory_format)) {
        return queued;
    }
    ShadowFrame frame;
    const Tensor &shadow = *frame.show(self, false);
    Tensor result;
    if (keeps_layout(self, dtype, layout, pin_memory, memory_format)) {
        result = TwinKernel<at::_ops::empty_strided>::call(
            self.sym_sizes(), self.sym_strides(), dtype.value_or(self.scalar_type()), std::nullopt,
            shadow.device(), std::nullopt);
        at::native::copy_(result, shadow, non_blocking);
    } else {
        result = at::native::_to_copy(shadow, dtype, layout, std::nullopt, pin_memory, non_blocking,
                                      memory_format);
    }
    frame.adopt(result);
    wait_for_launch("aten::_to_copy", self.device().index());
    return result;
}

Scalar local_scalar_dense(const Tensor &self) {
    FL_COUNT_CALL("aten::_local_scalar_dense", FL_ROUTE_OWN);
    if (!twin.present) {
        return at::_local_scalar_dense(self.to(at::kCPU));
    }
    ShadowFrame frame;
    try {
        return TwinKernel<at::_ops::_local_scalar_dense>::call(*frame.show(self, false));
    } catch (...) {
        rethrow_in_user_words("aten::_local_scalar_dense");
    }
}

// --- storage and metadata
// --------------------------------------------------------------------------

namespace {

// Grow the storage of `impl` if its sizes, strides and offset reach past the end.
void fit_storage(c10::TensorImpl *impl) {
    if (impl->numel() == 0) {
        return;
    }
    const size_t needed = at::detail::computeStorageNbytes(
        impl->sizes(), impl->strides(), impl->itemsize(), impl->storage_offset());
    const c10::Storage &storage = impl->unsafe_storage();
    if (needed > storage.nbytes()) {
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, needed);
    }
}

} // namespace

Tensor &set_storage_offset(Tensor &self, c10::Storage source, c10::SymInt offset,
                           c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    FL_COUNT_CALL("aten::set_.source_Storage_storage_offset", FL_ROUTE_OWN);
    const IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
    const IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(stride);
    const int64_t start = offset.guard_int(__FILE__, __LINE__);
    if (strides.data() != nullptr && strides.size() == sizes.size() && start >= 0) {
        // Raises for strides that no storage can serve, before anything has changed.
        at::detail::computeStorageNbytes(sizes, strides, self.dtype().itemsize(),
                                         static_cast<size_t>(start));
    }
    at::native::checkSetStorage(self, std::move(source), start, sizes, strides);
    c10::TensorImpl *const impl = self.unsafeGetTensorImpl();
    impl->set_storage_offset(start);
    if (strides.data() != nullptr) {
        impl->set_sizes_and_strides(sizes, strides);
    } else {
        impl->set_sizes_contiguous(sizes);
    }
    fit_storage(impl);
    return self;
}

Tensor &set_storage(Tensor &self, c10::Storage source) {
    const int64_t item = static_cast<int64_t>(self.dtype().itemsize());
    TORCH_CHECK(self.layout() == at::kStrided, "set_ with a storage needs a strided tensor");
    TORCH_CHECK(source.nbytes() % static_cast<size_t>(item) == 0, "set_: a storage of ",
                source.nbytes(), " bytes does not hold whole elements of ", item, " bytes");
    const c10::SymInt size[] = {c10::SymInt(static_cast<int64_t>(source.nbytes()) / item)};
    return set_storage_offset(self, std::move(source), 0, size, {});
}

Tensor &set_tensor(Tensor &self, const Tensor &source) {
    if (!self.is_same(source)) {
        set_storage_offset(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(),
                           source.sym_strides());
    }
    return self;
}

Tensor &set_none(Tensor &self) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()),
                         &flagos_allocator(),
                         /*resizable=*/true);
    const c10::SymInt size[] = {c10::SymInt(0)};
    return set_storage_offset(self, std::move(storage), 0, size, {});
}

const Tensor &resize_(const Tensor &self, c10::SymIntArrayRef size,
                      std::optional<at::MemoryFormat> memory_format) {
    FL_COUNT_CALL("aten::resize_", FL_ROUTE_OWN);
    const IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
    TORCH_CHECK(!self.has_names() || self.sizes() == sizes,
                "Cannot resize named tensor with resize_; drop its names first");
    for (const int64_t extent : sizes) {
        TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent, ": ",
                    sizes);
    }
    const int64_t old_nbytes = static_cast<int64_t>(self.storage().nbytes());
    c10::TensorImpl *const impl = self.unsafeGetTensorImpl();
    if (impl->sizes() != sizes) {
        impl->set_sizes_contiguous(sizes);
        fit_storage(impl);
    }
    if (memory_format.has_value()) {
        TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format ",
                    *memory_format);
        impl->empty_tensor_restride(*memory_format);
    }
    if (at::globalContext().deterministicAlgorithms() &&
        at::globalContext().deterministicFillUninitializedMemory()) {
        at::native::fill_resize_deterministic_(self, old_nbytes);
    }
    return self;
}

void record_stream(Tensor &self, c10::Stream stream) {
    FL_COUNT_CALL("aten::record_stream", FL_ROUTE_OWN);
    c10::impl::getDeviceGuardImpl(kFlagos)->recordDataPtrOnStream(self.storage().data_ptr(),
                                                                  stream);
}

// Module.to keeps its Parameters, and with them tied weights and optimisers, when the old and the
// new tensor are of compatible kinds: dense tensors on flagos, the host or the twin.
bool has_compatible_shallow_copy_type(const Tensor &self, const Tensor &from) {
    const auto is_dense = [](const Tensor &tensor) {
        return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested();
    };
    return is_dense(self) && is_dense(from);
}

} // namespace fl_torch::ops
