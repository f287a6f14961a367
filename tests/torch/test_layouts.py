"""Operators on inputs that are not contiguous: group norm, unfold, repeat and their neighbours, and
copies that convert in one pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from twins import assert_same_as_twin

VIEWS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: x[:, :, 1:-1, ::2],
    "permuted": lambda x: x.transpose(2, 3),
    "expanded": lambda x: x[:, :, :1].expand(-1, -1, 5, -1),
}


def weighted(tensor):
    factors = torch.linspace(-1, 1, tensor.numel(), dtype=torch.float64).to(tensor)
    return (tensor * factors.view(tensor.shape)).sum()


# --- group norm ----------------------------------------------------------------------------------


def group_norm(device, view, affine, dtype, wanted):
    norm = nn.GroupNorm(4, 16, affine=affine).to(dtype)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    base = torch.randn(3, 16, 8, 10, dtype=dtype)
    norm, base = norm.to(device), base.to(device).requires_grad_("input" in wanted)
    norm.requires_grad_("weights" in wanted)
    output = norm(VIEWS[view](base))
    if output.requires_grad:
        weighted(output).backward()
    return output, base.grad, [weight.grad for weight in norm.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("view", VIEWS)
def test_group_norm(view, affine, dtype):
    assert_same_as_twin(group_norm, view, affine, dtype, ["input", "weights"])


@pytest.mark.parametrize(
    "view, wanted",
    [("channels_last", []), ("channels_last", ["input"]), ("contiguous", ["weights"])],
    ids=str,
)
def test_group_norm_with_some_gradients(view, wanted):
    assert_same_as_twin(group_norm, view, True, torch.float32, wanted)


def test_group_norm_with_gradients_of_weights_alone():
    """Not compared: PyTorch 2.11 crashes on plain CPU tensors here."""
    norm = nn.GroupNorm(4, 16).to("flagos")
    base = torch.randn(3, 16, 8, 10, device="flagos")
    weighted(norm(base)).backward()
    want = [weight.grad for weight in norm.parameters()]
    norm.zero_grad()
    weighted(norm(VIEWS["channels_last"](base))).backward()
    for weight, gradient in zip(norm.parameters(), want):
        torch.testing.assert_close(weight.grad, gradient)


def group_norm_5d(device):
    base = torch.randn(2, 8, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d)
    base = base.to(device).requires_grad_()
    output = functional.group_norm(base, 2)
    weighted(output).backward()
    return output, base.grad


def test_group_norm_of_volumes():
    assert_same_as_twin(group_norm_5d)


def group_norm_twice(device, view):
    norm = nn.GroupNorm(2, 8).double()
    nn.init.normal_(norm.weight)
    base = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    norm, base = norm.to(device), base.to(device).requires_grad_()
    output = norm(VIEWS[view](base))
    (gradient,) = torch.autograd.grad(weighted(output.square()), base, create_graph=True)
    weighted(gradient).backward()
    return gradient, base.grad, [weight.grad for weight in norm.parameters()]


@pytest.mark.parametrize("view", ["contiguous", "channels_last"])
def test_group_norm_twice_differentiated(view):
    assert_same_as_twin(group_norm_twice, view)


def group_norm_statistics(device):
    """All three results of the operator can be differentiated."""
    base = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    base = base.to(device).requires_grad_()
    results = torch.native_group_norm(base, None, None, 2, 8, 16, 4, 1e-5)
    sum(weighted(result) for result in results).backward()
    return list(results), base.grad


@pytest.mark.platforms("cpu")
def test_group_norm_statistics():
    assert_same_as_twin(group_norm_statistics)


def group_norm_tangent(device):
    """Contiguous, because PyTorch's own formula of the tangent views its operands."""
    base = torch.randn(2, 8, 4, 4).to(device)
    tangent = torch.randn(2, 8, 4, 4).to(device)
    return torch.func.jvp(lambda x: functional.group_norm(x, 4), (base,), (tangent,))


def test_group_norm_forward_mode():
    assert_same_as_twin(group_norm_tangent)


