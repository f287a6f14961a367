"""`linear` in one step: the twin's bits, and the parts for whoever watches them."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from twins import assert_same_as_twin

linear = torch.nn.functional.linear
TWIN = pytest.mark.platforms("cpu", "cuda")

INPUTS = {
    "a matrix": lambda x: x.view(6, 5),
    "a batch": lambda x: x.view(2, 3, 5),
    "one row": lambda x: x[:5].view(1, 1, 5),
    "four dimensions": lambda x: x.view(1, 3, 2, 5),
    "a vector": lambda x: x[:5],
    "no rows": lambda x: x[:0].view(0, 5),
    "turned": lambda x: x.view(5, 6).t(),
    "with gaps": lambda x: x.view(3, 10)[:, ::2],
    "turned in a batch": lambda x: x.view(3, 2, 5).transpose(0, 1),
}
WEIGHTS = {
    "as it is": lambda w: w.view(7, 5),
    "turned": lambda w: w.view(5, 7).t(),
    "with gaps": lambda w: w.view(7, 5).repeat_interleave(2, 1)[:, ::2],
}


def every_layout(device, dtype, bias, inference):
    x, w, b = (torch.randn(n).to(dtype).to(device) for n in (30, 35, 7))
    results = {}
    with torch.inference_mode() if inference else torch.no_grad():
        for (one, make), (other, turn) in itertools.product(INPUTS.items(), WEIGHTS.items()):
            result = linear(make(x), turn(w), b if bias else None)
            results[f"{one}, weight {other}"] = result, result._is_view()
    return results


@TWIN
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_bits_and_strides_are_the_twins(dtype, bias, inference):
    assert_same_as_twin(every_layout, dtype, bias, inference)


def gradients(device):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5).to(device).requires_grad_()
    w = torch.randn(7, 5).to(device).requires_grad_()
    out = linear(x, w)
    return out, torch.autograd.grad(out.square().sum(), (x, w), create_graph=True)


@TWIN
def test_gradients_are_recorded_part_by_part():
    assert_same_as_twin(gradients)
    out, _ = gradients("flagos")
    assert out.grad_fn.name() == gradients("cpu")[0].grad_fn.name()


def test_an_operand_twice():
    w = torch.randn(5, 5)
    there = w.to("flagos")
    torch.testing.assert_close(linear(there, there).cpu(), linear(w, w))


def test_forward_gradients_are_not_lost():
    x, t, w = torch.randn(2, 5), torch.randn(2, 5), torch.randn(7, 5)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(x.to("flagos"), t.to("flagos"))
        tangent = torch.autograd.forward_ad.unpack_dual(linear(dual, w.to("flagos"))).tangent
    torch.testing.assert_close(tangent.cpu(), linear(t, w))


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.name())
        return function(*args, **kwargs or {})


def names_seen(device):
    x, w = torch.randn(2, 3, 5).to(device), torch.randn(7, 5).to(device)
    with torch.no_grad(), Names() as names:
        linear(x, w)
    return names.seen


def test_modes_see_the_parts():
    assert names_seen("flagos") == names_seen("cpu") and "aten::mm" in names_seen("flagos")


@pytest.mark.filterwarnings("ignore")
def test_the_profiler_and_the_tracer_see_the_parts():
    x, w = torch.randn(2, 3, 5, device="flagos"), torch.randn(7, 5, device="flagos")
    with torch.no_grad(), torch.profiler.profile() as profile:
        linear(x, w)
    assert {"aten::linear", "aten::matmul", "aten::mm"} <= {e.name for e in profile.events()}
    traced = [
        torch.jit.trace(lambda x, w=weight: linear(x, w), inputs)
        for inputs, weight in ((x, w), (x.cpu(), w.cpu()))
    ]
    ours, hosts = ([node.kind() for node in each.graph.nodes()] for each in traced)
    assert ours == hosts


def test_transforms_take_the_parts():
    x, w = torch.randn(4, 3, 5), torch.randn(7, 5)
    there = torch.func.vmap(linear, (0, None))(x.to("flagos"), w.to("flagos"))
    torch.testing.assert_close(there.cpu(), linear(x, w))


@TWIN
def test_the_route_of_the_product_is_kept_to():
    from torch_fl import routes

    x, w = torch.randn(2, 3, 5, device="flagos"), torch.randn(7, 5, device="flagos")
    routes.set("aten::mm", "cpu")
    try:
        routes.reset_counts()
        with torch.no_grad():
            linear(x, w)
        assert routes.report().calls["cpu"] == 1
    finally:
        routes.reset("aten::mm")
    routes.reset_counts()
    with torch.no_grad():
        linear(x, w)
    assert routes.report().calls["native"] == 1


@pytest.mark.parametrize(
    "x, w, b", [((2, 4), (7, 5), None), ((2, 5), (7, 5), (6,)), ((), (7, 5), None)]
)
def test_what_does_not_fit_is_refused_as_on_the_cpu(x, w, b):
    operands = [None if shape is None else torch.randn(shape) for shape in (x, w, b)]
    with pytest.raises(RuntimeError) as host, torch.no_grad():
        linear(*operands)
    with pytest.raises(RuntimeError) as ours, torch.no_grad():
        linear(*(o if o is None else o.to("flagos") for o in operands))
    assert str(ours.value).split("\n")[0] == str(host.value).split("\n")[0]
