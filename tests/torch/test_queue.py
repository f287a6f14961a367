"""The launch queue: what is queued works as it does at once, whatever is freed, read, raised, set or
ended meanwhile. Platforms without a twin queue nothing, and say so."""

import gc
import time

import pytest
import torch
from conftest import run_python
from queueing import D, PLATFORM, TWIN, as_it_was, keep_busy, queued, warm_up, with_twin  # noqa: F401

from torch_fl import _C, queue, routes

# --- memory --------------------------------------------------------------------------------------


@with_twin
def test_memory_that_the_caller_frees_is_not_used_before_queued_operators_have_read_it():
    base = torch.arange(1000.0, device=D)
    results, host = [], []

    def one(number):
        operand = base + number
        results.append(operand * 2)
        del operand  # The only reference outside the queue.
        host.append(torch.full((1000,), -1.0))  # Would get the operand's memory.

    warm_up(lambda: one(0))
    results.clear()
    keep_busy()
    for number in range(300):
        one(float(number))
    for number, result in enumerate(results):
        assert torch.equal(result.cpu(), (torch.arange(1000.0) + number) * 2)


@with_twin
def test_results_that_nobody_keeps_are_freed():
    x = torch.ones(1000, device=D)
    before = queue.stats()["held_bytes"]
    for _ in range(100):
        x + 1
    queue.drain()
    assert queue.stats()["held_bytes"] == before == 0


@with_twin
def test_a_storage_that_python_knows_is_let_go_of_by_threads_that_may_hold_pythons_lock():
    """The worker never drops the last reference: that could run Python while a thread that holds
    Python's lock waits for the worker."""
    for _ in range(200):
        x = torch.ones(100, device=D)
        storage = x.untyped_storage()
        y = x + 1
        del x, storage
        keep_busy(1)
    assert y.sum().item() == 200
    gc.collect()


@with_twin
def test_the_caller_waits_while_new_memory_is_beyond_the_bound(python):
    code = """
import torch
from torch_fl import queue
x = torch.ones(1000, 1000, device="flagos")
x @ x; x + 1
queue.drain()
for _ in range(3): x @ x
for _ in range(50): y = x + 1
print(queue.stats()["full"] > 0, y.sum().item())
"""
    said = python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1, TORCH_FL_QUEUE_BYTES="8M")
    assert said == "True 2000000.0\n"


PEAK = """
import torch
import torch_fl
if {accelerator}:
    peak = torch.cuda.max_memory_allocated
else:
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
x = torch.rand(1024, 4096, device="flagos")  # 16 MiB
x + x; x.clone().mul_(0.5)
torch.flagos.synchronize()
before = peak()
out = x
for _ in range(40):
    out = (out + x).mul_(0.5)
out.sum().item()
print(peak() - before)
"""


@with_twin
def test_memory_that_waits_to_be_freed_hardly_raises_the_peak(python):
    """Two operators are queued sooner than they run, so without a bound three results would be
    there beside the two of native's."""
    code = PEAK.format(accelerator=TWIN == "cuda")
    environment = {
        "TORCH_FL_PLATFORM": PLATFORM,
        "TORCH_FL_QUEUE_DELAY_US": 2000,
        "MALLOC_MMAP_THRESHOLD_": 1 << 20,  # So that the host gives back what is freed.
    }
    peaks = [int(python(code, TORCH_FL_QUEUE=on, **environment)) for on in (0, 1)]
    assert peaks[1] <= peaks[0] + (4 << 20), peaks


@with_twin
def test_the_caller_waits_while_the_queue_is_full():
    x = torch.zeros(8, device=D)
    warm_up(lambda: x.add_(1))
    x.zero_()
    keep_busy()
    for _ in range(5000):
        x.add_(1)
    assert x.tolist() == [5000.0] * 8


# --- nothing reads early -------------------------------------------------------------------------


def read_through_numpy(x):
    return x.numpy()[0]


def read_through_its_address(x):
    import ctypes

    return ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))[0]


def read_through_the_storage(x):
    import ctypes

    return ctypes.cast(x.untyped_storage().data_ptr(), ctypes.POINTER(ctypes.c_float))[0]


