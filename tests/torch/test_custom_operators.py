"""Operators of somebody's library that has a kernel for the twin's device alone: autograd records what
the kernel calls on the user's tensors, as it does on that device."""

import pytest
import torch

import torch_fl
from torch_fl import queue

TWIN = torch_fl.platform()["twin"]
with_twin = pytest.mark.skipif(TWIN is None, reason="without a twin a kernel is given copies")
pytestmark = pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
DEVICES = [TWIN or "cpu", "flagos"] if TWIN != "cuda" else ["flagos"]


@pytest.fixture(scope="module")
def ops():
    library = torch.library.Library("fl_custom", "DEF")
    key = {"cuda": "CUDA"}.get(TWIN, "CPU")

    def define(schema, kernel):
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, key)

    define("scale(Tensor x) -> Tensor", lambda x: x * torch.full((3,), 3.0, device=x.device))
    define("scale_(Tensor(a!) x) -> Tensor(a!)", lambda x: x.mul_(3))
    define("flat(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1))
    define("first(Tensor[] xs, Tensor y) -> (Tensor, Tensor)", lambda xs, y: (xs[0] * y, y.new_ones(2)))
    define("share(Tensor(a!) x, Tensor(b!) y, Tensor(c!) z) -> Tensor", share)
    define("see(Tensor x) -> bool[]", lambda x: [x.requires_grad, torch.is_grad_enabled()])
    yield torch.ops.fl_custom
    library._destroy()


def share(x, y, z):
    """Moves what it is given into one buffer, as cuDNN's flattening of weights does."""
    buffer = torch.cat([x.flatten(), y.flatten(), z.flatten()])
    parts = zip((x, y, z), buffer.split([x.numel(), y.numel(), z.numel()]))
    for tensor, part in parts:
        tensor.set_(part.view_as(tensor))
    return torch.zeros(1, device=x.device)


@pytest.fixture
def queue_as_it_was():
    before = queue.is_on()
    yield
    queue.set(before)


def leaf(device, *shape):
    return torch.ones(*shape, device=device, requires_grad=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a_functional_kernel_is_recorded(ops, device):
    x = leaf(device, 3)
    result = ops.scale(x)
    assert result.device.type == device
    result.sum().backward()
    assert x.grad.tolist() == [3, 3, 3] and x.grad.device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_an_in_place_kernel_is_recorded(ops, device):
    x = leaf(device, 3)
    y = x * 1
    assert ops.scale_(y) is y
    y.sum().backward()
    assert x.grad.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        ops.scale_(leaf(device, 3))


@with_twin
@pytest.mark.parametrize("device", DEVICES)
def test_the_nodes_versions_and_views_are_those_of_the_parts(ops, device):
    x = leaf(device, 3)
    y = x * 1
    ops.scale_(y)
    assert y._version == 1 and y.grad_fn.name() == ops.scale(x).grad_fn.name() == "MulBackward0"
    for whole in (torch.ones(2, 2, device=device), leaf(device, 2, 2)):
        flat = ops.flat(whole)
        assert flat._is_view() and flat._base is whole and flat.data_ptr() == whole.data_ptr()
    one, other = ops.first([leaf(device, 2)], torch.ones(2, device=device))
    assert one.grad_fn.name() == "MulBackward0" and one.device == other.device
    assert ops.see(leaf(device, 3)) == [True, True]


@pytest.mark.parametrize("device", DEVICES)
def test_without_gradients_nothing_is_recorded(ops, device):
    with torch.no_grad():
        assert not ops.scale(leaf(device, 3)).requires_grad
    assert not ops.scale(torch.ones(3, device=device)).requires_grad


@with_twin
@pytest.mark.filterwarnings("ignore:[\\s\\S]*previously registered kernel")
@pytest.mark.parametrize("call", [torch.mul, torch.lgamma], ids=["unboxed", "boxed"])
@pytest.mark.parametrize("queued", [False, True])
def test_a_kernel_in_the_place_of_the_twins_is_met_and_goes(call, queued, queue_as_it_was):
    queue.set(queued)
    x = torch.full((2,), 3.0, device="flagos")
    operands = (x, x) if call is torch.mul else (x,)
    name = "mul.Tensor" if call is torch.mul else "lgamma"
    before = call(*operands)
    call(*operands)  # The first call of an operator is never queued.
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, lambda x, *rest: torch.full_like(x, 7.0), {"cuda": "CUDA"}.get(TWIN, "CPU"))
    assert call(*operands).tolist() == [7, 7]
    library._destroy()
    assert torch.equal(call(*operands), before)


@with_twin
@pytest.mark.parametrize("device", DEVICES)
def test_operands_that_a_kernel_moves_to_one_buffer_share_it(ops, device):
    x, y, z = (torch.full((size,), float(size), device=device) for size in (2, 3, 4))
    ops.share(x, y, z)
    assert len({tensor.untyped_storage()._cdata for tensor in (x, y, z)}) == 1
    assert x.untyped_storage().device.type == device
    assert [tensor.storage_offset() for tensor in (x, y, z)] == [0, 2, 5]
    assert [tensor.tolist() for tensor in (x, y, z)] == [[2.0] * 2, [3.0] * 3, [4.0] * 4]
    whole = torch.empty(0, device=device).set_(z.untyped_storage())
    whole.mul_(2)
    assert [tensor.tolist() for tensor in (x, y, z)] == [[4.0] * 2, [6.0] * 3, [8.0] * 4]
