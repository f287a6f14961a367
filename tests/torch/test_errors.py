"""Errors: their class, their words, and that they leave everything as it was. Errors of loading are
in test_load.py, errors of devices and generators in test_device_rules.py."""

import subprocess
import sys
import threading

import pytest
import torch
from against_cpu import PLATFORM, check, state
from conftest import ROOT, assert_device_is_lost

D = "flagos"


def x(device, *shape):
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape).to(device)


WRONG = {
    "shapes": lambda d: x(d, 2, 3) + x(d, 4),
    "mm": lambda d: torch.mm(x(d, 2, 3), x(d, 2, 3)),
    "bmm": lambda d: torch.bmm(x(d, 1, 2, 3), x(d, 2, 3, 2)),
    "linear": lambda d: torch.nn.functional.linear(x(d, 2, 3), x(d, 4, 2)),
    "conv": lambda d: torch.conv2d(x(d, 1, 2, 4, 4), x(d, 1, 1, 2, 2)),
    "dtype of mm": lambda d: torch.mm(x(d, 2, 2), x(d, 2, 2).double()),
    "dtype of out": lambda d: torch.add(
        x(d, 2), 1, out=torch.empty(2, dtype=torch.int32, device=d)
    ),
    "dtype in place": lambda d: torch.ones(2, dtype=torch.int32, device=d).add_(1.5),
    "index": lambda d: x(d, 3)[5],
    "index tensor": lambda d: x(d, 3)[torch.tensor([5], device=d)],
    "index_select": lambda d: x(d, 3).index_select(0, torch.tensor([5], device=d)),
    "gather": lambda d: x(d, 3).gather(0, torch.tensor([5], device=d)),
    "embedding": lambda d: torch.nn.functional.embedding(torch.tensor([9], device=d), x(d, 3, 2)),
    "dim": lambda d: x(d, 2, 3).sum(5),
    "cat": lambda d: torch.cat([x(d, 2, 3), x(d, 3, 2)]),
    "cat of nothing": lambda d: torch.cat([]),
    "stack": lambda d: torch.stack([x(d, 2), x(d, 3)]),
    "reshape": lambda d: x(d, 6).reshape(4, 2),
    "inverse": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "cholesky": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "softmax": lambda d: torch.softmax(x(d, 3), 4),
    "nll_loss": lambda d: torch.nn.functional.nll_loss(x(d, 2, 3), torch.tensor([0, 7], device=d)),
    "item": lambda d: x(d, 3).item(),
    "bool": lambda d: bool(x(d, 3)),
    "not implemented": lambda d: torch.linalg.qr(x(d, 2, 2).half()),
    "multinomial": lambda d: torch.multinomial(x(d, 3) * -1, 2),
    "bernoulli": lambda d: torch.bernoulli(x(d, 3) * 5),
    "norm shape": lambda d: torch.nn.functional.layer_norm(x(d, 2, 3), [4]),
    "batch_norm": lambda d: torch.nn.functional.batch_norm(x(d, 1, 3), None, None, training=True),
    "foreach": lambda d: torch._foreach_add([x(d, 2)], [x(d, 2), x(d, 2)]),
    "backward twice": lambda d: _backward_twice(d),
    "in place on a leaf": lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
    "grad of an integer": lambda d: torch.ones(2, dtype=torch.int64, device=d).requires_grad_(),
    "saved tensor changed": lambda d: _saved_changed(d),
    "no grad_fn": lambda d: x(d, 2).sum().backward(),
    "complex to real": lambda d: torch.ones(2, device=d).add_(1j),
    "arange": lambda d: torch.arange(0, 5, -1, device=d),
    "window": lambda d: torch.nn.functional.unfold(x(d, 1, 1, 2, 2), 5),
    "unique": lambda d: torch.unique_consecutive(x(d, 3), dim=4),
    "scatter": lambda d: torch.zeros(3, device=d).scatter_(0, torch.tensor([4], device=d), 1.0),
    "expand": lambda d: x(d, 3).expand(2),
    "kernel of its own class": lambda d: torch.linalg.solve(torch.zeros(2, 2, device=d), x(d, 2)),
}


# What only a kernel sees. The host's raises at the call; CUDA's stops the device, which is said when
# somebody waits next, and the process cannot use the device any more.
SEEN_BY_KERNELS = {
    "index tensor", "index_select", "gather", "embedding", "nll_loss", "bernoulli", "scatter",
    "multinomial",
}  # fmt: skip
AT_THE_CALL = [name for name in WRONG if PLATFORM != "cuda" or name not in SEEN_BY_KERNELS]


def _backward_twice(device):
    y = x(device, 2).requires_grad_().exp().sum()
    y.backward()
    y.backward()


def _saved_changed(device):
    y = x(device, 2).requires_grad_() * 1
    z = y.exp()
    z.add_(1)
    z.sum().backward()


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_class_and_text_are_the_twins(name):
    error = check(WRONG[name], text=name != "saved tensor changed")
    assert isinstance(error, Exception), f"{name} raised nothing"
    assert "privateuse" not in str(error).lower()


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_the_device_goes_on_working(name):
    with pytest.raises(Exception):  # noqa: B017: what class it has is the test above.
        WRONG[name](D)
    assert (torch.ones(2, device=D) + 1).tolist() == [2, 2]
    assert torch.flagos.current_device() == 0


