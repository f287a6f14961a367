"""Inputs that broke backends like this one, section A: what a call shows and leaves behind.

Each test is named after the kind of fault. Many more of each kind are in test_boxing.py,
test_views.py and test_tensor.py; here stand the smallest inputs that were reported, and neighbours.
"""

import warnings

import accelerated
import pytest
import torch
import torch.nn.functional as F
from against_cpu import EXACT, PLATFORM, check
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from twins import check_case

import torch_fl

D = "flagos"
HAS_TWIN = torch_fl.platform()["twin"] is not None


def test_a_view_operator_is_not_served_by_a_copy():
    def program(device):
        x = torch.arange(6.0).to(device)
        window = x.unfold(0, 2, 1)
        window[0, 0] = 9
        rotary = torch.arange(8.0).to(device).view(1, 2, 4).repeat(2, 1, 2)
        return [
            x,
            window,
            x.repeat(2),
            rotary.gather(1, torch.zeros(2, 1, 8, dtype=torch.long).to(device)),
        ]

    check(program)


def test_a_cpu_index_tensor_is_not_shown_as_the_twins():
    def program(device):
        x = torch.arange(35.0).to(device).view(1, 5, 7)
        device_index = torch.tensor([0, 1, 2, 3, 4]).to(device)
        mask = torch.tensor([True, False, True, False, True])
        results = [
            x[:, torch.arange(5), device_index],
            x[:, mask],
            x[0, mask.to(device), 1:3],
            torch.ops.aten._unsafe_index(x, [None, torch.arange(5), device_index]),
            torch.ops.aten.index(x, [None, None, torch.tensor([1, 2])]),
        ]
        x.index_put_((torch.tensor([0]), device_index[:1]), torch.tensor(9.0).to(device))
        x[:, mask] = 1
        x[0, torch.arange(2), torch.tensor([3, 4]).to(device)] += 5
        return [*results, x]

    check(program)


def test_the_current_device_does_not_leak_out_of_a_call():
    index = torch.flagos.device_count() - 1
    before = torch.flagos.current_device()
    x = torch.ones(1, 160, dtype=torch.int64, device=f"{D}:{index}")
    for call in (
        lambda: torch.empty(1 << 20, dtype=torch.bfloat16, device=f"{D}:{index}"),
        lambda: x.to(torch.bool),
        lambda: x.to(torch.bool).sum(),
        lambda: x + 1,
        lambda: x.float().softmax(-1),
        lambda: torch.cat([x, x]),
    ):
        assert call().device.index == index and torch.flagos.current_device() == before
    assert x.to(torch.bool).sum().item() == 160


@pytest.mark.parametrize("draw", ["normal_", "uniform_", "random_", "bernoulli_", "exponential_"])
def test_a_generator_does_not_lead_back_into_the_same_kernel(draw):
    x = torch.zeros(4, device=D)
    assert getattr(x, draw)(generator=torch.Generator(D)).device.type == D
    with pytest.raises(RuntimeError, match="(?i)expected a 'cpu' .*generator but found 'flagos'"):
        getattr(torch.zeros(4), draw)(generator=torch.Generator(D))
    assert torch.randn(4, generator=torch.Generator(device=D), device=D).device.type == D


def test_no_operator_dispatches_to_itself_for_ever():
    def program(device):
        x = torch.tensor([3, 1, 4, 1, 5, 9]).to(device)
        grid = torch.ones(6, 6, device=device)
        return [
            torch.narrow(x, 0, 1, 2),
            torch.diff(x),
            torch.diff(x, 2),
            torch.diff(x, prepend=x[:1]),
            torch.narrow(x, 0, torch.tensor(1), 2),
            torch.narrow_copy(x, 0, 1, 2),
            torch.triu(grid, 1),
            torch.full((6, 6), float("-inf"), device=device).triu(1),
        ]

    check(program)