def waited_for(host):
    torch.flagos.synchronize()  # What does not block on a card is there after this.
    return host


READERS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist()[0],
    "cpu": lambda x: x.cpu()[0].item(),
    "to the host, not blocking": lambda x: waited_for(x.to("cpu", non_blocking=True))[0].item(),
    "text": lambda x: float(str(x[0]).split("(")[1].split(",")[0]),
    "bool": lambda x: 8.0 if x[0] == 8 else 0.0,
    "equal": lambda x: 8.0 if torch.equal(x, torch.full((1000,), 8.0, device=D)) else 0.0,
    "an operator that is not queued": lambda x: torch.sort(x)[0][0].item(),
    "storage": lambda x: x.untyped_storage().cpu().nbytes() and x[0].item(),
    "pickle": lambda x: __import__("pickle").loads(__import__("pickle").dumps(x))[0].item(),
    "deepcopy": lambda x: __import__("copy").deepcopy(x)[0].item(),
    "resize": lambda x: x.resize_(2000)[0].item(),
    "index": lambda x: x[torch.tensor([0, 1], device=D)][0].item(),
}
if TWIN == "cpu":
    READERS |= {
        "numpy": read_through_numpy,
        "address": read_through_its_address,
        "address of the storage": read_through_the_storage,
        "dlpack": lambda x: torch.from_dlpack(x, device="cpu")[0].item(),
        "share_memory": lambda x: x.share_memory_()[0].item(),
    }


@with_twin
@pytest.mark.parametrize("name", READERS)
def test_nothing_reads_what_is_not_there_yet(name):
    def make():
        x = torch.zeros(1000, device=D)
        keep_busy()
        for _ in range(8):
            x.add_(1)
        return x

    warm_up(make)
    for _ in range(3):
        assert READERS[name](make()) == 8.0


@with_twin
@pytest.mark.platforms("cpu")
def test_memory_that_another_library_sees_is_written_at_the_call():
    x = torch.zeros(1000, device=D)
    array = x.numpy()
    shared = torch.from_dlpack(x, device="cpu")
    for step in range(1, 20):
        keep_busy(1)
        x.add_(1)
        assert array[0] == step and shared[0].item() == step
        y = x * 1
        array[:] = step  # After the call of the operator that reads it.
        assert y[0].item() == step


@with_twin
@pytest.mark.platforms("cpu")
def test_memory_whose_address_was_told_is_written_at_the_call():
    import ctypes

    x = torch.zeros(1000, device=D)
    view = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))
    for step in range(1, 20):
        keep_busy(1)
        x.add_(1)
        assert view[0] == step


@with_twin
def test_views_neither_queue_nor_wait():
    x = torch.zeros(10, 10, device=D)
    keep_busy()
    before = queue.stats()
    y = x.t()[1:].reshape(9, 2, 5).unsqueeze(0).expand(3, 9, 2, 5).select(0, 1)[0]
    x.detach(), x.chunk(2), x.narrow(0, 1, 2), x.unfold(0, 2, 1), torch.empty(3, device=D)
    torch.empty_like(x), x.new_empty(4), y.shape, y.stride(), x.is_contiguous()
    after = queue.stats()
    assert (after["queued"], after["drains"]) == (before["queued"], before["drains"])


# --- failures ------------------------------------------------------------------------------------


@with_twin
def test_a_failure_is_raised_at_the_next_call_that_waits_and_names_the_operator():
    x = torch.ones(4, device=D)
    warm_up(lambda: (x + 1, x * 2))
    _C.queue_fail_nth(2)
    y = x + 1
    z = x * 2  # Fails in the worker.
    w = y + 1  # Runs all the same.
    with pytest.raises(RuntimeError, match=r"in 'aten::mul.Tensor', task \d+ of flagos:0"):
        torch.flagos.synchronize()
    torch.flagos.synchronize()  # Once.
    assert w.tolist() == [3.0] * 4 and z.shape == (4,)
    assert (x * 2).tolist() == [2.0] * 4
    states = {task.name: task.state for task in queue.record()[:-2]}
    assert "failed" in {task.state for task in queue.record()} and states


