"""Nested tensors, strided and jagged: made, moved, viewed, changed and differentiated on flagos as
on the CPU. The tables of sizes of a strided one lie on the host, as on every device."""

import copy
import io

import pytest
import torch
from kinds import check, check_error
from torch import nn
from torch.nn import functional as F

pytestmark = [pytest.mark.platforms("cpu", "sim"), pytest.mark.filterwarnings("ignore")]

TWO = torch.arange(8.0).view(2, 4) / 4 - 1
THREE = torch.arange(12.0).view(3, 4) / 8 - 1

LAYOUTS = (torch.strided, torch.jagged)
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["strided", "jagged"])


def nested(device, layout=torch.strided, **options):
    return torch.nested.nested_tensor([TWO, THREE], device=device, layout=layout, **options)


def of_eights(device, layout=torch.strided, **options):
    rows = [torch.linspace(-1, 1, 16).view(2, 8), torch.linspace(-2, 1, 24).view(3, 8)]
    return torch.nested.nested_tensor(rows, device=device, layout=layout, **options)


# --- making and moving ---------------------------------------------------------------------------


@layouts
def test_made(layout):
    def program(device):
        return (
            nested(device, layout),
            torch.nested.as_nested_tensor([TWO.to(device), THREE.to(device)], layout=layout),
            torch.nested.nested_tensor(
                [torch.ones(2, 3, 4), torch.ones(5, 3, 4)], device=device, layout=layout
            ),
            nested(device, layout, dtype=torch.float64),
        )

    check(program)


def test_made_of_other_tensors():
    def program(device):
        mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool, device=device)
        padded = torch.arange(24.0).view(2, 3, 4).to(device)
        return (
            torch._nested_tensor_from_mask(padded, mask),
            torch._nested_tensor_from_mask_left_aligned(padded, mask),
            torch._nested_from_padded(padded, torch.tensor([[2, 4], [3, 4]])),
            torch._nested_from_padded_and_nested_example(padded, nested(device)),
            torch.nested.nested_tensor([torch.tensor(1.0), torch.tensor(2.0)], device=device),
            torch.nested.nested_tensor_from_jagged(
                torch.ones(5, 4, device=device), torch.tensor([0, 2, 5], device=device)
            ),
        )

    check(program)


def test_a_factory_takes_jagged_for_strided():
    def program(device):
        x = torch.ones(2, 3, device=device)
        return [
            t.layout
            for t in (
                torch.empty(2, 3, layout=torch.jagged, device=device),
                torch.empty_strided((2, 3), (1, 2), layout=torch.jagged, device=device),
                torch.empty_like(x, layout=torch.jagged),
            )
        ]

    check(program)


@layouts
def test_moved_and_copied(layout):
    def program(device):
        file = io.BytesIO()
        torch.save(nested(device, layout), file)
        file.seek(0)
        n = nested("cpu", layout).to(device)
        return n, n.to(torch.float64), n.clone(), n.detach(), torch.load(file, weights_only=False)

    check(program)
    back = nested("flagos", layout).cpu()
    assert back.device.type == "cpu"
    assert all(torch.equal(a, b) for a, b in zip(back.unbind(), (TWO, THREE)))


def test_copied_deeply():
    check(lambda device: copy.deepcopy(nested(device, torch.jagged)))
    check(
        lambda device: copy.deepcopy(nested(device))
    )  # PyTorch has no deep copy of a strided one.


def test_shown():
    text = repr(nested("flagos"))
    assert text.count("device='flagos:0'") == 3
    assert text.replace(", device='flagos:0'", "") == repr(nested("cpu"))
    assert "flagos" in repr(nested("flagos", torch.jagged))


# --- views and changes ---------------------------------------------------------------------------


def test_what_a_nested_tensor_says_of_itself():
    def program(device):
        n = nested(device)
        return (
            n.size(0),
            n.size(2),
            n.dim(),
            n.numel(),
            n.is_contiguous(),
            n.is_same_size(n),
            n.is_pinned(),
        )

    check(program)
    check_error(lambda device: nested(device).size(1), "irregular")
    check_error(lambda device: nested(device).shape, "doesn't support sizes")


def test_rows_and_views():
    def program(device):
        n = nested(device)
        return (
            [n.unbind(), n[0], n[1, :2], n.transpose(1, 2), n.transpose(1, 2).contiguous()],
            [n.view(2, -1, 2, 2), n.reshape(2, -1, 2, 2).transpose(1, 2), n.chunk(2, -1)],
            [n.split_with_sizes([1, 3], -1), n.unsqueeze(1), n.unsqueeze(1).squeeze(1)],
        )

    check(program)


def test_a_row_shares_memory():
    def program(device):
        n = nested(device)
        n[0].mul_(2)
        n.unbind()[1].add_(1)
        n.values().neg_()
        return n, n._version, n.values().data_ptr() == n[0].data_ptr()

    check(program)


def test_changed_in_place():
    def program(device):
        n = nested(device)
        same = n.add_(nested(device))
        return (
            same is n,
            n,
            [
                nested(device).copy_(nested("cpu")),
                nested(device).zero_(),
                nested(device).fill_(3.0),
                nested(device).mul_(2),
                nested(device).mul_(nested(device)),
                nested(device).relu_(),
                nested(device).tanh_(),
            ],
        )

    check(program)


# --- operators -----------------------------------------------------------------------------------

