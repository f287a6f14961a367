"""The launch queue: what is queued gives the bits that it gives at once, whatever is freed, read,
raised or ended meanwhile. Platforms without a twin queue nothing, and say so."""

import gc
import os
import random
import threading
import time

import pytest
import torch
from conftest import run_python

import torch_fl
from torch_fl import _C, queue, routes

D = "flagos"
PLATFORM = torch_fl.platform()["name"]
TWIN = torch_fl.platform()["twin"]
with_twin = pytest.mark.platforms("cpu", "cuda")


@pytest.fixture(autouse=True)
def as_it_was():
    before = queue.is_on()
    if TWIN is not None:
        queue.set(True)
    yield
    if TWIN is not None:
        queue.drain()
        queue.set(before)


def warm_up(program):
    """The first call of an operator with some dtypes is never queued."""
    program()
    queue.drain()


BUSY = torch.randn(700, 700, device=D)


def keep_busy(times=4):
    """Queue work that takes the worker some time."""
    for _ in range(times):
        torch.mm(BUSY, BUSY)


if TWIN is not None:
    with queue.using():
        warm_up(keep_busy)


def queued(program):
    """How many tasks the program queued."""
    before = queue.stats()["queued"]
    program()
    return queue.stats()["queued"] - before


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


READERS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist()[0],
    "cpu": lambda x: x.cpu()[0].item(),
    "to the host, not blocking": lambda x: x.to("cpu", non_blocking=True)[0].item(),
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


# --- the same bits -------------------------------------------------------------------------------


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(12, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 5)
    )


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(12, 16)
        self.out = torch.nn.Linear(16, 5)

    def forward(self, x):
        state = None
        for _ in range(4):
            state = self.cell(x, state)
        return self.out(state[0])


