"""What test_chips.py, and bench/card/direct.py on hardware, run on a platform without a twin: each
function computes on flagos and on the host, and compares.

usage: on_chip.py function ...
"""

import sys
import time

import torch

import torch_fl
from torch_fl import routes

D = "flagos"


def assert_same_bits(ours, host):
    """Operators run PyTorch's own CPU kernels on copies, so every bit must be the host's."""
    assert ours.dtype == host.dtype and ours.shape == host.shape
    ours, host = (side.detach().cpu().reshape(-1).view(torch.uint8) for side in (ours, host))
    assert torch.equal(ours, host)


def tensors():
    """Copies both ways of every kind of layout, between devices, and a few operators."""
    torch.manual_seed(0)
    last = f"flagos:{torch.flagos.device_count() - 1}"  # Another one, where there are several.
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64):
        x = torch.randn(6, 8).to(dtype)
        y = x.to(D)
        assert y.device == torch.device("flagos:0") and y.is_flagos
        assert_same_bits(y, x)
        assert_same_bits(y.t(), x.t())
        assert_same_bits(y[1:5:2, 3:], x[1:5:2, 3:])
        assert_same_bits(y[:, 2].expand(3, 6), x[:, 2].expand(3, 6))
        assert_same_bits(y.t().contiguous(), x.t().contiguous())
        z = torch.zeros(8, 6, dtype=dtype, device=D)
        z.t().copy_(x)
        assert_same_bits(z, x.t())
        assert_same_bits(y.to(last).flip(0), x.flip(0))
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned()
    assert_same_bits(pinned.to(D, non_blocking=True), torch.arange(1000.0))
    assert_same_bits(torch.arange(10, device=D).to(torch.float16), torch.arange(10).half())
    assert_same_bits(torch.full((3, 3), 2.5, device=D), torch.full((3, 3), 2.5))
    x = torch.randn(5, 7)
    assert_same_bits(torch.softmax(x.to(D) @ x.t().to(D), -1), torch.softmax(x @ x.t(), -1))
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device=D)
    except torch.OutOfMemoryError as error:
        assert "flagos out of memory" in str(error), error
        driver = torch_fl.platform()["name"].removesuffix("-file")
        assert f" ({driver}: " in str(error), error  # What the vendor's runtime said.
    else:
        raise AssertionError("a block that no device has was given")
    # The runtime goes on after its error.
    assert_same_bits(x.to(D) + 1, x + 1)
    torch.flagos.synchronize()


def streams():
    """Copies are ordered by streams, streams by events, and blocks by the streams that use them."""
    x = torch.arange(100_000.0)
    one, other = torch.flagos.Stream(), torch.flagos.Stream(priority=-1)
    begin, end = (torch.flagos.Event(enable_timing=True) for _ in range(2))
    with torch.flagos.stream(one):
        begin.record()
        a = x.pin_memory().to(D, non_blocking=True)
        end.record()
    other.wait_event(end)
    with torch.flagos.stream(other):
        b = a.clone()
        a.record_stream(other)
    del a
    other.synchronize()
    assert other.query() and end.query()
    assert begin.elapsed_time(end) >= 0
    assert_same_bits(b, x)
    for _ in range(20):  # What one stream frees another one does not get while it is in use.
        with torch.flagos.stream(one):
            a = x.to(D, non_blocking=True) * 2
        other.wait_stream(one)
        with torch.flagos.stream(other):
            b = a + 1
            a.record_stream(other)
        del a
        other.synchronize()
        assert_same_bits(b, x * 2 + 1)
    last = torch.flagos.device_count() - 1
    with torch.flagos.device(last):
        assert torch.flagos.current_stream().device.index == last
        assert_same_bits(torch.ones(3, device=D), torch.ones(3))
    torch.flagos.synchronize()
    del b
    assert torch.flagos.memory_allocated() == 0
    torch.flagos.empty_cache()
    assert torch.flagos.memory_reserved() == 0


