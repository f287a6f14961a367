"""Recurrent modules: keep their weights in one buffer where the twin's kernels want that."""

import torch

from torch_fl._wrapped import TWIN, Row, _mark


def _can_share_a_buffer(weights):
    """Whether cuDNN takes these weights, and none of them is a view of another one."""
    first = weights[0]
    if any(not isinstance(weight, torch.Tensor) for weight in weights):
        return False
    if any(weight.dtype != first.dtype or weight.device != first.device for weight in weights):
        return False
    shown = torch.ops.flagos.as_twin(first.detach())
    distinct = {weight.data_ptr() for weight in weights}
    return torch.backends.cudnn.is_acceptable(shown) and len(distinct) == len(weights)


def _wrap(original):
    def flatten_parameters(self):
        weights = self._flat_weights
        first = weights[0] if weights else None
        if not isinstance(first, torch.Tensor) or first.device.type != "flagos":
            return original(self)
        if TWIN != "cuda" or len(weights) != len(self._flat_weights_names):
            return None
        if not (_can_share_a_buffer(weights) and torch._use_cudnn_rnn_flatten_weight()):
            return None
        from torch.backends.cudnn.rnn import get_cudnn_mode

        a_layer = (4 if self.bias else 2) + (1 if self.proj_size > 0 else 0)
        with torch.no_grad(), torch.flagos.device(first.device):
            torch._cudnn_rnn_flatten_weight(
                weights,
                a_layer,
                self.input_size,
                get_cudnn_mode(self.mode),
                self.hidden_size,
                self.proj_size,
                self.num_layers,
                self.batch_first,
                bool(self.bidirectional),
            )
        return None

    return _mark(flatten_parameters, original)


Row(
    torch.nn.RNNBase,
    "flatten_parameters",
    _wrap,
    why="it returns at once unless `weight.is_cuda`",
    cpu="nothing is done, as for CPU tensors",
    none="nothing is done",
    cuda="the weights become views of one buffer, as CUDA's do; no call has to compact them",
)