LINES = """
import torch
from torch_fl import _C, queue
x = torch.ones(4, device="flagos")
m = torch.nn.ReLU()
def program():
    m(x)  # The line.
program(); queue.drain()
_C.queue_fail_nth(1)
program()
try:
    queue.drain()
except RuntimeError as error:
    print(str(error).split("returned")[1].split(";")[0])
"""


@with_twin
def test_a_failure_names_the_line_if_asked_for(python):
    environment = {"TORCH_FL_PLATFORM": PLATFORM, "TORCH_FL_QUEUE": 1}
    assert python(LINES, **environment) == "\n"
    assert python(LINES, TORCH_FL_QUEUE_LINES=1, **environment) == " from <string>:7\n"


@with_twin
def test_any_task_may_fail_and_the_process_works_on():
    x = torch.arange(6.0, device=D)

    def program():
        y = x * 2
        y.add_(1)
        z = torch.cat([y, x])
        z.mul_(z)
        return z.softmax(0)

    wanted = program().cpu()
    count = queued(program)
    for n in range(1, count + 1):
        queue.drain()
        _C.queue_fail_nth(n)
        with pytest.raises(RuntimeError, match="launch queue"):
            program()
            queue.drain()
        assert torch.equal(program().cpu(), wanted)


@with_twin
def test_a_wrong_call_raises_at_the_call_what_it_raises_without():
    x, y = torch.ones(3, device=D), torch.ones(4, device=D)
    wrong = [
        lambda: x + y,
        lambda: x.add_(torch.ones(2, 3, device=D)),
        lambda: torch.mm(x, y),
        lambda: torch.mm(torch.ones(2, 3, device=D), torch.ones(2, 3, device=D)),
        lambda: torch.cat([x, torch.ones(1, 1, device=D)]),
        lambda: x.add_(torch.ones(3, device=D, dtype=torch.complex64)),
        lambda: torch.softmax(x, 3),
        lambda: x.sum(5),
        lambda: x + torch.ones(3),
        lambda: x.expand(2, 3).add_(1),
        lambda: torch.addmm(x, torch.ones(2, 2, device=D), torch.ones(2, 4, device=D)),
        lambda: x.copy_(y),
        lambda: torch.ones(3, device=D, dtype=torch.int64).div_(2),
        lambda: torch.baddbmm(x.bool(), x.bool().view(1, 1, 3), x.bool().view(1, 3, 1)),
    ]
    for number, call in enumerate(wrong):
        with queue.using(False), pytest.raises(Exception) as without:
            call()
        with queue.using(True), pytest.raises(Exception) as with_queue:
            call()
        assert type(with_queue.value) is type(without.value), number
        assert str(with_queue.value) == str(without.value), number
    queue.drain()


OUT_OF_RANGE = {
    "fill_": (torch.float32, 1e39, lambda x, v: x.fill_(v)),
    "full_like": (torch.float16, 1e9, lambda x, v: torch.full_like(x, v)),
    "masked_fill": (torch.float16, -1e9, lambda x, v: x.masked_fill(x > 0, v)),
    "clamp": (torch.uint8, 300, lambda x, v: x.clamp(0, v)),
    "add": (torch.uint8, 300, lambda x, v: torch.add(x, x, alpha=v)),
    "addcmul": (torch.float32, 1e39, lambda x, v: torch.addcmul(x, x, x, value=v)),
    "addmm": (torch.float32, 1e39, lambda x, v: torch.addmm(x, x, x, alpha=v)),
    "leaky_relu": (torch.float32, 1e39, lambda x, v: torch.nn.functional.leaky_relu(x, v)),
    "softplus": (torch.float32, 1e39, lambda x, v: torch.nn.functional.softplus(x, v)),
}


