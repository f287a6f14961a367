// ops_rnn.cpp: see ops_rnn.h. The fused cells are composed of routed operators, in the precision in
// which CUDA's kernels compute: float for half and bfloat16.
#include "ops_rnn.h"

#include "errors.h"
#include "register.h"
#include "shadow.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace fl_torch::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool has(const OptionalTensor &tensor) {
    return tensor.has_value() && tensor->defined();
}

Tensor widened(const Tensor &tensor) {
    return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

void check_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &hidden,
                const OptionalTensor &input_bias, const OptionalTensor &hidden_bias,
                int64_t gates) {
    TORCH_CHECK(input_gates.dim() == 2 && input_gates.size(1) % gates == 0,
                "expected gates of size [batch, ", gates, " * hidden] but got ",
                input_gates.sizes());
    TORCH_CHECK(input_gates.sizes() == hidden_gates.sizes(),
                "gates of the input and of the hidden state differ: ", input_gates.sizes(), " and ",
                hidden_gates.sizes());
    TORCH_CHECK(hidden.dim() == 2 && hidden.size(0) == input_gates.size(0) &&
                    hidden.size(1) * gates == input_gates.size(1),
                "a hidden state of size ", hidden.sizes(), " does not fit gates of size ",
                input_gates.sizes());
    TORCH_CHECK(has(input_bias) == has(hidden_bias),
                "a cell has both biases or none, but got one of them");
    for (const OptionalTensor *bias : {&input_bias, &hidden_bias}) {
        TORCH_CHECK(!has(*bias) || ((*bias)->dim() == 1 && (*bias)->size(0) == input_gates.size(1)),
                    "a bias does not fit gates of size ", input_gates.sizes());
    }
}

Tensor with_bias(const Tensor &gates, const OptionalTensor &bias) {
    const Tensor wide = widened(gates);
    return has(bias) ? wide + widened(*bias) : wide;
}

const Tensor &shown(ShadowFrame &frame, const Tensor &tensor) {
    return ShadowFrame::needs_shadow(tensor) ? *frame.show(tensor, false) : tensor;
}

const OptionalTensor &shown(ShadowFrame &frame, const OptionalTensor &tensor) {
    return has(tensor) && ShadowFrame::needs_shadow(*tensor) ? frame.show(*tensor, false) : tensor;
}

Tensor derivative_of_sigmoid(const Tensor &activated) {
    return activated * (1 - activated);
}

Tensor derivative_of_tanh(const Tensor &activated) {
    return 1 - activated * activated;
}

} // namespace

std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell(const Tensor &input_gates,
                                                   const Tensor &hidden_gates, const Tensor &cx,
                                                   const OptionalTensor &input_bias,
                                                   const OptionalTensor &hidden_bias) {
    FL_COUNT_CALL("aten::_thnn_fused_lstm_cell", FL_ROUTE_OWN);
    check_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, 4);
    const auto type = input_gates.scalar_type();
    const auto gates =
        (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
    const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid();
    const Tensor candidate = gates[2].tanh(), out = gates[3].sigmoid();
    const Tensor cy = forget * widened(cx) + in * candidate;
    return {(out * cy.tanh()).to(type), cy.to(type),
            at::cat({in, forget, candidate, out}, 1).to(type)};
}

