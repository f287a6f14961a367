// ops_rnn.h: kernels of recurrent networks that not every twin has. Whole networks (`lstm`, `gru`,
// ...) are composites and run disguised; see disguise.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace fl_torch::ops {

// The fused cells, which the host lacks. Gates are given as the products with the weights; the
// workspace is what the backward needs, in a layout of CUDA's: the activated gates side by side.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
fused_lstm_cell(const at::Tensor &input_gates, const at::Tensor &hidden_gates, const at::Tensor &cx,
                const std::optional<at::Tensor> &input_bias,
                const std::optional<at::Tensor> &hidden_bias);
std::tuple<at::Tensor, at::Tensor, at::Tensor>
fused_lstm_cell_backward(const std::optional<at::Tensor> &grad_hy,
                         const std::optional<at::Tensor> &grad_cy, const at::Tensor &cx,
                         const at::Tensor &cy, const at::Tensor &workspace, bool has_bias);
std::tuple<at::Tensor, at::Tensor> fused_gru_cell(const at::Tensor &input_gates,
                                                  const at::Tensor &hidden_gates,
                                                  const at::Tensor &hx,
                                                  const std::optional<at::Tensor> &input_bias,
                                                  const std::optional<at::Tensor> &hidden_bias);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
fused_gru_cell_backward(const at::Tensor &grad_hy, const at::Tensor &workspace, bool has_bias);

// Makes the weights views of one buffer, which the schema does not say. Only where the twin has it.
at::Tensor cudnn_rnn_flatten_weight(at::TensorList weights, int64_t weight_stride,
                                    c10::SymInt input_size, int64_t mode, c10::SymInt hidden_size,
                                    c10::SymInt proj_size, int64_t num_layers, bool batch_first,
                                    bool bidirectional);

// cuDNN's network. Weights that are no views of one buffer are compacted at each call, which for
// CUDA modules PyTorch warns about and avoids, in Python, by asking `is_cuda`. Only where the twin
// has it.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
cudnn_rnn(const at::Tensor &input, at::TensorList weights, int64_t weight_stride,
          const std::optional<at::Tensor> &buffer, const at::Tensor &hx,
          const std::optional<at::Tensor> &cx, int64_t mode, c10::SymInt hidden_size,
          c10::SymInt proj_size, int64_t num_layers, bool batch_first, double dropout, bool train,
          bool bidirectional, c10::SymIntArrayRef batch_sizes,
          const std::optional<at::Tensor> &dropout_state);

} // namespace fl_torch::ops