def test_group_norm_gradients_are_right():
    base = torch.randn(2, 4, 3, 3, dtype=torch.float64, device="flagos")
    base = base.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(4, dtype=torch.float64, device="flagos", requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, device="flagos", requires_grad=True)

    def function(*given):
        return functional.group_norm(given[0], 2, *given[1:])

    assert torch.autograd.gradcheck(function, (base, weight, bias))
    assert torch.autograd.gradgradcheck(function, (base, weight, bias))


# --- unfold and repeat ---------------------------------------------------------------------------


def unfolded(device, dimension, size, step):
    base = torch.randn(6, 7, 8).to(device).requires_grad_()
    windows = base.unfold(dimension, size, step)
    weighted(windows.square()).backward()
    return windows, base.grad, windows.storage_offset()


@pytest.mark.parametrize("dimension, size, step", [(0, 2, 1), (1, 3, 2), (2, 8, 1), (-1, 1, 3)])
def test_unfold(dimension, size, step):
    assert_same_as_twin(unfolded, dimension, size, step)


def test_unfold_is_a_view_that_writes_through():
    base = torch.zeros(8, device="flagos")
    windows = base.unfold(0, 2, 2)
    assert windows.data_ptr() == base.data_ptr() and windows._base is base
    windows[1].fill_(3)
    windows += 1
    assert base.tolist() == [1, 1, 4, 4, 1, 1, 1, 1]
    assert windows.tolist() == [[1, 1], [4, 4], [1, 1], [1, 1]]
    assert windows._version == base._version > 0


@pytest.mark.parametrize(
    "arguments, error",
    [((0, 9, 1), RuntimeError), ((0, 2, 0), RuntimeError), ((3, 1, 1), IndexError)],
)
def test_a_wrong_unfold_is_refused_as_on_the_host(arguments, error):
    for device in ("cpu", "flagos"):
        with pytest.raises(error):
            torch.zeros(8, device=device).unfold(*arguments)


def repeated(device, repeats):
    base = torch.randn(3, 4).t().to(device).requires_grad_()
    result = base.repeat(*repeats)
    weighted(result).backward()
    return result, base.grad


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (2, 1, 3), (0, 2)], ids=str)
def test_repeat(repeats):
    assert_same_as_twin(repeated, repeats)


def test_repeat_never_aliases():
    base = torch.zeros(2, 2, device="flagos")
    result = base.repeat(1, 1)
    result.fill_(1)
    assert base.eq(0).all() and result.data_ptr() != base.data_ptr()


# --- neighbours that must not change -------------------------------------------------------------


def neighbours(device, view):
    base = VIEWS[view](torch.randn(3, 16, 8, 10)).to(device).requires_grad_()
    ordered, places = base.sort(dim=1, stable=True, descending=True)
    best, where = base.topk(3, dim=-1)
    normal = functional.layer_norm(base, base.shape[2:])
    weighted(ordered).backward(retain_graph=True)
    weighted(best).backward(retain_graph=True)
    weighted(normal).backward()
    return ordered, places, best, where, normal, base.grad


@pytest.mark.parametrize("view", VIEWS)
def test_sort_topk_and_layer_norm(view):
    assert_same_as_twin(neighbours, view)


# --- copies that convert -------------------------------------------------------------------------


def converted(device, view, dtype):
    base = VIEWS[view](torch.randn(3, 16, 8, 10)).to(device)
    last = base.to(dtype, memory_format=torch.channels_last)
    return last, base.to(dtype), base.to(dtype, copy=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_conversions(view, dtype):
    assert_same_as_twin(converted, view, dtype)


@pytest.mark.parametrize("view", ["channels_last", "sliced", "permuted"])
def test_a_conversion_is_one_pass(view):
    base = VIEWS[view](torch.randn(3, 16, 8, 10, device="flagos"))
    base.to(torch.float16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = base.to(torch.float16)
    names = [event.name for event in profiled.events()]
    assert names.count("aten::_to_copy") == 1
    assert names.count("aten::copy_") <= 1
    for intermediate in ("aten::contiguous", "aten::clone", "aten::empty_like"):
        assert intermediate not in names
    taken = [
        event.name for event in profiled.events() if event.name.startswith("aten::empty")
    ]
    assert len(taken) == 1, f"an intermediate was made: {names}"
    assert result.dtype == torch.float16