@pytest.mark.platforms("cuda")
@pytest.mark.parametrize("name", sorted(SEEN_BY_KERNELS))
def test_what_only_a_kernel_sees_is_said_at_the_next_wait(name):
    assert_device_is_lost("test_errors", f"WRONG[{name!r}]")


def test_operands_are_as_before():
    a, b, out = x(D, 2, 3), x(D, 4), torch.empty(0, device=D)
    view, wide = a.t(), torch.ones([1] * 8, device=D)
    everything = (a, b, out, view, wide)
    before = [state(tensor) for tensor in everything]
    values = [tensor.tolist() for tensor in everything]
    calls = [
        lambda: torch.add(a, b, out=out),
        lambda: torch.mm(a, a, out=out),
        lambda: torch.cat([a, b, wide], out=out),
        lambda: torch.mul(view, b),
        lambda: torch.linalg.inv(torch.zeros(2, 2, device=D), out=out),
        lambda: torch._foreach_mul([a, wide], [b, b]),
    ]
    if "index_select" in AT_THE_CALL:
        calls.append(lambda: torch.index_select(a, 0, torch.tensor([9], device=D), out=out))
    for call in calls:
        with pytest.raises((RuntimeError, IndexError)):
            call()
        after = [state(tensor) for tensor in everything]
        # An `out` may be given its size before its values turn out not to exist, as on the twin.
        assert [entry for i, entry in enumerate(after) if i != 2] == [
            entry for i, entry in enumerate(before) if i != 2
        ]
    assert [tensor.tolist() for i, tensor in enumerate(everything) if i != 2] == [
        value for i, value in enumerate(values) if i != 2
    ]


def test_errors_of_a_backward_reach_the_caller():
    """From a node in the autograd thread, from a hook, and the process lives."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.mm(grad, grad)  # Not matrices.

    leaf = x(D, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="(?i)matri|2-D|2D"):
        Fails.apply(leaf).sum().backward()
    y = leaf * 2
    y.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    (leaf * 3).sum().backward()
    assert leaf.grad.tolist() == [3, 3, 3]


def test_errors_in_threads_reach_them():
    said = []

    def work():
        for _ in range(50):
            try:
                x(D, 2, 3) + x(D, 4)
            except RuntimeError as error:
                said.append("size" in str(error))
            x(D, 2) + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [True] * 200


def test_many_errors_leak_nothing():
    code = """
import gc, resource, torch, torch_fl
a, b = torch.ones(1000, 1000, device="flagos"), torch.ones(3, device="flagos")
def once():
    for call in (lambda: a + b, lambda: torch.mm(a, b), lambda: torch.cat([a, b]),
                 lambda: torch.add(a, b, out=torch.empty(0, device="flagos")),
                 lambda: torch._foreach_add([a, a], [b, b])):
        try: call()
        except RuntimeError: pass
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for _ in range(50): once()
before = resident()
for _ in range(500): once()
print((resident() - before) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30, "MiB grew with errors"


@pytest.mark.parametrize("ending", ["pass", "1 / 0", "os._exit(0)"])
def test_a_process_ends_well_whatever_holds_tensors(ending):
    """Module globals, threads, a graph, an open frame of a kernel, generators, streams."""
    code = f"""
import os, sys, threading, torch, torch_fl
x = torch.ones(1000, device="flagos", requires_grad=True)
graph = (x * 2).relu().sum()
held = [torch.ones(10, device="flagos")[2:] for _ in range(100)]
event, stream, generator = torch.flagos.Event(), torch.flagos.Stream(), torch.Generator("flagos")
local = threading.local()
def work(stop):
    local.tensor = x + 1
    while not stop.wait(0.001):
        local.tensor = local.tensor + 1
class Late:
    def __del__(self):
        self.tensor + 1
late = Late(); late.tensor = x
sys.modules["late"] = late
thread = threading.Thread(target=work, args=(threading.Event(),), daemon=True)
thread.start()
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == (1 if ending == "1 / 0" else 0), done.stderr
    assert "ZeroDivisionError" in done.stderr or ending != "1 / 0"
    assert "terminate" not in done.stderr and "Segmentation" not in done.stderr


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("name", ["kthvalue", "erf"], ids=["boxed", "typed"])
def test_an_unsupported_dtype_names_the_kernel_and_the_route(name):
    arguments = {"kthvalue": (torch.ones(3, device="flagos") > 0, 1)}
    arguments["erf"] = (torch.ones(3, device="flagos").to(torch.complex64),)
    with pytest.raises(NotImplementedError, match=rf'(?s)"{name}_.*the route \'native\''):
        getattr(torch, name)(*arguments[name])


@pytest.mark.platforms("cpu")
def test_an_operator_and_its_foreach_form_fail_with_the_same_text():
    x, texts = torch.ones(3, device="flagos") > 0, []
    for call in (lambda: torch.floor(x), lambda: torch._foreach_floor([x])):
        with pytest.raises(NotImplementedError) as raised:
            call()
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
