"""Inputs that broke backends like this one, section G: autograd and threads."""

import threading

import pytest
import torch
from against_cpu import check
from conftest import run_python

D = "flagos"
COUNT = torch.flagos.device_count()


# --- the engine's streams ------------------------------------------------------------------------


def test_plain_cpu_autograd_is_untouched():
    x = torch.randn(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_graphs_that_cross_devices():
    def program(device):
        x = torch.arange(3.0, requires_grad=True)
        y = (x.to(device) * 2).cpu() * 3
        z = (y.to(device, torch.float64) ** 2).to("cpu", torch.float32)
        (z.sum() + (x.to(device) * x.to(device)).sum().cpu()).backward()
        return x.grad

    check(program)


def test_reentrant_backward_and_hooks():
    def program(device):
        seen = []

        class Reentrant(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                with torch.enable_grad():
                    inner = x.detach().requires_grad_()
                    (inner * inner).sum().backward()
                return grad * inner.grad

        x = torch.arange(3.0).to(device).requires_grad_()
        y = Reentrant.apply(x)
        y.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
        x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
        (y * 3).sum().backward()
        return [x.grad, *seen]

    check(program)


def test_saved_tensor_hooks():
    def program(device):
        packed = []

        def pack(tensor):
            packed.append(tensor.device.type == torch.device(device).type)
            return tensor.cpu()

        x = torch.arange(1.0, 4.0).to(device).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to(device)):
            y = (x.exp() * x).sum()
        y.backward()
        return [x.grad, all(packed), len(packed)]

    check(program)


def test_higher_derivatives_and_accumulation():
    def program(device):
        x = torch.arange(1.0, 4.0).to(device).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        second.sum().backward()
        for _ in range(3):
            (x * 2).sum().backward()
        return [first.detach(), second.detach(), x.grad]

    check(program)


# --- errors inside a backward node ---------------------------------------------------------------


def test_an_error_in_a_native_backward_is_an_exception():
    code = """
import torch, torch_fl
x = torch.ones(3, device="flagos", requires_grad=True)
y = x * x
failed = 0
ones = torch.ones(3, device="flagos")
for grad in (torch.ones(5, device="flagos"), torch.ones(3), ones.to(torch.complex64)):
    try:
        y.backward(grad, retain_graph=True)
    except RuntimeError:
        failed += 1
z = torch.linalg.inv(torch.eye(2, device="flagos").requires_grad_())
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad): return torch.empty(2**55, device="flagos")
try:
    Fails.apply(x).sum().backward()
except RuntimeError:
    failed += 1
w = x * 1
w.register_hook(lambda grad: 1 / 0)
try:
    w.sum().backward()
except ZeroDivisionError:
    failed += 1
x.grad = None
(x * 2).sum().backward()
print(failed, x.grad.tolist())
"""
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert done.returncode == 0, done.stderr
    failed, grad = done.stdout.split(" ", 1)
    assert int(failed) >= 4 and grad == "[2.0, 2.0, 2.0]\n"


# --- threads -------------------------------------------------------------------------------------


def test_first_use_in_a_thread_that_is_not_the_main_one():
    code = """
import threading, torch, torch_fl
results, errors = [], []
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.ones(3, 4)
wanted = model(x).detach()
def work(number):
    try:
        if number == 0:
            model.to("flagos")
            ready.set()
        ready.wait()
        y = model(x.to("flagos"))
        y.sum().backward()
        results.append(torch.allclose(y.detach().cpu(), wanted))
    except Exception as error:
        errors.append(error)
ready = threading.Event()
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(results, errors)
"""
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert done.stdout == "[True, True, True, True] []\n", done.stdout + done.stderr


def test_threads_share_a_models_weights():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    inputs = [torch.randn(3, 8) for _ in range(4)]
    wanted = [model(x).detach() for x in inputs]
    model.to(D)
    got, errors = [None] * 4, []

    def work(number):
        try:
            x = inputs[number].to(D)
            for _ in range(100):
                got[number] = model(x)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for left, right in zip(got, wanted):
        torch.testing.assert_close(left.detach().cpu(), right)


def test_backward_on_the_last_device_and_before_the_count_was_asked():
    code = """
import torch, torch_fl
x = torch.ones(3, device="flagos", requires_grad=True)
(x * 2).sum().backward()
last = torch.flagos.device_count() - 1
y = torch.ones(3, device=f"flagos:{last}", requires_grad=True)
(y * x.to(y.device)).sum().backward()
print(y.grad.device.index == last, x.grad.tolist())
"""
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert done.stdout == "True [3.0, 3.0, 3.0]\n", done.stdout + done.stderr
    x = torch.randn(4, device=f"{D}:{COUNT - 1}", requires_grad=True)
    x.cumsum(0).sort().values.sum().backward()
    assert x.grad.device == x.device


# --- a module that moves between forward and backward --------------------------------------------


@pytest.mark.parametrize("grad_first", [False, True])
def test_a_module_moved_between_forward_and_backward(grad_first):
    """As on CUDA: the graph goes on with what it saved and its gradient lies where it ran; adding
    it to one that has moved is an error."""
    model = torch.nn.Linear(3, 2).to(D)
    x = torch.ones(1, 3, device=D, requires_grad=True)
    if grad_first:
        model(x).sum().backward()
    loss = model(x).sum()
    model.cpu()
    if grad_first:
        assert model.weight.grad.device.type == "cpu"
        with pytest.raises(RuntimeError, match="device"):
            loss.backward()
    else:
        loss.backward()
        assert model.weight.grad.device.type == D and x.grad.device.type == D
    assert model(torch.ones(1, 3)).device.type == "cpu"
    model.to(D)
    assert model(torch.ones(1, 3, device=D)).device.type == D
