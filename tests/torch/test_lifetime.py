"""The end of things: processes that end in every way while tensors are alive, a second interpreter,
and objects that come and go ten thousand times."""

import gc
import pathlib
import sys

import pytest
import torch
from conftest import run_python

import torch_fl

D = "flagos"
PLATFORM = torch_fl.platform()["name"]

# --- how a process ends --------------------------------------------------------------------------

HOLD = """
import atexit, ctypes, gc, os, sys, threading, weakref
import torch, torch_fl
D = "flagos"
x = torch.ones(1000, device=D, requires_grad=True)
y = (x * 2).relu()
"""

HOLDERS = {
    "globals": "model = torch.nn.Linear(4, 4).to(D)\nout = model(torch.ones(2, 4, device=D))",
    "modules": "torch.kept = y; sys.modules['kept'] = torch.ones(3, device=D)",
    "an autograd graph": "loss = y.sum(); loss.backward(retain_graph=True)",
    "a hook": "x.register_hook(lambda g: g * 2)\n"
    "hooked = (x * 3).sum(); hooked.backward(retain_graph=True)",
    "a cycle": "cycle = [y]; cycle.append(cycle); gc.disable()",
    "a cache": "caches = {}; caches[x.data_ptr()] = (x, y); torch._cached = caches",
    "streams": "s = torch.flagos.Stream(); e = torch.flagos.Event(); s.record_event(e)",
    "a running stream": "s2 = torch.flagos.Stream()\n"
    "with s2: running = torch.ones(99999, device=D) * 2",
    "pinned memory": "pinned = torch.ones(1000).pin_memory()\n"
    "unpinned = pinned.to(D, non_blocking=True)",
    "a generator": "g = torch.Generator(D); drawn = torch.randn(4, device=D, generator=g)",
    "an array": "taken = torch.from_dlpack(x.detach().cpu().numpy(), device=D)",
    "a leaked reference": "ctypes.pythonapi.Py_IncRef(ctypes.py_object(y))",
    "a thread's locals": "local = threading.local(); local.kept = y",
    "an atexit function": "atexit.register(lambda: (y * 2).sum().item())",
    "a finalizer": "weakref.finalize(y, print, end='')",
    "a daemon thread": "def run():\n    while True: (x.detach() * 2).sum().item()\n"
    "threading.Thread(target=run, daemon=True).start()",
    "a sleeping daemon thread": "held = threading.Event()\n"
    "def run(z): held.wait()\nthreading.Thread(target=run, args=(y * 2,), daemon=True).start()",
    "backward in a thread": "threading.Thread(target=lambda: (x * 2).sum().backward()).start()",
    "a thread of C": "import multiprocessing.pool as p; pool = p.ThreadPool(2); "
    "mapped = pool.map(lambda i: torch.ones(i + 1, device=D), range(4))",
}
ENDINGS = {
    "the last line": ("", 0, ""),
    "sys.exit": ("sys.exit(0)", 0, ""),
    "sys.exit of a number": ("sys.exit(3)", 3, ""),
    "an exception": ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "os._exit": ("os._exit(5)", 5, ""),
}


def end(holders, ending):
    code, wanted, words = ENDINGS[ending]
    lines = [HOLD, *(HOLDERS[holder] for holder in holders), code]
    done = run_python("\n".join(lines), TORCH_FL_PLATFORM=PLATFORM)
    assert done.returncode == wanted and done.stdout == "", (done.returncode, done.stderr)
    if words:
        assert done.stderr.startswith("Traceback") and done.stderr.endswith(words + "\n")
        assert done.stderr.count("\n") in (3, 4), done.stderr  # A line of source, if it is known.
    else:
        assert done.stderr == ""


def test_a_process_ends_quietly_whatever_holds_tensors():
    end(HOLDERS, "the last line")


@pytest.mark.full
@pytest.mark.parametrize("holder", HOLDERS)
def test_each_holder_by_itself(holder):
    end([holder], "the last line")