std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell_backward(const OptionalTensor &grad_hy,
                                                            const OptionalTensor &grad_cy,
                                                            const Tensor &cx, const Tensor &cy,
                                                            const Tensor &workspace,
                                                            bool has_bias) {
    FL_COUNT_CALL("aten::_thnn_fused_lstm_cell_backward_impl", FL_ROUTE_OWN);
    if (!has(grad_hy) && !has(grad_cy)) {
        return {};
    }
    const auto type = workspace.scalar_type();
    const auto gates = widened(workspace).chunk(4, 1);
    const Tensor &in = gates[0], &forget = gates[1], &candidate = gates[2], &out = gates[3];
    const Tensor cell = widened(cy).tanh();
    const Tensor grad_h = has(grad_hy) ? widened(*grad_hy) : at::zeros_like(cell);
    Tensor grad_c = grad_h * out * derivative_of_tanh(cell);
    if (has(grad_cy)) {
        grad_c = grad_c + widened(*grad_cy);
    }
    const Tensor grad_gates = at::cat({grad_c * candidate * derivative_of_sigmoid(in),
                                       grad_c * widened(cx) * derivative_of_sigmoid(forget),
                                       grad_c * in * derivative_of_tanh(candidate),
                                       grad_h * cell * derivative_of_sigmoid(out)},
                                      1)
                                  .to(type);
    return {grad_gates, (grad_c * forget).to(type), has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> fused_gru_cell(const Tensor &input_gates, const Tensor &hidden_gates,
                                          const Tensor &hx, const OptionalTensor &input_bias,
                                          const OptionalTensor &hidden_bias) {
    FL_COUNT_CALL("aten::_thnn_fused_gru_cell", FL_ROUTE_OWN);
    check_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, 3);
    const auto type = input_gates.scalar_type();
    const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
    const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
    const Tensor hidden = widened(hx);
    const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
    const Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
    const Tensor candidate = (from_input[2] + reset * from_hidden[2]).tanh();
    const Tensor hy = candidate + update * (hidden - candidate);
    return {hy.to(type), at::cat({reset, update, candidate, hidden, from_hidden[2]}, 1).to(type)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>
fused_gru_cell_backward(const Tensor &grad_hy, const Tensor &workspace, bool has_bias) {
    FL_COUNT_CALL("aten::_thnn_fused_gru_cell_backward", FL_ROUTE_OWN);
    const auto type = workspace.scalar_type();
    const auto saved = widened(workspace).chunk(5, 1);
    const Tensor &reset = saved[0], &update = saved[1], &candidate = saved[2];
    const Tensor &hidden = saved[3], &from_hidden = saved[4];
    const Tensor grad = widened(grad_hy);
    const Tensor grad_candidate = grad * (1 - update) * derivative_of_tanh(candidate);
    const Tensor grad_reset = grad_candidate * from_hidden * derivative_of_sigmoid(reset);
    const Tensor grad_update = grad * (hidden - candidate) * derivative_of_sigmoid(update);
    const Tensor grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1).to(type);
    const Tensor grad_hidden =
        at::cat({grad_reset, grad_update, grad_candidate * reset}, 1).to(type);
    return {grad_input, grad_hidden, (grad * update).to(type),
            has_bias ? grad_input.sum(0) : Tensor(), has_bias ? grad_hidden.sum(0) : Tensor()};
}

Tensor cudnn_rnn_flatten_weight(at::TensorList weights, int64_t weight_stride,
                                c10::SymInt input_size, int64_t mode, c10::SymInt hidden_size,
                                c10::SymInt proj_size, int64_t num_layers, bool batch_first,
                                bool bidirectional) {
    FL_COUNT_CALL("aten::_cudnn_rnn_flatten_weight", FL_ROUTE_OWN);
    ShadowFrame frame;
    std::vector<Tensor> shown;
    for (const Tensor &weight : weights) {
        shown.push_back(ShadowFrame::needs_shadow(weight) ? *frame.show(weight, true) : weight);
    }
    Tensor buffer;
    try {
        buffer = at::_ops::_cudnn_rnn_flatten_weight::redispatch(
            twin.keys, shown, weight_stride, std::move(input_size), mode, std::move(hidden_size),
            std::move(proj_size), num_layers, batch_first, bidirectional);
    } catch (...) {
        rethrow_in_user_words("aten::_cudnn_rnn_flatten_weight");
    }
    shown.clear();
    frame.commit(); // The weights' storage is now the buffer's, which the commit relabels.
    buffer = Tensor();
    return weights[0].as_strided(
        {static_cast<int64_t>(weights[0].storage().nbytes() / weights[0].element_size())}, {1}, 0);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>
cudnn_rnn(const Tensor &input, at::TensorList weights, int64_t weight_stride,
          const OptionalTensor &buffer, const Tensor &hx, const OptionalTensor &cx, int64_t mode,
          c10::SymInt hidden_size, c10::SymInt proj_size, int64_t num_layers, bool batch_first,
          double dropout, bool train, bool bidirectional, c10::SymIntArrayRef batch_sizes,
          const OptionalTensor &dropout_state) {
    FL_COUNT_CALL("aten::_cudnn_rnn", FL_ROUTE_OWN);
    const c10::DispatchKeySet keys(twin.key);
    ShadowFrame frame;
    std::vector<Tensor> shown_weights;
    for (const Tensor &weight : weights) {
        shown_weights.push_back(shown(frame, weight));
    }
    const Tensor &shown_input = shown(frame, input);
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> results;
    try {
        OptionalTensor compact = shown(frame, buffer);
        if (!has(compact)) {
            // On aliases, because flattening moves what it is given into the buffer.
            std::vector<Tensor> aliases;
            for (const Tensor &weight : shown_weights) {
                aliases.push_back(at::_ops::alias::redispatch(keys, weight));
            }
            compact = at::_ops::_cudnn_rnn_flatten_weight::redispatch(
                keys, aliases, weight_stride, input.sym_size(-1), mode, hidden_size, proj_size,
                num_layers, batch_first, bidirectional);
        }
        results = at::_ops::_cudnn_rnn::redispatch(
            keys, shown_input, shown_weights, weight_stride, compact, shown(frame, hx),
            shown(frame, cx), mode, std::move(hidden_size), std::move(proj_size), num_layers,
            batch_first, dropout, train, bidirectional, batch_sizes, shown(frame, dropout_state));
    } catch (...) {
        rethrow_in_user_words("aten::_cudnn_rnn");
    }
    shown_weights.clear();
    Tensor *const pointers[] = {&std::get<0>(results), &std::get<1>(results), &std::get<2>(results),
                                &std::get<3>(results), &std::get<4>(results)};
    frame.adopt(pointers, 5);
    return results;
}

} // namespace fl_torch::ops
