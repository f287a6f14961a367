"""Inputs that broke backends like this one, section E: what a copy to the CPU and back can serve.

On a platform with a twin the route `cpu` is chosen for the operators of a test, so that the same
inputs go through it there.
"""

import contextlib

import accelerated
import pytest
import torch
from against_cpu import check
from twins import check_case

import torch_fl
from torch_fl import routes

D = "flagos"
NO_TWIN = torch_fl.platform()["twin"] in (None, "none", "")


@contextlib.contextmanager
def fallback(*operators):
    """These operators by the route `cpu`."""
    known = set(routes.operators())
    with routes.using({name: "cpu" for name in operators if f"aten::{name}" in known}):
        yield


def through_cpu(program, *operators):
    def run(device):
        with fallback(*operators):
            return program(device)

    return check(run)


# --- writes to lists are copied back -------------------------------------------------------------

LISTS = {
    "_foreach_add_.List": lambda a, b: torch._foreach_add_(a, b),
    "_foreach_add_.Scalar": lambda a, b: torch._foreach_add_(a, 2.0),
    "_foreach_mul_.List": lambda a, b: torch._foreach_mul_(a, b),
    "_foreach_addcdiv_.Scalar": lambda a, b: torch._foreach_addcdiv_(a, b, [t + 1 for t in b], 0.5),
    "_foreach_sqrt_": lambda a, b: torch._foreach_sqrt_(a),
    "_foreach_lerp_.Scalar": lambda a, b: torch._foreach_lerp_(a, b, 0.5),
    "_foreach_copy_": lambda a, b: torch._foreach_copy_(a, b),
    "_foreach_zero_": lambda a, b: torch._foreach_zero_(a),
    "_foreach_norm.Scalar": lambda a, b: torch._foreach_norm(a),
    "unbind_copy.int_out": lambda a, b: torch.unbind_copy(
        torch.stack(a), out=[torch.empty_like(t) for t in a]
    ),
    "split_copy.Tensor_out": lambda a, b: torch.split_copy(a[0], 2, out=[b[0][:2], b[0][2:]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_writes_to_a_list_are_copied_back(name):
    def program(device):
        a = [torch.arange(4.0).to(device) + i for i in range(3)]
        b = [torch.arange(4.0).to(device) * i for i in range(3)]
        versions = [t._version for t in a]
        result = LISTS[name](a, b)
        changed = [t._version > v for t, v in zip(a, versions)]
        return [a, b, list(result) if isinstance(result, (list, tuple)) else None, changed]

    through_cpu(program, name)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_optimizers_change_their_parameters(kind):
    def program(device):
        p = [torch.ones(3, device=device, requires_grad=True) for _ in range(2)]
        options = {"fused": True, "lr": 0.1}
        if kind == "SGD":
            options["momentum"] = 0.9
        optimizer = getattr(torch.optim, kind)(p, **options)
        for _ in range(2):
            sum((t * t).sum() for t in p).backward()
            optimizer.step()
        return [t.detach() for t in p]

    through_cpu(program, "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")


# --- device rules are not loosened ---------------------------------------------------------------


def test_a_device_mismatch_is_not_hidden():
    dev, cpu = torch.ones(3, device=D), torch.ones(3)
    with fallback("dot", "mm", "add.Tensor", "mul.Tensor", "add_.Tensor"):
        for call in (
            lambda: torch.dot(dev, cpu),
            lambda: torch.dot(cpu, dev),
            lambda: torch.mm(dev.view(1, 3), cpu.view(3, 1)),
            lambda: dev + cpu,
            lambda: cpu + torch.tensor(1.0, device=D),
            lambda: cpu.add_(torch.tensor(1.0, device=D)),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                call()
        assert (dev + torch.tensor(2.0)).tolist() == [3, 3, 3]
        assert (torch.tensor(2.0) * dev).tolist() == [2, 2, 2]


# --- classes of operators that it cannot serve ---------------------------------------------------


def test_views_factories_and_copies_are_never_on_it():
    names = set(routes.operators())
    for name in (
        "view",
        "as_strided",
        "unfold",
        "_reshape_alias",
        "view_as_real",
        "view_as_complex",
        "empty.memory_format",
        "empty_strided",
        "copy_",
        "_to_copy",
        "set_.source_Storage_storage_offset",
        "_local_scalar_dense",
    ):
        assert f"aten::{name}" in names
        assert "cpu" not in routes.read(name).possible, name


@pytest.mark.parametrize(
    "name", ["normal_", "uniform_", "random_", "bernoulli_.float", "exponential_"]
)
def test_draws_are_the_devices_own(name):
    """A draw on the host must move the device's generator and not the host's."""
    draw = getattr(torch.Tensor, name.split(".")[0])
    with fallback(name):
        torch.flagos.manual_seed(4)
        before = torch.get_rng_state()
        first = draw(torch.zeros(5, device=D))
        assert torch.equal(torch.get_rng_state(), before)
        second = draw(torch.zeros(5, device=D))
        torch.flagos.manual_seed(4)
        assert torch.equal(draw(torch.zeros(5, device=D)), first)
        assert name == "bernoulli_.float" or not torch.equal(first, second)


# --- results of other dtypes and sizes -----------------------------------------------------------


def test_complex_results():
    def program(device):
        x = torch.arange(8.0).to(device)
        z = torch.fft.rfft(x)
        return [
            z,
            z.abs(),
            z.angle(),
            torch.fft.irfft(z),
            torch.fft.fft2(x.view(2, 4)),
            torch.view_as_real(z),
        ]

    through_cpu(program, "_fft_r2c", "_fft_c2r", "_fft_c2c", "abs", "angle")


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_boolean_masks_of_any_size(size):
    def program(device):
        x = torch.arange(float(size)).to(device)
        whole, none = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x, dtype=torch.bool)
        results = [x[whole], x[none], x[x > 0], torch.masked_select(x, x > 0), x.nonzero()]
        scalar = torch.tensor(2.0).to(device)
        results += [scalar[torch.tensor(True).to(device)], scalar[torch.tensor(False).to(device)]]
        x[x > 0] = 7
        return [*results, x, *torch.unique(x, return_counts=True)]

    through_cpu(program, "index.Tensor", "masked_select", "nonzero", "_unique2", "_index_put_impl_")


# --- operators that exist only to be overridden --------------------------------------------------


def test_operators_to_be_overridden_have_a_kernel():
    x, weight = torch.randn(1, 2, 4, 4, device=D), torch.randn(3, 2, 3, 3, device=D)
    arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    y = torch.ops.aten.convolution_overrideable(x, weight, None, *arguments)
    wanted = torch.conv2d(x.cpu(), weight.cpu())
    torch.testing.assert_close(y.cpu(), wanted)
    grad = torch.ones_like(y)
    got = torch.ops.aten.convolution_backward_overrideable(
        grad, x, weight, *arguments, [True, True, True]
    )
    wanted = torch.ops.aten.convolution_backward(
        grad.cpu(), x.cpu(), weight.cpu(), [3], *arguments, [True, True, True]
    )
    for left, right in zip(got, wanted):
        torch.testing.assert_close(left.cpu(), right)


def test_convolution_and_attention_run_whole():
    if not NO_TWIN:
        check_case(accelerated.convolution_and_attention)
        return
    torch.manual_seed(0)
    wanted = accelerated.convolution_and_attention("cpu")
    torch.manual_seed(0)
    # Attention by its formula, not in one kernel.
    for left, right in zip(accelerated.convolution_and_attention(D), wanted):
        torch.testing.assert_close(left.cpu(), right)