class Encoder(torch.nn.Module):
    """The shape of MiniLM: attention, residuals, normalisation, GELU."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, activation="gelu")
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(12, 5)

    def forward(self, x):
        return self.out(self.layers(x.unsqueeze(0)).squeeze(0))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw without foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def train(make, optimizer, device, autocast=False):
    torch.manual_seed(0)
    model = make().to(device)
    try:
        opt = OPTIMIZERS[optimizer](model.parameters())
    except RuntimeError:
        pytest.skip(f"this platform has no {optimizer}")
    data = [(torch.randn(8, 12), torch.randint(0, 5, (8,))) for _ in range(4)]
    losses = []
    for step in range(12):
        x, wanted = (tensor.to(device) for tensor in data[step % 4])
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(model(x), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.detach())
    grads = [p.grad for p in model.parameters()]
    return [t.cpu() for t in [*losses, *grads, *model.parameters()]]


@with_twin
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [mlp, Recurrent, Encoder])
def test_training_is_the_same_with_and_without(make, optimizer):
    with queue.using(False):
        wanted = train(make, optimizer, D)
    for _ in range(2):
        assert all(map(torch.equal, train(make, optimizer, D), wanted))


@with_twin
@pytest.mark.parametrize("make", [mlp, Recurrent, Encoder])
def test_training_with_autocast_is_the_same_with_and_without(make):
    with queue.using(False):
        wanted = train(make, "sgd", D, autocast=True)
    for _ in range(2):
        assert all(map(torch.equal, train(make, "sgd", D, autocast=True), wanted))


@with_twin
def test_most_of_a_training_step_is_queued():
    train(mlp, "adamw without foreach", D)
    before = queue.stats()
    train(mlp, "adamw without foreach", D)
    after = queue.stats()
    assert after["queued"] - before["queued"] > 12 * 40


LAYOUTS = {
    "contiguous": lambda *shape: torch.randn(*shape),
    "transposed": lambda *shape: torch.randn(*shape[::-1]).permute(*reversed(range(len(shape)))),
    "strided": lambda *shape: torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2],
    "expanded": lambda *shape: torch.randn(*shape[:-1], 1).expand(*shape),
    "row": lambda *shape: torch.randn(shape[-1]),
    "column": lambda *shape: torch.randn(*shape[:-1], 1),
    "offset": lambda *shape: torch.randn(shape[0] + 1, *shape[1:])[1:],
}
SHAPES = [(3, 4), (1, 4), (4, 1), (2, 1, 3), (2, 3, 4, 5), (1, 1), (6,), (0, 3)]


@with_twin
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layouts_of_results_are_the_kernels_own(shape):
    """Every pair of layouts, and numbers: strides as well as values."""
    calls = [torch.add, torch.mul, torch.lt, lambda a, b: a / (b + 3), torch.maximum]
    torch.manual_seed(0)
    for a in LAYOUTS.values():
        for b in LAYOUTS.values():
            for dtypes in [(torch.float32, torch.float32), (torch.float32, torch.float64)]:
                host = [a(*shape).to(dtypes[0]), b(*shape).to(dtypes[1])]
                # Moving makes a dense tensor; what the layout says is kept.
                ours = [as_on_host(t) for t in host]
                for call in calls:
                    for _ in range(2):
                        wanted, got = call(*host), call(*ours)
                        assert got.dtype == wanted.dtype and got.shape == wanted.shape
                        assert got.stride() == wanted.stride()
                        assert torch.equal(got.cpu(), wanted)
                wanted, got = host[0] * 2.5, ours[0] * 2.5
                assert got.stride() == wanted.stride() and torch.equal(got.cpu(), wanted)


def as_on_host(tensor):
    """The same values, sizes, strides and offset on flagos."""
    flat = tensor.new_empty(0).set_(tensor.untyped_storage())
    return flat.to(D).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


# --- order ---------------------------------------------------------------------------------------


def random_program(seed, tensors, streams):
    """A list of steps; each a function of no arguments on tensors that this thread alone uses."""
    rng = random.Random(seed)
    steps = []
    for _ in range(rng.randint(10, 40)):
        a, b, c = (rng.randrange(len(tensors)) for _ in range(3))
        number = rng.random()
        kind = rng.choice(
            ["add", "mul", "add_", "mm", "copy", "cat", "softmax", "sum", "item", "sort", "free", "cast"]
        )

        def step(kind=kind, a=a, b=b, c=c, number=number):
            if kind == "add":
                tensors[c] = tensors[a] + tensors[b]
            elif kind == "mul":
                tensors[c] = tensors[a] * number
            elif kind == "add_":
                tensors[c].add_(tensors[a], alpha=number)
            elif kind == "mm":
                tensors[c] = torch.mm(tensors[a], tensors[b]).sigmoid()
            elif kind == "copy":
                tensors[c].copy_(tensors[a])
            elif kind == "cat":
                tensors[c] = torch.cat([tensors[a][:3], tensors[b][3:]])
            elif kind == "softmax":
                tensors[c] = torch.softmax(tensors[a], -1)
            elif kind == "sum":
                tensors[c] = tensors[a] - tensors[b].sum(-1, keepdim=True)
            elif kind == "item":
                tensors[c].mul_(0.5 if tensors[a][0, 0].item() > 0 else 0.25)
            elif kind == "sort":
                tensors[c] = torch.sort(tensors[a], -1)[0]
            elif kind == "cast":
                tensors[c] = tensors[a].double().mul_(number).float()
            else:
                tensors[c] = torch.zeros_like(tensors[a]) + number

        steps.append((rng.randrange(len(streams)), step))
    return steps


def run_program(seed, threads, streams):
    """Each thread its own tensors; steps of one thread wander over the streams, which wait for each
    other by events. Answers every tensor's bits."""
    results = [None] * threads

    def work(index):
        generator = torch.Generator().manual_seed(seed * 1000 + index)
        tensors = [torch.randn(6, 6, generator=generator).to(D) for _ in range(4)]
        last = None
        for where, step in random_program(seed * 1000 + index, tensors, streams):
            stream = streams[where]
            if stream is None:
                step()
                continue
            if last is not None and last is not stream:
                stream.wait_stream(last)
            with torch.flagos.stream(stream):
                step()
            last = stream
        if last is not None:
            torch.flagos.current_stream().wait_stream(last)
        results[index] = [tensor.cpu() for tensor in tensors]

    if threads == 1:
        work(0)
    else:
        workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return results


@with_twin
@pytest.mark.parametrize("part", range(4))
def test_random_programs_over_streams_and_threads_are_as_in_order(part, full):
    rounds = 800 if full else 25
    start = int(os.environ.get("QUEUE_SEED", random.SystemRandom().randrange(1 << 20)))
    print(f"seeds {start} to {start + rounds - 1}; repeat with QUEUE_SEED={start}")
    streams = [torch.flagos.Stream() for _ in range(4)]
    for seed in range(start, start + rounds):
        with queue.using(False):
            wanted = run_program(seed, 4, [None])
        got = run_program(seed, 4, streams)
        for ours, theirs in zip(got, wanted):
            assert all(map(torch.equal, ours, theirs)), f"seed {seed}"


@with_twin
def test_threads_that_share_operands():
    weight = torch.randn(16, 16, device=D)
    wanted = (weight @ weight).relu().sum(-1).cpu()
    wrong = []

    def work():
        for _ in range(150):
            if not torch.equal((weight @ weight).relu().sum(-1).cpu(), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@with_twin
def test_events_are_in_order_with_what_is_queued():
    first, second = (torch.flagos.Event(enable_timing=True) for _ in range(2))
    for _ in range(5):
        first.record()
        keep_busy(2)
        second.record()
        assert second.query() in (True, False)
        second.synchronize()
        assert first.elapsed_time(second) > 0.1


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
import torch, time
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
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == "False\n"
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