OPERATORS = {
    "arithmetic": lambda n: [n + n, n - n, n * n, n * 2, n / 2, -n],
    "unary": lambda n: [
        F.relu(n),
        F.gelu(n),
        F.silu(n),
        torch.tanh(n),
        n.abs(),
        n.cos(),
        n.isnan(),
    ],
    "softmax": lambda n: F.softmax(n, -1),
    "padding": lambda n: [n.to_padded_tensor(0.0), n.to_padded_tensor(-1.0, (2, 5, 6))],
    "too little padding": lambda n: n.to_padded_tensor(0.0, (2, 1, 1)),
    "linear": lambda n: F.linear(n, torch.ones(5, 4).to(n.device), torch.ones(5).to(n.device)),
    "products": lambda n: [n.matmul(n.transpose(1, 2)), torch.bmm(n, n.transpose(1, 2))],
    "layer norm": lambda n: F.layer_norm(
        n, (4,), torch.ones(4).to(n.device), torch.ones(4).to(n.device)
    ),
    "sum": lambda n: n.sum(-1, keepdim=True),
    "cat": lambda n: torch.cat([n, n]),
    "like": lambda n: [torch.ones_like(n), torch.zeros_like(n)],
    "not served": lambda n: n.cumsum(-1),
    "no sampler": lambda n: n.uniform_(),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_on_strided(name):
    check(lambda device: OPERATORS[name](nested(device)))


def test_operators_on_jagged():
    def program(device):
        n = nested(device, torch.jagged)
        return (
            [
                n + n,
                n * 2,
                n.sin(),
                n.sum(-1),
                n.sum(1),
                n.mean(1),
                n.unbind(),
                n[0],
                n.chunk(2, -1),
            ],
            [
                n + torch.ones(4, device=device),
                n.matmul(torch.ones(4, 3, device=device)),
                n.unsqueeze(-1),
            ],
            [torch.cat([n, n], -1), F.softmax(n, 1), F.layer_norm(n, (4,)), torch.zeros_like(n)],
            [torch.nested.to_padded_tensor(n, 0.0), n.to_padded_tensor(1.0, (2, 5, 4))],
        )

    check(program)
    check(lambda device: nested(device, torch.jagged) + nested(device, torch.jagged))


def test_narrow_and_embedding():
    def program(device):
        starts, lengths = torch.tensor([0, 1, 0], device=device), torch.tensor(
            [2, 3, 1], device=device
        )
        rows = torch.nested.nested_tensor(
            [torch.tensor([1, 2]), torch.tensor([3, 4, 5])], layout=torch.jagged, device=device
        )
        x = torch.arange(60.0).view(3, 5, 4).to(device)
        return torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged), nn.Embedding(
            10, 4
        ).to(device)(rows)

    check(program)


def test_operands_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="device"):
        nested("flagos") + nested("cpu")


def test_inference_mode():
    def program(device):
        with torch.inference_mode():
            n = nested(device)
            return (n * 2).to_padded_tensor(0.0), n[0] + 1, n.transpose(1, 2)[1] + 0

    check(program)


# --- gradients -----------------------------------------------------------------------------------

DIFFERENTIABLE = {
    "times two": lambda n: n * 2,
    "plus itself": lambda n: n + n,
    "times itself": lambda n: n * n,
    "relu": F.relu,
    "gelu": F.gelu,
    "linear": lambda n: F.linear(n, torch.ones(5, 4).to(n.device)),
    "softmax": lambda n: F.softmax(n, -1),
    "layer norm": lambda n: F.layer_norm(
        n, (4,), torch.ones(4).to(n.device), torch.ones(4).to(n.device)
    ),
    "padding": lambda n: torch.nested.to_padded_tensor(n, 0.0),
    "clone": lambda n: n.clone(),
    "a row": lambda n: n.unbind()[1],
    "transpose": lambda n: n.transpose(1, 2).transpose(1, 2),
}


@layouts
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(layout, name):
    def program(device):
        n = nested(device, layout, requires_grad=True)
        result = DIFFERENTIABLE[name](n)
        (
            torch.nested.to_padded_tensor(result, 0.0) if result.is_nested else result
        ).sum().backward()
        return result, n.grad

    check(program)


def test_gradients_of_the_rows():
    def program(device):
        rows = [
            TWO.to(device, copy=True).requires_grad_(),
            THREE.to(device, copy=True).requires_grad_(),
        ]
        (torch.nested.as_nested_tensor(rows) * 2).to_padded_tensor(0.0).sum().backward()
        return [row.grad for row in rows]

    check(program)


# --- attention -----------------------------------------------------------------------------------


def heads(n):
    return (
        n.unflatten(-1, [2, 4]) if n.layout is torch.jagged else n.reshape(2, -1, 2, 4)
    ).transpose(1, 2)


@layouts
@pytest.mark.parametrize("wants", [False, True], ids=["inference", "training"])
def test_attention(layout, wants):
    def program(device):
        n = of_eights(device, layout, requires_grad=wants)
        query = heads(n)
        result = F.scaled_dot_product_attention(query, query, query).transpose(1, 2).contiguous()
        if wants and layout is torch.jagged:
            result.values().sum().backward()
        return result, n.grad

    check(program)


def test_transformer_layers():
    def program(device):
        torch.manual_seed(0)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        encoder, attention = encoder.eval().to(device), attention.eval().to(device)
        padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool, device=device)
        n = of_eights(device)
        with torch.no_grad():
            return (
                encoder(
                    torch.linspace(-1, 1, 80).view(2, 5, 8).to(device), src_key_padding_mask=padding
                ),
                encoder.layers[0](n),
                attention(n, n, n, need_weights=False)[0],
            )

    check(program)
