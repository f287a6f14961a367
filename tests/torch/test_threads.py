"""Many threads on one device, sharing tensors: no label is ever wrong, no call disturbs another."""

import threading

import pytest
import torch
from against_cpu import EXACT, assert_same_values, state
from conftest import ROOT

import torch_fl
from torch_fl import routes

D = "flagos"
THREADS = 8


def in_threads(work, count=THREADS):
    """Run work(number) in `count` threads that start together; raise what any of them raised."""
    barrier, errors, results = threading.Barrier(count), [], [None] * count

    def body(number):
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Block(torch.nn.Module):
    """Attention and an MLP with tied weights, as many operators as a small transformer has."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = torch.nn.Embedding(11, width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.head = torch.nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return self.head(x)


def model_and_input():
    torch.manual_seed(0)
    return Block(), torch.randint(11, (2, 5))


def test_eight_threads_share_one_models_weights(python):
    """20,000 operator calls in each thread; the answer of each is the answer of one alone. In a
    process of its own: after some programs PyTorch's CPU kernels round otherwise in new threads
    than in the main one, also for plain CPU tensors."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/torch')!r}); "
    platform = torch_fl.platform()["name"]
    python(code + "import test_threads; test_threads.share_weights()", TORCH_FL_PLATFORM=platform)


def share_weights():
    model, tokens = model_and_input()
    wanted = model(tokens).detach()
    model, tokens = model.to(D), tokens.to(D)
    weights = list(model.parameters())
    with torch.no_grad():
        expected = model(tokens)
        assert_same_values(expected, wanted)
        routes.reset_counts()
        model(tokens)
        per_forward = sum(routes.report().calls.values())
    before = [state(weight) for weight in weights]
    rounds = -(-20_000 // per_forward)
    routes.reset_counts()

    def work(number):
        wrong = 0
        with torch.no_grad():
            for _ in range(rounds):
                result = model(tokens)
                wrong += result.device != tokens.device
                wrong += any(weight.device.type != D for weight in weights)
        return wrong, (result - expected).abs().max().item()

    assert in_threads(work) == [(0, 0.0)] * THREADS
    assert [state(weight) for weight in weights] == before
    assert sum(routes.report().calls.values()) >= THREADS * 20_000
    assert "cpu" not in routes.report().calls or torch_fl.platform()["twin"] in (None, "none", "")


def test_threads_watch_tensors_that_others_use():
    """A thread that only looks never sees another label, layout or pointer."""
    x = torch.arange(12.0, device=D).view(3, 4)
    before, stop, seen = state(x), threading.Event(), []

    def work(number):
        if number == 0:
            while not stop.is_set():
                if state(x) != before:
                    seen.append(state(x))
            return
        try:
            for _ in range(1500):
                x + x
                torch.mm(x, x.t())
                torch.cat([x, x, x])
                x.sum().item()
                x.to(torch.float64)
        finally:
            stop.set()

    in_threads(work, 4)
    assert seen == []


def test_threads_train_copies_of_their_own():
    """Forward and backward in each thread, the device's first use in most of them."""
    model, tokens = model_and_input()

    def gradients(device):
        copy, _ = model_and_input()
        copy.to(device)
        for _ in range(10):
            copy.zero_grad()
            copy(tokens.to(device)).square().mean().backward()
        return [p.grad.cpu() for p in copy.parameters()]

    torch.manual_seed(0)
    lock = threading.Lock()

    def work(number):
        with lock:
            torch.manual_seed(0)
            copy = Block()
        copy.to(D)
        for _ in range(10):
            copy.zero_grad()
            copy(tokens.to(D)).square().mean().backward()
        return [p.grad.cpu() for p in copy.parameters()]

    wanted = gradients("cpu")
    for got in in_threads(work):
        for left, right in zip(got, wanted):
            if EXACT:
                assert torch.equal(left, right)
            else:
                torch.testing.assert_close(left, right)


def test_threads_accumulate_into_shared_gradients_of_their_own_leaves():
    weight = torch.randn(8, 8, device=D)
    expected = (weight @ weight.t()).sum(0)

    def work(number):
        leaf = torch.ones(8, device=D, requires_grad=True)
        for _ in range(200):
            leaf.grad = None
            ((leaf * weight) @ weight.t()).sum().backward()
            assert leaf.grad.device.type == D
        return leaf.grad

    results = in_threads(work)
    for grad in results:
        assert torch.equal(grad, results[0]) and grad.shape == expected.shape


def test_threads_write_to_disjoint_views_of_one_tensor():
    x = torch.zeros(THREADS, 100, device=D)

    def work(number):
        mine = x[number]
        for _ in range(500):
            mine.add_(1)
            torch.sub(mine, 0.5, out=mine)
            torch._foreach_add_([mine], 0.5)

    in_threads(work)
    assert torch.equal(x.cpu(), torch.full((THREADS, 100), 500.0))


def test_errors_in_one_thread_do_not_reach_others():
    x, wrong = torch.ones(4, device=D), torch.ones(3, device=D)

    def work(number):
        for _ in range(500):
            if number % 2:
                with pytest.raises(RuntimeError):
                    torch.add(x, wrong, out=torch.empty(0, device=D))
            else:
                assert (x + x).tolist() == [2, 2, 2, 2]

    in_threads(work)


def test_short_lived_threads():
    """Each leaves its shadows and counters behind without a trace."""
    x = torch.ones(4, device=D)
    for _ in range(20):
        in_threads(lambda number: (x + number).sum().item(), 8)
    routes.reset_counts()
    in_threads(lambda number: x + 1, 8)
    assert sum(routes.read("add.Tensor").calls.values()) == 8


def test_draws_of_threads_are_the_devices():
    """The default generator is shared and locked: as many numbers are drawn as are asked for."""
    torch.flagos.manual_seed(1)
    alone = torch.cat([torch.rand(50, device=D) for _ in range(THREADS * 20)]).sort().values
    torch.flagos.manual_seed(1)
    drawn = in_threads(lambda number: [torch.rand(50, device=D) for _ in range(20)])
    together = torch.cat([t for many in drawn for t in many]).sort().values
    assert torch.equal(alone, together)


def test_a_route_may_be_chosen_while_threads_run():
    x = torch.rand(8, 8, device=D)
    expected = x @ x
    stop = threading.Event()

    def work(number):
        if number == 0:
            for _ in range(300):
                routes.set("mm", "cpu")
                routes.reset("mm")
            stop.set()
            return
        while not stop.is_set():
            assert torch.equal(x @ x, expected)

    try:
        in_threads(work, 4)
    finally:
        routes.reset()


def test_current_device_and_stream_belong_to_the_thread():
    streams = [torch.flagos.Stream() for _ in range(4)]

    def work(number):
        with torch.flagos.stream(streams[number]):
            for _ in range(200):
                torch.ones(3, device=D) + 1
                assert torch.flagos.current_stream() == streams[number]
                assert torch.flagos.current_device() == 0

    in_threads(work, 4)
    assert torch.flagos.current_stream() == torch.flagos.default_stream()
