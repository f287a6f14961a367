// host_operands.cpp: see host_operands.h.
#include "host_operands.h"

#include "check.h"
#include "shadow.h"
#include "special.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/NamedTensor.h>

#include <algorithm>

namespace fl_torch {

namespace {

// The tensor behind lazy conjugation and negation: what its memory holds.
at::Tensor physical(const at::Tensor &tensor) {
    at::Tensor result = tensor;
    if (result.is_conj()) {
        result = at::_conj(result);
    }
    if (result.is_neg()) {
        result = at::_neg_view(result);
    }
    return result;
}

// `host` with what `original` says about itself beside its memory.
at::Tensor dressed(at::Tensor host, const at::Tensor &original) {
    if (original.is_conj()) {
        host = at::_conj(host);
    }
    if (original.is_neg()) {
        host = at::_neg_view(host);
    }
    if (original.unsafeGetTensorImpl()->is_wrapped_number()) {
        host.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    copy_names(*original.unsafeGetTensorImpl(), *host.unsafeGetTensorImpl());
    return host;
}

const void *storage_of(const at::Tensor &tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// A write to it can meet itself.
bool may_overlap_itself(const at::Tensor &tensor) {
    return tensor.numel() > 1 && at::has_internal_overlap(tensor) != at::MemOverlap::No;
}

// `tensor` once, where expand shows its elements many times.
at::Tensor without_repeats(const at::Tensor &tensor) {
    at::DimVector sizes(tensor.sizes());
    bool repeats = false;
    for (size_t i = 0; i < sizes.size(); i++) {
        if (tensor.stride(static_cast<int64_t>(i)) == 0 && sizes[i] > 1) {
            sizes[i] = 1;
            repeats = true;
        }
    }
    return repeats ? tensor.as_strided(sizes, tensor.strides()) : tensor;
}

// First and last byte of the storage that the elements of a tensor reach.
std::pair<int64_t, int64_t> span_of(const at::Tensor &tensor) {
    const int64_t item = static_cast<int64_t>(tensor.itemsize());
    const int64_t begin = tensor.storage_offset() * item;
    const auto bytes =
        at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    return {begin, begin + static_cast<int64_t>(bytes)};
}

// These bytes of the storage of `tensor`, as a tensor on its device.
at::Tensor bytes_of(const at::Tensor &tensor, int64_t begin, int64_t end) {
    return at::empty({0}, tensor.options().dtype(at::kByte))
        .set_(tensor.storage(), begin, {end - begin}, {1});
}

} // namespace

void HostOperands::add(const at::Tensor &tensor, bool written, bool may_grow) {
    if (!ShadowFrame::needs_shadow(tensor)) {
        given_.push_back(tensor.unsafeGetTensorImpl());
        return;
    }
    if (!is_special(tensor)) {
        require_memory(*tensor.unsafeGetTensorImpl());
    }
    device_ = tensor.device();
    for (Operand &operand : operands_) {
        if (operand.original.is_same(tensor)) {
            operand.written |= written;
            operand.may_grow |= may_grow;
            return;
        }
    }
    operands_.push_back({tensor, at::Tensor(), written, may_grow, {}, {}});
}

const at::Tensor &HostOperands::host_of(const at::Tensor &tensor) const {
    for (const Operand &operand : operands_) {
        if (operand.original.is_same(tensor)) {
            return operand.host;
        }
    }
    return tensor;
}

void HostOperands::copy() {
    std::vector<Image> images;
    for (size_t i = 0; i < operands_.size(); i++) {
        const void *const storage = storage_of(operands_[i].original);
        const auto found = std::find_if(images.begin(), images.end(), [&](const Image &image) {
            return image.storage == storage && storage != nullptr;
        });
        if (is_special(operands_[i].original)) {
            const at::Tensor &original = operands_[i].original;
            operands_[i].host = copy_of_special(original, at::kCPU);
            bytes_ += nbytes_of_special(original);
        } else if (found == images.end()) {
            images.push_back({storage, {i}});
        } else {
            found->members.push_back(i);
        }
    }
    for (const Image &image : apart(images)) {
        bool shared = false, written = false, empty = true;
        for (const size_t member : image.members) {
            const Operand &operand = operands_[member];
            written |= operand.written;
            shared |= operand.written && may_overlap_itself(operand.original);
            empty &= operand.original.numel() == 0;
        }
        shared |= written && image.members.size() > 1;
        if (shared && !empty && image.storage != nullptr) {
            copy_image(image);
        } else {
            for (const size_t member : image.members) {
                copy_alone(operands_[member]);
            }
        }
    }
}

// The images, divided where no byte is reached from both sides: what lies between two operands at
// the ends of one storage need not be copied.
std::vector<HostOperands::Image> HostOperands::apart(const std::vector<Image> &images) const {
    std::vector<Image> result;
    for (const Image &image : images) {
        std::vector<std::pair<std::pair<int64_t, int64_t>, size_t>> spans;
        for (const size_t member : image.members) {
            auto span = span_of(operands_[member].original);
            span.second = std::max(span.second, span.first + 1); // An empty one has a place too.
            if (operands_[member].may_grow) {
                span.second = INT64_MAX;
            }
            spans.emplace_back(span, member);
        }
        std::sort(spans.begin(), spans.end());
        int64_t end = INT64_MIN;
        for (const auto &[span, member] : spans) {
            if (span.first >= end) {
                result.push_back({image.storage, {}});
            }
            end = std::max(end, span.second);
            result.back().members.push_back(member);
        }
    }
    return result;
}

// One copy of all that the members reach, and views of it in their layouts.
void HostOperands::copy_image(const Image &image) {
    // The start keeps every dtype's alignment: offsets are counted in elements.
    constexpr int64_t kAlignment = 16;
    int64_t begin = INT64_MAX, end = 0;
    for (const size_t member : image.members) {
        const auto [first, last] = span_of(operands_[member].original);
        begin = std::min(begin, first / kAlignment * kAlignment);
        end = std::max(end, last);
    }
    const at::Tensor bytes =
        at::_to_copy(bytes_of(operands_[image.members[0]].original, begin, end),
                     at::TensorOptions().device(at::kCPU));
    bytes_ += bytes.nbytes();
    for (const size_t member : image.members) {
        Operand &operand = operands_[member];
        const at::Tensor &original = operand.original;
        const int64_t item = static_cast<int64_t>(original.itemsize());
        const int64_t offset = std::max<int64_t>(0, original.storage_offset() - begin / item);
        at::Tensor host = at::empty({0}, original.options().device(at::kCPU))
                              .set_(bytes.storage(), original.numel() == 0 ? 0 : offset,
                                    original.sizes(), original.strides());
        operand.show(dressed(std::move(host), original));
    }
}

// Strides are kept, for operators choose the layout of their result by them; of a tensor that does
// not fill its memory, their order. What is expanded is expanded again.
void HostOperands::copy_alone(Operand &operand) {
    const at::Tensor &original = operand.original;
    if (original._is_zerotensor()) {
        operand.host =
            at::_efficientzerotensor(original.sizes(), original.options().device(at::kCPU));
        return;
    }
    const at::NoNamesGuard unnamed; // A copy of names is what `dressed` gives.
    const at::Tensor source = without_repeats(physical(original));
    bytes_ += source.nbytes();
    at::Tensor host = at::empty_like(source, at::TensorOptions().device(at::kCPU));
    host.copy_(source);
    operand.show(dressed(host.expand(original.sizes()), original));
}

void HostOperands::copy_back() {
    for (Operand &operand : operands_) {
        if (!operand.written) {
            continue;
        }
        if (is_special(operand.original)) {
            bytes_ += nbytes_of_special(operand.host);
            assign_special(operand.original, operand.host);
            continue;
        }
        const at::NoNamesGuard unnamed;
        copy_lazy_bits(*operand.host.unsafeGetTensorImpl(),
                       *operand.original.unsafeGetTensorImpl());
        at::Tensor target = physical(operand.original);
        const at::Tensor host = physical(operand.host);
        if (operand.is_relaid()) {
            operand.original.resize_(host.sizes());
            if (operand.original.strides() != host.strides() &&
                host.is_non_overlapping_and_dense()) {
                operand.original.as_strided_(host.sizes(), host.strides());
            }
            target = physical(operand.original);
        }
        bytes_ += host.nbytes();
        if (may_overlap_itself(target)) {
            // Every element of the memory once; what lies between them is the operand's own.
            const auto [begin, end] = span_of(target);
            const auto [from, to] = span_of(host);
            bytes_of(target, begin, end).copy_(bytes_of(host, from, to));
        } else {
            target.copy_(host);
        }
        copy_names(*operand.host.unsafeGetTensorImpl(), *operand.original.unsafeGetTensorImpl());
    }
}

at::Tensor HostOperands::returned(const at::Tensor &result) {
    if (!result.defined() || !result.device().is_cpu()) {
        return result;
    }
    for (const Operand &operand : operands_) {
        if (operand.host.is_same(result)) {
            return operand.original;
        }
    }
    if (std::find(given_.begin(), given_.end(), result.unsafeGetTensorImpl()) != given_.end()) {
        return result;
    }
    if (is_special(result)) {
        bytes_ += nbytes_of_special(result);
        return copy_of_special(result, device_);
    }
    bytes_ += result.nbytes();
    const at::NoNamesGuard unnamed;
    const at::Tensor source = physical(result);
    const auto options = result.options().device(device_);
    at::Tensor device = source.is_non_overlapping_and_dense()
                            ? at::empty_strided(source.sizes(), source.strides(), options)
                            : at::empty(source.sizes(), options);
    device.copy_(source);
    if (result.is_conj()) {
        device = at::_conj(device);
    }
    if (result.is_neg()) {
        device = at::_neg_view(device);
    }
    copy_names(*result.unsafeGetTensorImpl(), *device.unsafeGetTensorImpl());
    return device;
}

} // namespace fl_torch