@pytest.mark.platforms("cpu")  # CUDA's kernels refuse fewer of them.
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_number_that_does_not_fit_the_dtype_raises_at_the_call(name):
    dtype, number, call = OUT_OF_RANGE[name]
    x = torch.ones(3, 3, device=D, dtype=dtype)
    for _ in range(2):
        warm_up(lambda: call(x, 1))
    with pytest.raises(RuntimeError, match="overflow"):
        call(x, number)
    queue.drain()
    assert queued(lambda: call(x, 1)) > 0


@with_twin
def test_infinite_numbers_are_queued_for_floats():
    x = torch.ones(3, 3, device=D)
    mask = x > 0
    warm_up(lambda: x.masked_fill(mask, float("-inf")))
    assert queued(lambda: x.masked_fill(mask, float("-inf"))) > 0


@pytest.mark.platforms("cpu")
def test_a_call_that_reaches_no_kernel_says_nothing_of_its_dtypes():
    numbers = torch.ones(4, 6, dtype=torch.int64, device=D)
    bits = torch.zeros(8, dtype=torch.uint8).view(torch.bits8).to(D)
    for easy, hard in (
        (lambda: numbers[:0].softmax(-1), lambda: numbers.softmax(-1)),
        (lambda: bits.clone(), lambda: bits.float()),
    ):
        warm_up(easy)
        with pytest.raises(NotImplementedError):
            hard()


# --- what it shows -------------------------------------------------------------------------------


@with_twin
def test_the_record_and_its_text(tmp_path):
    x = torch.ones(3, device=D)
    warm_up(lambda: x + 1)
    y = x + 1
    queue.drain()
    last = queue.record()[-1]
    assert (last.name, last.state) == ("aten::add.Tensor", "done") and y is not None
    with open(tmp_path / "record", "w") as file:
        queue.dump(file, done=3)
    lines = (tmp_path / "record").read_text().splitlines()
    assert len(lines) == 4 and "aten::add.Tensor" in lines[-1] and "queued" in lines[0]


@with_twin
def test_queued_operators_are_counted_as_others():
    x = torch.ones(3, device=D)
    warm_up(lambda: x + 1)
    routes.reset_counts()
    x + 1
    assert routes.read("aten::add.Tensor").calls == {"native": 1}


@with_twin
def test_another_route_is_not_queued():
    x = torch.ones(3, device=D)
    warm_up(lambda: x + 1)
    with routes.using({"aten::add.Tensor": "cpu"}):
        assert queued(lambda: x + 1) == 0
    assert queued(lambda: x + 1) == 1


@with_twin
def test_an_item_right_after_an_operator_is_not_late():
    x = torch.ones(1, device=D)
    warm_up(lambda: x + 1)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        (x + 1).item()
        times.append(time.perf_counter() - start)
    assert sorted(times)[100] < 0.005  # A wake-up, not a time slice.


