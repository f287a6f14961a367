"""The launch queue gives the bits that operators give at once: layouts of results, training, and random
programs over threads and streams."""

import os
import random
import threading

import pytest
import torch
from queueing import D, TWIN, as_it_was, keep_busy, with_twin  # noqa: F401

from torch_fl import queue

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
                        assert_same_layout(call(*ours), at_once(call, host, ours))
                times = lambda a, b: a * 2.5  # noqa: E731
                assert_same_layout(times(*ours), at_once(times, host, ours))


def assert_same_layout(got, wanted):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert got.stride() == wanted.stride()
    assert torch.equal(got.cpu(), wanted.cpu())


def at_once(call, host, ours):
    """What the kernel gives when nothing is queued: the host's, where it is the twin; an accelerator
    lays out results of mixed dtypes in its own way."""
    if TWIN == "cpu":
        return call(*host)
    queue.set(False)
    try:
        return call(*ours)
    finally:
        queue.set(True)


def as_on_host(tensor):
    """The same values, sizes, strides and offset on flagos."""
    flat = tensor.new_empty(0).set_(tensor.untyped_storage())
    return flat.to(D).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


# --- results that are learned --------------------------------------------------------------------

F = torch.nn.functional
LEARNED = {
    "layer_norm": lambda x: torch.native_layer_norm(x, x.shape[-1:], x[0, 0, 0], None, 1e-5),
    "group_norm": lambda x: torch.native_group_norm(x, None, None, *x.shape[:2], 48, 2, 1e-5),
    "convolution": lambda x: F.conv2d(x, x[:2, :, :3, :3], x[0, 0, 0, :2], padding=1),
    "transposed convolution": lambda x: F.conv_transpose2d(x, x[:1, :, :2, :2].transpose(0, 1)),
    "convolution of no batch": lambda x: F.conv1d(x[0, 0], x[0, :2].unsqueeze(-1)[:, :6]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention of heads beside each other": lambda x: F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for _ in range(3))
    ),
    "mv": lambda x: torch.mv(x[0, 0], x[0, 0, 0]),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "repeat": lambda x: x.repeat(2, 1, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=2.5),
    "upsample": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "max": lambda x: x.max(),
    "any": lambda x: (x > 1).any(),
    "all": lambda x: (x > -9).all(),
    "div by a number": lambda x: torch.ops.aten.div.Scalar(x, 3),
    "into a slice": lambda x: torch.zeros_like(x)[:, 1:].copy_(x[:, 1:]),
    "fill a slice": lambda x: (x + 0)[:, :, 1:].fill_(3),
    "mask": lambda x: torch.ones(3, dtype=torch.bool, device=x.device).fill_(False),
}
LAID_OUT = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "half": lambda x: x.bfloat16(),
}


def as_list(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


@with_twin
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("name", LEARNED)
def test_results_that_are_learned_or_made_in_parts_look_as_they_do_at_once(name, layout):
    torch.manual_seed(0)
    x = LAID_OUT[layout](torch.randn(2, 4, 6, 8)).to(D)
    with torch.no_grad():
        try:
            with queue.using(False):
                wanted = as_list(LEARNED[name](x))
        except RuntimeError:
            pytest.skip("this platform has no such kernel")
        for _ in range(3):
            keep_busy(1)
            got = as_list(LEARNED[name](x))
            for ours, theirs in zip(got, wanted, strict=True):
                assert (ours.dtype, ours.shape, ours.stride()) == (
                    theirs.dtype, theirs.shape, theirs.stride()
                )  # fmt: skip
                assert torch.equal(ours.cpu(), theirs.cpu())
        queue.drain()
        drains = queue.stats()["drains"]
        keep_busy(1)
        LEARNED[name](x)
        if not (name.startswith("attention") and layout == "channels_last"):  # Of many parts there.
            assert queue.stats()["drains"] == drains


@with_twin
def test_results_of_another_shape_are_learned_anew():
    weight = torch.randn(8, device=D)
    for length in (3, 5, 3, 900, 5):
        x = torch.randn(length, 8, device=D)
        with queue.using(False):
            wanted = F.layer_norm(x, (8,), weight)
        for _ in range(2):
            got = F.layer_norm(x, (8,), weight)
            assert got.shape == wanted.shape and torch.equal(got, wanted)


@with_twin
def test_statistics_that_are_freed_are_still_there_for_whoever_reads_them_later():
    x = torch.randn(16, 32, device=D)
    with queue.using(False):
        wanted = (torch.native_layer_norm(x, (32,), None, None, 1e-5)[1] * 2).cpu()
    for _ in range(20):
        keep_busy(1)
        mean = torch.native_layer_norm(x, (32,), None, None, 1e-5)[1]
        doubled = mean * 2
        del mean
        assert torch.equal(doubled.cpu(), wanted)


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.second = torch.nn.Conv2d(8, 4, (3, 5))
        self.out = torch.nn.Linear(18, 5)

    def forward(self, x):
        y = F.silu(self.norm(self.first(x.view(8, 1, 4, 3).repeat(1, 1, 1, 2))))
        return self.out(F.pad(self.second(y).flatten(1), (1, 1)))


@with_twin
def test_training_with_convolutions_is_the_same_with_and_without():
    with queue.using(False):
        wanted = train(Convolutions, "sgd", D)
    for _ in range(2):
        assert all(map(torch.equal, train(Convolutions, "sgd", D), wanted))


@with_twin
def test_dropout_within_attention_draws_at_the_call():
    q = torch.randn(1, 2, 8, 8, device=D)

    def draw():
        torch.manual_seed(3)
        keep_busy(1)
        return [F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).cpu() for _ in range(2)]

    with queue.using(False):
        wanted = draw()
    for _ in range(2):
        assert all(map(torch.equal, draw(), wanted))


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
                for tensor in tensors:  # Another thread's operators run on the same streams.
                    tensor.record_stream(stream)
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
        # Two products of 700 rows: an accelerator needs microseconds.
        assert first.elapsed_time(second) > (0.1 if TWIN == "cpu" else 0.005)
