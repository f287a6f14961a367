// host_operands.h: the host copies of one call's operands, and the way back. Knows no operator and
// no device.
#pragma once

#include "twin.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace fl_torch {

// A kernel that gets these copies must see what it would see natively: the same tensor twice is one
// copy, layouts and lazy bits are the operands' own, and operands that share memory share it here
// too as soon as one of them is written, so that the kernel's checks for overlap hold.
//
// Add all operands first, then `copy`, call, `copy_back`. Until copy_back no operand is touched.
class HostOperands {
  public:
    // Tensors that are no flagos tensors stay as they are. One that may grow, as out= may, can come
    // to lie on whatever is behind it in its storage.
    void add(const at::Tensor &tensor, bool written, bool may_grow);

    void copy();

    const at::Tensor &host_of(const at::Tensor &tensor) const;

    // What the call wrote becomes the operands': values, sizes and strides.
    void copy_back();

    // A result of the call as the caller should see it.
    at::Tensor returned(const at::Tensor &result);

    // Where results go that are no operands; by default the device of the last flagos operand.
    void set_device(c10::Device device) {
        device_ = device;
    }
    c10::Device device() const {
        return device_;
    }
    // Copied so far, both ways.
    uint64_t bytes() const {
        return bytes_;
    }

  private:
    struct Operand {
        at::Tensor original, host;
        bool written;
        bool may_grow;
        at::DimVector sizes, strides; // Of `host`, before the operator ran.

        void show(at::Tensor tensor) {
            host = std::move(tensor);
            sizes = host.sizes();
            strides = host.strides();
        }
        // Whether the operator gave it another size or layout, as out= may get.
        bool is_relaid() const {
            return host.sizes() != c10::IntArrayRef(sizes) ||
                   host.strides() != c10::IntArrayRef(strides);
        }
    };
    // Bytes of one storage, which several operands may lie in.
    struct Image {
        const void *storage;
        std::vector<size_t> members;
    };

    std::vector<Image> apart(const std::vector<Image> &images) const;
    void copy_image(const Image &image);
    void copy_alone(Operand &operand);

    std::vector<Operand> operands_;
    std::vector<const void *> given_; // Tensors of other devices among the arguments.
    c10::Device device_ = c10::Device(kFlagos, 0);
    uint64_t bytes_ = 0;
};

} // namespace fl_torch