@pytest.mark.parametrize("ending", list(ENDINGS)[1:])
@pytest.mark.parametrize("holder", ["an autograd graph", "a daemon thread"])
def test_a_process_ends_as_it_was_told(holder, ending):
    end([holder], ending)


def test_an_error_of_ours_that_nobody_catches_is_one_traceback():
    done = run_python(HOLD + "torch.ones(2, device='flagos:77')", TORCH_FL_PLATFORM=PLATFORM)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Traceback") and "77" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module has another name")
def test_a_second_interpreter_is_refused_before_torch_is_loaded(python):
    code = """
import torch_fl, _xxsubinterpreters as interpreters
try:
    interpreters.run_string(interpreters.create(isolated=False), "import torch_fl")
except Exception as error:
    print(error)
import torch
print(torch.ones(2, device="flagos").sum().item())
"""
    said = python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_DEVICE_BACKEND_AUTOLOAD=0).splitlines()
    assert "main Python interpreter" in said[0] and said[1] == "2.0"


# --- objects that come and go --------------------------------------------------------------------

BASE = torch.arange(100.0, device=D)


def a_graph_of_autograd():
    x = torch.ones(10, device=D, requires_grad=True)
    (x * 2).relu().sum().backward()


def an_event():
    event = torch.flagos.Event(enable_timing=True)
    event.record()
    event.query()


def a_stream():
    with torch.flagos.stream(torch.flagos.Stream()):
        torch.empty(10, device=D)


def a_failure():
    try:
        BASE.view(7)
    except RuntimeError:
        pass


def a_cycle():
    tensor = torch.empty(10, device=D)
    tensor.itself = tensor


def a_resized_storage():
    storage = torch.ones(10, device=D).untyped_storage()
    storage.resize_(80)
    storage.resize_(0)


def through_dlpack():
    torch.from_dlpack(torch.from_dlpack(BASE), device="cpu")


def through_numpy():
    torch.from_dlpack(BASE.numpy(force=True), device=D)


def shared_memory():
    if torch_fl.platform()["twin"] == "cpu":
        torch.ones(10, device=D).share_memory_()


OBJECTS = {
    "tensor": lambda: torch.empty(1000, device=D),
    "result": lambda: BASE + 1,
    "view": lambda: BASE[1:].view(3, 33),
    "storage": lambda: torch.UntypedStorage(1000, device=D),
    "stream": a_stream,
    "generic stream": lambda: torch.Stream(device=D),
    "event": an_event,
    "generator": lambda: torch.Generator(D).manual_seed(1),
    "pinned tensor": lambda: torch.empty(100).pin_memory(),
    "copy": lambda: torch.ones(10).to(D).cpu(),
    "graph of autograd": a_graph_of_autograd,
    "lazy clone": lambda: torch._lazy_clone(BASE).add_(1),
    "parameter": lambda: torch.nn.Parameter(torch.empty(10, device=D)),
    "sparse tensor": lambda: BASE[:4].view(2, 2).to_sparse(),
    "error": a_failure,
    "cycle": a_cycle,
    "resized storage": a_resized_storage,
    "capsule": through_dlpack,
    "array": through_numpy,
    "shared memory": shared_memory,
}


def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def repeat(make, times):
    for _ in range(times):
        make()
    gc.collect()
    torch.flagos.synchronize()


def allocated():
    if PLATFORM == "cpu":
        return 0
    return torch.flagos.memory_stats().get("allocation.all.current", 0)


@pytest.mark.parametrize("name", OBJECTS)
def test_ten_thousand_of_them_leave_nothing(name):
    make = OBJECTS[name]
    repeat(make, 1500)
    blocks, descriptors = allocated(), len(list(pathlib.Path("/proc/self/fd").iterdir()))
    # What leaks grows each time; what only the first time needs, as the C library's pools, does not.
    for _ in range(3):
        before = resident()
        repeat(make, 10_000)
        grown = resident() - before
        if grown < 100 * 10_000:
            break
    assert allocated() == blocks
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) <= descriptors
    assert grown < 100 * 10_000, f"{grown / 10_000:.0f} bytes for each"
