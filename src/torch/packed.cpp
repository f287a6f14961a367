// packed.cpp: see packed.h. Each class stands before an object of the twin: kernels, which run on
// shadows, reach it as it is; what it unpacks becomes flagos.
#include "packed.h"

#include "shadow.h"
#include "special.h"

#include <ATen/native/quantized/PackedParams.h>
#include <ATen/native/quantized/cpu/EmbeddingPackedParams.h>

namespace fl_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using WeightAndBias = std::tuple<Tensor, OptionalTensor>;

// With a twin its memory is flagos's; without one it is the host's, which kernels read.
void adopt(ShadowFrame &frame, Tensor &tensor) {
    const c10::Device device(kFlagos);
    if (twin.present) {
        frame.adopt(tensor);
    } else if (tensor.defined()) {
        tensor = is_special(tensor) ? copy_of_special(tensor, device) : tensor.to(device);
    }
}

void adopt(ShadowFrame &frame, OptionalTensor &tensor) {
    if (tensor.has_value()) {
        adopt(frame, *tensor);
    }
}

void adopt(ShadowFrame &frame, WeightAndBias &tensors) {
    adopt(frame, std::get<0>(tensors));
    adopt(frame, std::get<1>(tensors));
}

template <class T>
T adopted(T tensors) {
    ShadowFrame frame;
    adopt(frame, tensors);
    return tensors;
}

class Linear final : public LinearPackedParamsBase {
  public:
    explicit Linear(c10::intrusive_ptr<LinearPackedParamsBase> twin) : twin_(std::move(twin)) {}

    Tensor apply(Tensor input, double scale, int64_t zero_point) override {
        return twin_->apply(std::move(input), scale, zero_point);
    }
    Tensor apply_relu(Tensor input, double scale, int64_t zero_point) override {
        return twin_->apply_relu(std::move(input), scale, zero_point);
    }
    Tensor &apply_out(const Tensor &input, double scale, int64_t zero_point,
                      Tensor &output) override {
        return twin_->apply_out(input, scale, zero_point, output);
    }
    Tensor &apply_relu_out(const Tensor &input, double scale, int64_t zero_point,
                           Tensor &output) override {
        return twin_->apply_relu_out(input, scale, zero_point, output);
    }
    Tensor apply_with_input_q_dq_qweight_dq_output_fp32(Tensor input, double scale,
                                                        int64_t zero_point) override {
        return twin_->apply_with_input_q_dq_qweight_dq_output_fp32(std::move(input), scale,
                                                                   zero_point);
    }
    Tensor apply_with_input_q_dq_qweight_dq_relu_output_fp32(Tensor input, double scale,
                                                             int64_t zero_point) override {
        return twin_->apply_with_input_q_dq_qweight_dq_relu_output_fp32(std::move(input), scale,
                                                                        zero_point);
    }
    Tensor apply_dynamic(Tensor input, bool reduce_range) override {
        return twin_->apply_dynamic(std::move(input), reduce_range);
    }
    Tensor apply_dynamic_relu(Tensor input, bool reduce_range) override {
        return twin_->apply_dynamic_relu(std::move(input), reduce_range);
    }
    Tensor &apply_dynamic_out(const Tensor &input, Tensor &output, bool reduce_range) override {
        return twin_->apply_dynamic_out(input, output, reduce_range);
    }
    Tensor &apply_dynamic_relu_out(const Tensor &input, Tensor &output,
                                   bool reduce_range) override {
        return twin_->apply_dynamic_relu_out(input, output, reduce_range);
    }
    void set_bias(OptionalTensor bias) override {
        twin_->set_bias(std::move(bias));
    }
    WeightAndBias unpack() override {
        return adopted(twin_->unpack());
    }
    OptionalTensor bias() override {
        return adopted(twin_->bias());
    }

  private:
    const c10::intrusive_ptr<LinearPackedParamsBase> twin_;
};

template <int kSpatialDim>
class Conv final : public ConvPackedParamsBase<kSpatialDim> {
  public:
    using Base = ConvPackedParamsBase<kSpatialDim>;
    explicit Conv(c10::intrusive_ptr<Base> twin) : twin_(std::move(twin)) {}

    Tensor apply(const Tensor &input, double scale, int64_t zero_point) override {
        return twin_->apply(input, scale, zero_point);
    }
    Tensor apply_relu(const Tensor &input, double scale, int64_t zero_point) override {
        return twin_->apply_relu(input, scale, zero_point);
    }
    Tensor apply_dynamic(const Tensor &input, bool reduce_range) override {
        return twin_->apply_dynamic(input, reduce_range);
    }
    WeightAndBias unpack() override {
        return adopted(twin_->unpack());
    }
    torch::List<int64_t> stride() const override {
        return twin_->stride();
    }
    torch::List<int64_t> padding() const override {
        return twin_->padding();
    }
    torch::List<int64_t> output_padding() const override {
        return twin_->output_padding();
    }
    torch::List<int64_t> dilation() const override {
        return twin_->dilation();
    }
    int64_t groups() const override {
        return twin_->groups();
    }
    bool transpose() const override {
        return twin_->transpose();
    }

  private:
    const c10::intrusive_ptr<Base> twin_;
};

class Embedding final : public EmbeddingPackedParamsBase {
  public:
    explicit Embedding(c10::intrusive_ptr<EmbeddingPackedParamsBase> twin)
        : twin_(std::move(twin)) {}

    Tensor embeddingbag_byte(const Tensor &indices, const OptionalTensor &offsets, bool pruned,
                             const OptionalTensor &weights, const OptionalTensor &mapping,
                             bool include_last_offset, bool is_embedding) override {
        return twin_->embeddingbag_byte(indices, offsets, pruned, weights, mapping,
                                        include_last_offset, is_embedding);
    }
    Tensor embeddingbag_4bit(const Tensor &indices, const OptionalTensor &offsets, bool pruned,
                             const OptionalTensor &weights, const OptionalTensor &mapping,
                             bool include_last_offset, bool is_embedding) override {
        return twin_->embeddingbag_4bit(indices, offsets, pruned, weights, mapping,
                                        include_last_offset, is_embedding);
    }
    Tensor unpack() override {
        return adopted(twin_->unpack());
    }
    int64_t bit_rate() const override {
        return twin_->bit_rate();
    }
    int64_t version() const override {
        return twin_->version();
    }

  private:
    const c10::intrusive_ptr<EmbeddingPackedParamsBase> twin_;
};

template <class Wrapper, class Base>
bool wrap(c10::ivalue::Object &object) {
    const auto held = object.getSlot(0).toCapsule();
    auto *const twin = dynamic_cast<Base *>(held.get());
    if (twin == nullptr || dynamic_cast<Wrapper *>(twin) != nullptr) {
        return false;
    }
    object.setSlot(0, c10::IValue::make_capsule(c10::make_intrusive<Wrapper>(
                          c10::intrusive_ptr<Base>::reclaim_copy(twin))));
    return true;
}

} // namespace

void adopt_packed(c10::IValue &value) {
    const auto object = value.toObject();
    if (object->slots().size() != 1 || !object->getSlot(0).isCapsule()) {
        return;
    }
    (void)(wrap<Linear, LinearPackedParamsBase>(*object) ||
           wrap<Conv<2>, ConvPackedParamsBase<2>>(*object) ||
           wrap<Conv<3>, ConvPackedParamsBase<3>>(*object) ||
           wrap<Embedding, EmbeddingPackedParamsBase>(*object));
}

} // namespace fl_torch
