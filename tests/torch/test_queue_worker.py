"""What the worker of the launch queue does while the caller waits for it: calls that use libraries, and
first calls. They raise, warn and look as they do in the caller's thread. And what it is spared."""

import pytest
import torch
from queueing import D, PLATFORM, as_it_was, keep_busy, warm_up, with_twin  # noqa: F401

from torch_fl import _C, queue


def record_names():
    return [task.name for task in queue.record()]


@with_twin
def test_the_first_call_of_a_kind_is_made_by_the_worker(python):
    """So that libraries keep their handles and workspaces for one thread."""
    code = """
import torch
from torch_fl import queue
x = torch.ones(3, 3, device="flagos")
y = x @ x
print(y[0, 0].item(), [t.name for t in queue.record() if t.state == "done"].count("aten::mm"))
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1) == "3.0 1\n"


@with_twin
def test_what_calls_libraries_is_called_by_the_worker():
    x = torch.randn(2, 3, 8, 8, device=D)
    w = torch.randn(4, 3, 3, 3, device=D)
    a, v = torch.randn(5, 5, device=D), torch.randn(5, device=D)
    wide = torch.randn(70, 3, 80, 80, device=D)
    calls = {
        "aten::convolution": lambda: torch.nn.functional.conv2d(wide, w),
        "aten::mv": lambda: torch.mv(a, v),
        "aten::linalg_inv_ex": lambda: torch.linalg.inv(a),
        "aten::addmv_": lambda: v.clone().addmv_(a, v),
        "aten::mm.out": lambda: torch.mm(a, a, out=torch.empty(5, 5, device=D)),
    }
    for name, call in calls.items():
        with queue.using(False):
            wanted = call()
        keep_busy(1)
        got = call()
        assert name in record_names()[-3:], (name, record_names()[-3:])
        assert torch.equal(got.cpu(), wanted.cpu()) and got.stride() == wanted.stride()
    y = torch.nn.functional.conv2d(x.requires_grad_(), w.requires_grad_())
    y.sum().backward()
    with queue.using(False):
        wanted = torch.autograd.grad(torch.nn.functional.conv2d(x, w).sum(), [x, w])
    assert torch.equal(x.grad, wanted[0]) and torch.equal(w.grad, wanted[1])


@with_twin
def test_what_the_worker_is_asked_to_do_at_once_raises_and_warns_in_the_caller():
    a = torch.randn(3, 3, device=D)
    singular = torch.zeros(3, 3, device=D)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(singular)
    with pytest.raises(RuntimeError, match="size"):
        torch.mv(a, torch.ones(4, device=D))
    with pytest.warns(UserWarning, match="was resized"):
        torch.mm(a, a, out=torch.empty(2, 2, device=D))
    with torch.inference_mode():
        assert torch.mv(a, a[0]).is_inference()
    queue.drain()


@with_twin
def test_an_earlier_failure_is_raised_by_a_call_that_waits_for_the_worker():
    a = torch.randn(3, 3, device=D)
    warm_up(lambda: a + 1)
    for n in (1, 2):
        _C.queue_fail_nth(n)
        with pytest.raises(RuntimeError, match="launch queue"):
            b = a + 1
            torch.dot(b[0], b[1])
        queue.drain()
    assert torch.dot(a[0], a[1]).shape == ()


@with_twin
def test_a_thread_that_waits_after_each_operator_calls_it_itself(python):
    code = """
import torch, torch_fl
from torch_fl import queue

x = torch.ones(4, device="flagos")
def tasks(program):
    before = queue.stats()["queued"]
    program()
    return queue.stats()["queued"] - before

def lone():
    assert (x + 1).tolist() == [2] * 4

def pair():
    assert ((x + 1) + 1).tolist() == [3] * 4

lone()  # The first call with some dtypes shows that there is a kernel.
queue.set(True)
print([tasks(lone) for _ in range(5)])
print([tasks(pair) for _ in range(3)], [tasks(lone) for _ in range(4)])
queue.set(True)  # Forgets how the thread waited.
print(tasks(lone))
"""
    told = python(code, TORCH_FL_QUEUE=1, TORCH_FL_QUEUE_ALWAYS=None, TORCH_FL_PLATFORM=PLATFORM)
    assert told == "[1, 1, 0, 0, 0]\n[1, 2, 2] [1, 1, 0, 0]\n1\n"
    told = python(code, TORCH_FL_QUEUE=1, TORCH_FL_QUEUE_ALWAYS=1, TORCH_FL_PLATFORM=PLATFORM)
    assert told == "[1, 1, 1, 1, 1]\n[2, 2, 2] [1, 1, 1, 1]\n1\n"