FAKE = {
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "select": lambda x: x.select(0, 1),
    "slice": lambda x: x[1:],
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "expand": lambda x: x.expand(3, 4, 4),
    "unbind": lambda x: x.unbind(0),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "view": lambda x: x.view(16),
    "reshape": lambda x: x.t().reshape(2, 8),
    "view_as_real": lambda x: torch.view_as_real(torch.complex(x, x)),
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "linear": lambda x: F.linear(x, x),
    "add": lambda x: x + 1,
    "mm": lambda x: x @ x,
    "to": lambda x: x.to(torch.float64),
    "cpu": lambda x: x.cpu(),
    "empty_like": lambda x: torch.empty_like(x),
    "softmax": lambda x: x.softmax(0),
    "index": lambda x: x[torch.tensor([1, 2])],
    "layer_norm": lambda x: F.layer_norm(x, [4]),
    "conv": lambda x: F.conv2d(x.view(1, 1, 4, 4), torch.ones(1, 1, 2, 2, device=x.device)),
    "sdpa": lambda x: F.scaled_dot_product_attention(
        x.view(1, 1, 4, 4), x.view(1, 1, 4, 4), x.view(1, 1, 4, 4)
    ),
    "in place": lambda x: x.clone().add_(1).relu_(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "sum": lambda x: x.sum(),
}


@pytest.mark.parametrize("name", FAKE)
def test_fake_tensors_propagate(name):
    real = FAKE[name](torch.ones(4, 4, device=D))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = FAKE[name](torch.ones(4, 4, device=D))
    pairs = [(real, fake)] if isinstance(real, torch.Tensor) else zip(real, fake)
    for one, other in pairs:
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert one.device == other.device


HALVES = (torch.float16, torch.bfloat16, torch.complex32)
TRANSFORMS = "fft ifft rfft irfft hfft ihfft fft2 rfft2 fftn irfftn".split()


@pytest.mark.platforms("cpu", "sim")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_fake_transforms_of_half_precision_are_the_hosts(name):
    """The same layout, or the same refusal; those of real tensors are compared with the database."""

    def outcome(device, dtype):
        with FakeTensorMode():
            try:
                made = getattr(torch.fft, name)(torch.ones(4, 4, dtype=dtype, device=device))
            except RuntimeError as error:
                return str(error)
            assert made.device.type == device
            return made.shape, made.stride(), made.dtype

    for dtype in HALVES:
        assert outcome(D, dtype) == outcome("cpu", dtype)


@pytest.mark.skipif(not HAS_TWIN, reason="the host's copies are dense, and sum in another order")
def test_batch_normalisation_takes_the_kernel_that_it_takes_natively():
    check_case(accelerated.batch_normalisations)


def test_gradients_that_nobody_asked_for():
    check_case(accelerated.unasked_gradients)


def test_optional_tensors_of_in_place_operators():
    def program(device):
        results = []
        for low, high in ((0.2, None), (None, 0.6), (0.2, 0.6)):

            def bound(value, host=False):
                return None if value is None else torch.tensor(value).to("cpu" if host else device)

            x = torch.linspace(0, 1, 6).to(device)
            results.append(x.clone().clamp_(min=bound(low), max=bound(high)))
            results.append(x.clone().clamp_(min=low, max=high))
            results.append(torch.clamp(x, bound(low), bound(high)))
            vector = None if low is None else torch.full((6,), low).to(device)
            results.append(x.clone().clamp_(vector, None if vector is not None else bound(high)))
        return results

    check(program)


@pytest.mark.parametrize("found", [False, True])
def test_a_written_argument_beside_a_list_is_shown(found):
    def program(device):
        grads = [torch.ones(3, device=device) * 8, torch.ones(2, device=device) * 4]
        if found:
            grads[1][0] = float("inf")
        flag, scale = torch.zeros(1, device=device), torch.full((1,), 0.25, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, scale)
        growth, tracker = torch.ones(1, device=device), torch.zeros(
            1, dtype=torch.int32, device=device
        )
        torch._amp_update_scale_(growth, tracker, flag, 2.0, 0.5, 1)
        return [grads, flag, growth, tracker]

    check(program)


def test_no_dispatch_key_is_bypassed():
    """Lazy bits are resolved, gradients flow, vmap and modes see the operator."""

    def program(device):
        z = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1).to(device)
        real = torch._neg_view(torch.arange(3.0).to(device))
        x = torch.arange(3.0).to(device).requires_grad_()
        (x.to(torch.float64).to("cpu") * 2).sum().backward()
        return [
            z.conj().to("cpu", copy=True).resolve_conj(),
            z.conj().to(torch.complex128),
            real.to(torch.float64),
            (z.conj() + 1).imag,
            torch.vmap(lambda t: t.to(torch.float64))(torch.ones(2, 3, device=device)),
            torch.vmap(torch.mm, (0, None))(
                torch.ones(2, 3, 3, device=device), torch.eye(3, device=device)
            ),
            torch.func.grad(lambda t: (t * t).sum())(torch.ones(3, device=device)),
            torch.func.jacrev(lambda t: t * t)(torch.ones(3, device=device)),
            x.grad,
        ]

    check(program)

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    counts = []
    for device in ("cpu", D):
        seen = []
        x = torch.ones(3, 3).to(device)
        with Count():
            x.to(torch.float64)
            x.t() @ x
            F.linear(x, x)
            x.add_(1)
            F.layer_norm(x, [3])
        counts.append(seen)
    assert counts[0] == counts[1]


