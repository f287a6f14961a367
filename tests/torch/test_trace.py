"""torch.jit.trace: what is traced computes with its input and parameters, not with the example's."""

import pytest
import torch
from torch import nn

MODULES = {
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 2, 8)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3), (2, 2, 8, 8)),
    "Conv2d of strings": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 2, 8, 8)),
    "Conv2d of reflections": (lambda: nn.Conv2d(2, 3, 3, padding_mode="reflect"), (2, 2, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 3), (2, 2, 8)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 8, 8)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 3), (2, 2, 5, 5, 5)),
    "block": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (2, 2, 8, 8),
    ),
    "Linear": (lambda: nn.Linear(8, 3), (2, 8)),
    "Bilinear": (lambda: _of_two(nn.Bilinear(8, 8, 3)), (2, 8)),
    "LayerNorm": (lambda: nn.LayerNorm(8), (2, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 8)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True), (2, 4, 8)),
    "LSTM": (lambda: _first(nn.LSTM(8, 4, 2)), (5, 2, 8)),
    "GRU": (lambda: _first(nn.GRU(8, 4, bidirectional=True)), (5, 2, 8)),
    "RNN": (lambda: _first(nn.RNN(8, 4, nonlinearity="relu")), (5, 2, 8)),
    "LSTMCell": (lambda: _first(nn.LSTMCell(8, 4)), (2, 8)),
    "GRUCell": (lambda: nn.GRUCell(8, 4), (2, 8)),
    "RNNCell": (lambda: nn.RNNCell(8, 4), (2, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 2, 8)),
    "fast attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16).eval(), (5, 2, 8)),
}


class _first(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class _of_two(_first):
    def forward(self, x):
        return self.module(x, x)


@pytest.mark.parametrize("gradients", (True, False))
@pytest.mark.parametrize("name", MODULES)
def test_a_traced_module(name, gradients):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().to("flagos")
    example, other = torch.randn(shape, device="flagos"), torch.randn(shape, device="flagos")
    with torch.set_grad_enabled(gradients):
        module(example)  # Statistics of a norm move at each call; both sides see as many.
        traced = torch.jit.trace(module, example, check_trace=False)
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        expected = module(other)
        parameters = list(module.parameters()) if gradients else []
        expected_gradients = _gradients(expected, parameters)
        with torch.no_grad():
            for key, value in module.named_buffers():
                value.copy_(buffers[key])
        result = traced(other)
    assert result.device == expected.device and result.requires_grad == expected.requires_grad
    assert torch.equal(result, expected)
    assert all(map(torch.equal, _gradients(result, parameters), expected_gradients))
    assert not [c for c in _constants(traced.inlined_graph) if c.dim() > 0 and c.numel() > 1]


def _gradients(result, parameters):
    return torch.autograd.grad(result.sum(), parameters) if parameters else ()


def _constants(graph):
    for node in graph.nodes():
        if node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType":
            yield node.t("value")


def test_seeding_leaves_nothing_in_a_trace():
    def draws(x):
        torch.flagos.manual_seed_all(3)
        torch.flagos.synchronize()
        return torch.nn.functional.dropout(x, 0.5, True)

    x = torch.ones(64, device="flagos")
    traced = torch.jit.trace(draws, x, check_trace=False)
    assert not any(node.kind().startswith("flagos::") for node in traced.graph.nodes())
    torch.flagos.manual_seed_all(3)
    assert torch.equal(traced(x), draws(x))