def timing():
    """Events keep the device's time: more work takes longer, and none longer than the host saw."""
    source = torch.ones(1 << 24).pin_memory()
    target = torch.empty_like(source, device=D)

    def copies(count):
        begin, end = (torch.flagos.Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        begin.record()
        for _ in range(count):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        host_ms = 1e3 * (time.perf_counter() - start)
        device_ms = begin.elapsed_time(end)
        assert 0 < device_ms < host_ms + 0.1, (device_ms, host_ms)
        return device_ms

    one, many = min(copies(1) for _ in range(5)), copies(10)
    assert many > 2 * one, (one, many)


def statistics():
    """What the allocator says of itself: current, peak, reserved, and who holds what."""
    memory = torch.flagos
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    before = memory.memory_allocated(), memory.memory_reserved()
    free, total = memory.mem_get_info()
    assert 0 < free <= total
    mib = 1 << 20
    held = [torch.empty(8 * mib, dtype=torch.uint8, device=D) for _ in range(4)]
    assert memory.memory_allocated() == before[0] + 32 * mib
    assert memory.memory_reserved() >= memory.memory_allocated()
    blocks = [block for segment in memory.memory_snapshot() for block in segment["blocks"]]
    live = [block["size"] for block in blocks if block["state"] == "active_allocated"]
    assert sum(live) == memory.memory_allocated(), live
    reserved = memory.memory_reserved()
    del held[1:]
    assert memory.memory_allocated() == before[0] + 8 * mib
    assert memory.max_memory_allocated() == before[0] + 32 * mib
    assert memory.memory_reserved() == reserved  # Freed blocks stay for the next request,
    again = [torch.empty(8 * mib, dtype=torch.uint8, device=D) for _ in range(3)]
    assert memory.memory_reserved() == reserved  # which takes nothing from the driver.
    tree = memory.memory_stats()
    assert tree["allocation.all.current"] >= 4
    assert tree["allocated_bytes.all.peak"] == before[0] + 32 * mib
    del held, again
    memory.empty_cache()
    assert memory.memory_allocated() == before[0]
    assert memory.memory_reserved() <= before[1]


def train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(32, 8).to(device), torch.randint(4, (32,)).to(device)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), [parameter.detach() for parameter in model.parameters()]


def mlp():
    """A training of ten steps: losses and parameters are the host's bit for bit."""
    losses, parameters = train("cpu")
    assert losses[-1] < losses[0]
    routes.reset_counts()
    our_losses, our_parameters = train(D)
    report = routes.report()
    assert report.calls["cpu"] > 100 and report.calls.get("native", 0) == 0, report.calls
    assert sum(row.cpu_bytes for row in report.rows) > 0
    assert_same_bits(our_losses, losses)
    for ours, host in zip(our_parameters, parameters):
        assert ours.device.type == D
        assert_same_bits(ours, host)
    with routes.strict():
        try:
            train(D)
        except NotImplementedError as error:
            assert torch_fl.platform()["name"] in str(error), error
        else:
            raise AssertionError("strict mode let an operator go to the host")


def minilm(embedder=None):
    """Sentence embeddings, attention chosen as the host chooses it. Without `embedder` (a class as
    _minilm.Embedder) with the real weights."""
    from torch_fl import _minilm

    embedder = embedder or _minilm.Embedder
    routes.reset_counts()
    ours = embedder(D, torch.flagos.synchronize).embed()
    report = routes.report()
    assert report.calls["cpu"] > 50, report.calls
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {row.name for row in report.rows}
    assert_same_bits(ours, embedder("cpu", lambda: None).embed())


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert torch_fl.platform()["twin"] is None
    for name in sys.argv[1:]:
        globals()[name]()
    print(torch_fl.platform()["name"], torch.flagos.get_device_name(), "passed", *sys.argv[1:])