def test_functionalization_sees_writes():
    def program(device):
        def f(x):
            y = x.clone()
            y[0].add_(1)
            y.view(-1)[1:2].mul_(3)
            return y

        return torch.func.functionalize(f)(torch.ones(2, 2, device=device))

    check(program)


@pytest.mark.parametrize("size", [128, 129])
def test_cat_skips_legacy_empty_tensors(size):
    def program(device):
        legacy, x = torch.tensor([]).to(device), torch.ones(1, 2, 3, size, device=device)
        return [
            torch.cat([legacy, x], dim=-2),
            torch.cat([x, legacy], dim=-1),
            torch.cat([legacy, legacy]),
            torch.cat([legacy.to(torch.int64), x], dim=1),
            torch.cat([x[:, :0], x], dim=1),
            torch.cat([legacy, x, legacy, x], dim=0, out=torch.empty(0, device=device)),
        ]

    check(program)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_an_output_has_the_broadcast_shape(dtype):
    def program(device):
        small = torch.tensor(1).to(dtype).to(device)
        large = torch.ones(1, 1, 8, 8).to(dtype).to(device)
        results = [small & large, large & small, large | small, small ^ large]
        results.append(large.clone().bitwise_and_(small))
        results += [small.expand(2) & large[0, 0, :, :1], large[..., :1] & large[:, :, :1]]
        return results

    check(program)

    def in_place(device):
        torch.tensor(True).to(device).logical_and_(torch.ones(3, dtype=torch.bool, device=device))

    assert isinstance(check(in_place), RuntimeError)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "transposed"])
def test_layouts_are_prepared_before_a_kernel_that_demands_one(layout):
    if HAS_TWIN:
        check_case(accelerated.prepared_layouts, layout)
        return
    ours, wanted = (
        program_of(lambda device: accelerated.prepared_layouts(device, layout), device)
        for device in (D, "cpu")
    )
    # The layout of a gradient may be another's there; the values may not.
    for left, right in zip(ours, wanted):
        torch.testing.assert_close(left.cpu(), right, check_stride=False)


def test_the_forms_of_set_do_not_call_each_other():
    def program(device):
        base = torch.arange(6.0).to(device)
        x = torch.empty(0, device=device)
        results = [
            x.set_(base.untyped_storage()).clone(),
            x.set_(base.untyped_storage(), 1, (2, 2), (2, 1)).clone(),
            x.set_(base[2:]).clone(),
            x.set_().clone(),
        ]
        x.data = base
        results.append(x)
        return results

    check(program)


def program_of(program, device):
    torch.manual_seed(0)
    return program(device)


SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (2, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 1, 3, 4), (2, 5, 4, 6)),
]


@pytest.mark.parametrize("left, right", SHAPES)
def test_gradients_of_matmul_are_reduced_over_what_was_broadcast(left, right):
    def program(device, dtype=torch.float32):
        a = torch.randn(left).to(dtype).to(device).requires_grad_()
        b = torch.randn(right).to(dtype).to(device).requires_grad_()
        y = torch.matmul(a, b)
        (y * torch.arange(1, y.numel() + 1).view(y.shape).to(device)).sum().backward()
        return [y.detach(), a.grad, b.grad]

    check(program)
    exact = program_of(lambda device: program(device, torch.float64), "cpu")
    for got, wanted in zip(program_of(program, D), exact):
        torch.testing.assert_close(got.cpu().double(), wanted, atol=1e-4, rtol=1e-4)


def test_complex_copies():
    def program(device):
        z = torch.complex(torch.arange(6.0), -torch.arange(6.0)).view(2, 3)
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for dtype in (torch.complex32, torch.complex64, torch.complex128):
                on_device = z.to(device).to(dtype)
                results.append(on_device.to(torch.complex64))
                target = torch.zeros(2, 3, dtype=dtype, device=device)
                results.append(target.copy_(z.to(device)).to(torch.complex64))
                target = torch.zeros(3, 2, dtype=dtype, device=device)
                results.append(target.t().copy_(z.to(device)).to(torch.complex64))
                results.append(torch.empty(2, 3, device=device).copy_(on_device))
                results.append(torch.arange(3.0).to(device).to(dtype).to(torch.complex64))
                results.append(on_device.to(torch.float32))
        return results

    check(program)


@pytest.mark.skipif(not EXACT, reason="the warning is the twin's")
def test_dropping_an_imaginary_part_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch._C._set_warnAlways(True)
        try:
            torch.ones(2, dtype=torch.complex64, device=D).to(torch.float32)
        finally:
            torch._C._set_warnAlways(False)
    assert any("imaginary" in str(warning.message) for warning in caught)