@with_twin
def test_an_idle_process_uses_no_processor(python):
    code = """
import torch, torch_fl, time
x = torch.ones(4, device="flagos")
for _ in range(100): y = x + 1
y.sum().item()
time.sleep(0.3)
before = time.process_time()
time.sleep(1)
print(time.process_time() - before < 0.02)
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1) == "True\n"


# --- settings and the switch ---------------------------------------------------------------------


@with_twin
def test_settings_of_the_thread_are_the_callers():
    """Modes are those of the call, whenever the worker comes to it."""
    x = torch.randn(300, 300, device=D)
    before = torch.get_num_threads()
    try:
        wanted = {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with queue.using(False):
                wanted[threads] = [(x @ x).cpu(), x.sum().cpu(), torch.softmax(x, 0).cpu()]
        for _ in range(3):
            keep_busy()
            got = {}
            for threads in (1, 2):
                torch.set_num_threads(threads)
                got[threads] = [x @ x, x.sum(), torch.softmax(x, 0)]
            for threads in (1, 2):
                for ours, theirs in zip(got[threads], wanted[threads]):
                    assert torch.equal(ours.cpu(), theirs)
    finally:
        torch.set_num_threads(before)


@with_twin
@pytest.mark.platforms("cpu")
def test_small_numbers_are_flushed_as_in_the_callers_thread():
    x = torch.full((64,), 1e-39, device=D)
    warm_up(lambda: x * 1.0)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        flushed = x * 1.0
    finally:
        torch.set_flush_denormal(False)
    kept = x * 1.0
    assert flushed.tolist() == [0.0] * 64 and kept[0].item() > 0


@with_twin
def test_inference_mode_and_gradients():
    w = torch.randn(4, 4, device=D, requires_grad=True)
    with torch.inference_mode():
        y = w @ w
        y.add_(1)
        assert y.is_inference() and not y.requires_grad
    with torch.no_grad():
        version = w._version
        w.mul_(0.5)
        assert w._version == version + 1
    z = (w @ w).sum()
    z.retain_grad()
    z.backward()
    assert z.grad.item() == 1 and w.grad.shape == (4, 4)
    a = torch.ones(3, device=D, requires_grad=True)
    b = a * 2
    c = b * b
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


@with_twin
def test_the_switch():
    x = torch.ones(3, device=D)
    warm_up(lambda: x + 1)
    assert queue.is_on() and queued(lambda: x + 1) == 1
    with queue.using(False):
        assert not queue.is_on() and queued(lambda: x + 1) == 0
    assert queue.is_on()


def test_the_option(python):
    code = "from torch_fl import queue; print(queue.is_on())"
    on = str(TWIN is not None)
    wins = str(TWIN not in (None, "cpu"))
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == f"{wins}\n"
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=0) == "False\n"
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1) == f"{on}\n"
    environment = {"TORCH_FL_QUEUE": 1, "TORCH_FL_LAUNCH_BLOCKING": 1}
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, **environment) == "False\n"


def test_where_it_cannot_be_switched_on():
    if TWIN is None:
        with pytest.raises(NotImplementedError, match="the launch queue is not served"):
            queue.set(True)
        assert not queue.is_on() and queue.record() == []
        queue.set(False)
        queue.drain()
    else:
        code = "from torch_fl import queue; queue.set(True)"
        done = run_python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_LAUNCH_BLOCKING=1)
        assert "off while TORCH_FL_LAUNCH_BLOCKING is 1" in done.stderr


# --- processes -----------------------------------------------------------------------------------

PROCESS = """
import os, sys, threading, time, torch
from torch_fl import queue
D = "flagos"
x = torch.ones(300, 300, device=D)
y = x + 1
x @ x
queue.drain()
def busy():
    for _ in range(20): x @ x
"""

ENDINGS = {
    "queued work at the end": "busy(); z = x + 1",
    "sys.exit": "busy(); z = x + 1; sys.exit(0)",
    "os._exit": "busy(); z = x + 1; os._exit(0)",
    "a failure that nobody takes": "from torch_fl import _C; _C.queue_fail_nth(1); z = x + 1",
    "daemon threads that queue": "def run():\n    while True: x + 1\n"
    "for _ in range(3): threading.Thread(target=run, daemon=True).start()\ntime.sleep(0.2)",
    "an operator after the end": "import atexit\n"
    "atexit.register(lambda: print((x + 1)[0, 0].item(), end=''))",
    "tensors in cycles": "c = [x + 1]; c.append(c); busy()",
}


@with_twin
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_with_work_in_the_queue(ending):
    done = run_python(PROCESS + ENDINGS[ending], TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1)
    wanted = "2.0" if "after the end" in ending else ""
    assert (done.returncode, done.stdout, done.stderr) == (0, wanted, "")


@with_twin
@pytest.mark.platforms("cpu")
def test_a_fork_waits_for_the_queue(python):
    code = (
        PROCESS
        + """
z = torch.zeros(1000, device=D)
z.add_(1); queue.drain(); z.zero_()
busy()
for _ in range(9): z.add_(1)
child = os.fork()
if child == 0:
    try:
        (z + 1)
        right = not queue.stats()["queued"]
    except RuntimeError as error:
        right = "forked" in str(error)
    os._exit(0 if right else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), z[0].item(), (z + 1)[0].item())
"""
    )
    assert python(code, TORCH_FL_PLATFORM=PLATFORM, TORCH_FL_QUEUE=1) == "0 9.0 10.0\n"
