"""Inputs that broke backends like this one, section C: streams, events, copies."""

import gc

import pytest
import torch
from against_cpu import check
from conftest import run_python

import torch_fl

D = "flagos"
flagos = torch.flagos
COUNT = flagos.device_count()
PLATFORM = torch_fl.platform()["name"]
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")
counted = pytest.mark.platforms("sim", "cuda")
# Cycles of _sleep that last long enough for a copy that does not wait to be seen.
LONG = 60_000_000
SIZE = 1 << 14


@pytest.fixture(autouse=True)
def streams_stay():
    before = [flagos.current_stream(i) for i in range(COUNT)]
    yield
    flagos.synchronize()
    assert before == [flagos.current_stream(i) for i in range(COUNT)]


# --- from a side stream to the host --------------------------------------------------------------

TO_HOST = {
    "cpu": lambda y: y.cpu(),
    "to": lambda y: y.to("cpu"),
    "to, dtype": lambda y: y.to("cpu", torch.float64),
    "copy_": lambda y: torch.empty(SIZE).copy_(y),
    "copy_, dtype": lambda y: torch.empty(SIZE, dtype=torch.int32).copy_(y),
    "copy_, strided": lambda y: torch.empty(SIZE, 2)[:, 0].copy_(y),
    "copy_, pinned": lambda y: torch.empty(SIZE).pin_memory().copy_(y),
    "strided": lambda y: y[::2].cpu(),
    "foreach": lambda y: (torch._foreach_copy_(host := [torch.empty(SIZE)], [y]), host[0])[1],
    "tolist": lambda y: torch.tensor(y.tolist()),
    "item": lambda y: torch.tensor(y[-1].item()),
    "bool": lambda y: torch.tensor(7.0 if (y == 7).all() else 0.0),
    "mask": lambda y: y[y == 7].cpu(),
    "nonzero": lambda y: (y == 7).nonzero().flatten().mul(0).add(7).cpu(),
    "equal": lambda y: torch.tensor(7.0 if torch.equal(y, torch.full_like(y, 7)) else 0.0),
    "storage": lambda y: torch.tensor([], dtype=y.dtype).set_(y.untyped_storage().cpu()),
    "data": lambda y: torch.empty(SIZE).set_(y.data.cpu()),
    "pinned and waited for": lambda y: (
        host := torch.empty(SIZE).pin_memory().copy_(y, non_blocking=True),
        flagos.current_stream().synchronize(),
    )[0],
}


@pytest.mark.parametrize("name", TO_HOST)
def test_a_copy_to_the_host_waits_for_the_stream_it_is_made_on(name):
    with flagos.stream(flagos.Stream()):
        y = torch.zeros(SIZE, device=D)
        flagos._sleep(LONG)
        y.fill_(7)
        host = TO_HOST[name](y)
    assert host.device.type == "cpu" and (host == 7).all()


TO_DEVICE = {
    "to": lambda x: x.to(D),
    "copy_": lambda x: torch.empty(SIZE, device=D).copy_(x),
    "to, non-blocking and pageable": lambda x: x.to(D, non_blocking=True),
    "to, dtype": lambda x: x.to(D, torch.float64, non_blocking=True),
    "tensor": lambda x: torch.tensor(x.tolist(), device=D),
}


@pytest.mark.parametrize("name", TO_DEVICE)
def test_pageable_memory_may_be_changed_once_the_copy_to_the_device_returns(name):
    with flagos.stream(flagos.Stream()):
        x = torch.full((SIZE,), 7.0)
        flagos._sleep(LONG)
        y = TO_DEVICE[name](x)
        x.zero_()
        assert (y == 7).all().item()


def test_pinned_memory_is_not_reused_before_its_copy_is_done():
    for number in range(1, 30):
        x = torch.full((SIZE,), float(number)).pin_memory()
        with flagos.stream(flagos.Stream()):
            flagos._sleep(LONG // 20)
            y = x.to(D, non_blocking=True)
            del x
            torch.zeros(SIZE).pin_memory()  # Would get the block of x.
            assert (y == number).all().item()


def test_a_non_blocking_copy_to_the_host_is_pinned():
    y = torch.arange(float(SIZE), device=D)
    made = []
    for number in range(20):
        host = (y + number).to("cpu", non_blocking=True)
        assert host.is_pinned()
        made.append(host)
    converted = y.to("cpu", torch.float64, non_blocking=True)
    strided = y.view(2, -1).t().to("cpu", non_blocking=True)
    given = torch.empty(SIZE).copy_(y, non_blocking=True)
    flagos.synchronize()
    for number, host in enumerate(made):
        assert torch.equal(host, torch.arange(float(SIZE)) + number)
    assert torch.equal(converted, torch.arange(SIZE, dtype=torch.float64))
    assert torch.equal(strided, torch.arange(float(SIZE)).view(2, -1).t())
    assert torch.equal(given, torch.arange(float(SIZE)))
    assert not y.to("cpu").is_pinned() and not y.cpu().is_pinned()


# --- between devices -----------------------------------------------------------------------------


@two_devices
def test_what_comes_from_another_device_is_ordered_before_its_use():
    torch.manual_seed(0)
    scores = torch.randn(8, 8, device=f"{D}:1")
    host = scores.cpu()
    with flagos.device(1):
        for number in range(150):
            mask = torch.ones(8, 8, dtype=torch.bool, device=f"{D}:0").tril_(number % 7 - 3)
            flagos._sleep(10_000)
            wanted = host + torch.ones(8, 8).tril(number % 7 - 3)
            assert torch.equal((scores + mask.to(f"{D}:1").to(torch.int32)).cpu(), wanted)
            assert torch.equal((scores + mask.to(f"{D}:1", torch.float32)).cpu(), wanted)


@two_devices
@pytest.mark.parametrize("sender, receiver", [(False, False), (True, False), (False, True)])
def test_a_copy_between_devices_is_ordered_on_both_current_streams(sender, receiver):
    """The receiver waits for the sender's work, and the sender may write once the copy is asked
    for; each on the current stream of its device."""
    streams = [
        flagos.Stream(f"{D}:0") if sender else flagos.default_stream(0),
        flagos.Stream(f"{D}:1") if receiver else flagos.default_stream(1),
    ]
    flagos.synchronize(0), flagos.synchronize(1)
    with flagos.stream(streams[0]), flagos.stream(streams[1]):
        for number in range(1, 10):
            x = torch.zeros(SIZE, device=f"{D}:0")
            y = torch.zeros(SIZE, device=f"{D}:1")
            with flagos.device(0):
                flagos._sleep(LONG // 10)
            x.fill_(number)
            y.copy_(x, non_blocking=number % 2 == 0)
            x.fill_(-1)
            z = y * 2
            assert (z == 2 * number).all().item() and (x == -1).all().item()
            # And the other way round: the receiver's earlier work ends before it is written over.
            with flagos.device(1):
                flagos._sleep(LONG // 10)
            y.add_(1)
            y.copy_(x)
            assert (y == -1).all().item()


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "offset": lambda x: x[1],
    "expanded": lambda x: x[:1].expand(3, 4),
    "no elements": lambda x: x[:0],
    "0-dim": lambda x: x[1, 2],
    "flipped": lambda x: x.flip(0),
    "channels last": lambda x: x.view(1, 3, 2, 2).to(memory_format=torch.channels_last),
}


@two_devices
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64, torch.bfloat16])
def test_copies_between_devices_of_every_layout(name, dtype):
    base = torch.arange(12.0).view(3, 4)
    wanted = LAYOUTS[name](base).to(dtype, copy=True)
    x = LAYOUTS[name](base.to(f"{D}:0"))
    for current in range(COUNT):
        with flagos.device(current):
            y = x.to(f"{D}:1", dtype)
            assert y.device == torch.device(D, 1) and torch.equal(y.cpu(), wanted)
            if dtype == torch.float32:
                assert y.stride() == wanted.stride()
            target = torch.zeros(wanted.shape, dtype=dtype, device=f"{D}:1")
            assert torch.equal(target.copy_(x).cpu(), wanted)
            large = torch.zeros(2, *wanted.shape, 2, dtype=dtype, device=f"{D}:1")
            large[..., 1].copy_(x)  # Broadcast, into a strided view.
            assert torch.equal(large[..., 1].cpu(), wanted.expand(2, *wanted.shape))
            assert not large[..., 0].any().item()
            assert flagos.current_device() == current


@pytest.mark.platforms("sim")
def test_a_copy_between_two_devices_while_a_third_is_current():
    code = """
import torch, torch_fl
torch.flagos.set_device(2)
x = torch.arange(12.0).view(3, 4).to("flagos:0")
y = torch.zeros(4, 3, device="flagos:1")
y.t().copy_(x)
z = x.t().to("flagos:1", torch.int64)
print(torch.equal(y.cpu(), x.cpu().t()), z.device, torch.equal(z.cpu(), x.cpu().t().long()))
print(torch.flagos.current_device(), (x.to("flagos:2") + y.t().to("flagos:2")).sum().item())
"""
    done = run_python(code, TORCH_FL_PLATFORM="sim", TORCH_FL_SIM_DEVICES=3)
    assert done.stdout == "True flagos:1 True\n2 132.0\n", done.stderr


# --- memory of streams ---------------------------------------------------------------------------


def test_an_index_made_on_a_side_stream_is_used_there_at_once():
    """While other blocks come and go: an index read too early would be another's memory."""
    torch.manual_seed(0)
    table = torch.randn(64, 8)
    on_device = table.to(D)
    host = torch.randint(64, (50, 32))
    with flagos.stream(side := flagos.Stream()):
        side.wait_stream(flagos.default_stream())
        for number in range(50):
            torch.full((32,), -1, dtype=torch.int64, device=D)
            flagos._sleep(10_000)
            index = host[number].to(D, non_blocking=True).flip(0)
            rows = on_device.index_select(0, index), on_device[index], on_device.gather(
                0, index[:, None].expand(-1, 8)
            )
            del index
            for row in rows:
                assert torch.equal(row.cpu(), table[host[number].flip(0)])


@counted
def test_a_block_goes_back_to_the_stream_it_came_from():
    side = flagos.Stream()
    # Larger than what other tests may have left of a segment, where the best fit could be.
    size = 32 << 20
    flagos.empty_cache()
    x = torch.full((size,), 5, dtype=torch.uint8, device=D)
    flagos._sleep(LONG)
    y = x.clone()  # Reads the block when the sleep is over.
    address = x.data_ptr()
    del x
    with flagos.stream(side):
        other = torch.zeros(size, dtype=torch.uint8, device=D)
        assert other.data_ptr() != address
        other.fill_(9)
    same = torch.zeros(size, dtype=torch.uint8, device=D)
    assert same.data_ptr() == address and y.sum().item() == 5 * size
    # And what the side stream gave up is not the default stream's.
    address = other.data_ptr()
    with flagos.stream(side):
        flagos._sleep(LONG)
        kept = other.clone()
    del other
    assert torch.ones(size, dtype=torch.uint8, device=D).data_ptr() != address
    side.synchronize()
    assert kept.sum().item() == 9 * size


# --- copies of views -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64])
def test_expanded_tensors_come_to_the_host_whole(dtype):
    def program(device):
        x = (torch.arange(8) % 3).to(dtype).to(device)
        views = [
            x.view(1, 8, 1).expand(3, 8, 3),
            x[2:6].view(1, 4, 1).expand(1, 4, 3),
            torch.broadcast_to(x[5], (2, 3)),
            x[:1].expand(5),
            x[7:].expand(2, 2),
            x.view(2, 4)[:, None].expand(2, 3, 4),
            x.view(4, 2).t()[:, :, None].expand(2, 4, 2),
            x[6:].expand(0, 2),
            x.as_strided((3, 3), (1, 2), 1),
            x.as_strided((2, 2), (0, 1), 6),
            x.unfold(0, 3, 2),
        ]
        results = []
        for view in views:
            results += [view.to("cpu", copy=True), view.clone(), torch.ones(3, 8, 3).to(device)]
            results.append(torch.empty(view.shape, dtype=dtype).copy_(view))
            results.append(torch.empty(view.shape, dtype=torch.complex128).copy_(view))
        return results

    check(program)


@pytest.mark.parametrize("source", ["host", "device"])
def test_a_copy_into_a_view_changes_its_elements_alone(source):
    def program(device):
        def made(value, dtype=torch.float32):
            return torch.tensor(value, dtype=dtype, device=device if source == "device" else "cpu")

        results = []
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
            x = torch.arange(24).to(dtype).to(device).view(4, 6)
            x.select(0, 2)[3].copy_(made(9.0))
            x[0, 1::2] = made([5, 6, 7], torch.int16)
            x[1:, 2].copy_(made([1.0, 2.0, 0.0], torch.float64))
            x.narrow(1, 4, 2).narrow(0, 1, 1).copy_(made([[8, 9]], torch.uint8))
            x.t()[0].copy_(made([3.0]))
            x.diagonal().copy_(made([0.0, 1.0, 0.0, 1.0]))
            x[[3]] = made([4.0])
            x.view(-1)[23:].copy_(made([True], torch.bool))
            x[..., None].movedim(-1, 0)[0, 3, 1:3] = made(2)
            x[0:0].copy_(made([]).view(0, 1))
            results += [x, x[1].clone(), x.untyped_storage().nbytes()]
        return results

    check(program)


# --- streams and events of both interfaces -------------------------------------------------------


def test_events_of_both_kinds_are_recorded_on_streams_of_both_kinds():
    for index in range(COUNT):
        with flagos.device(index):
            streams = [
                torch.accelerator.current_stream(),
                flagos.current_stream(),
                flagos.default_stream(),
                torch.Stream(D),
                flagos.Stream(),
                flagos.Stream(priority=-1),
            ]
            for stream in streams:
                for event in (torch.Event(D), flagos.Event(), torch.Event()):
                    event.record(stream)
                    for waiting in streams:
                        event.wait(waiting)
                        waiting.wait_event(event)
                        waiting.wait_stream(stream)
                    event.synchronize()
                    assert event.query() and event.device == torch.device(D, index)
                made = stream.record_event()
                made.synchronize()
                assert made.query()


def test_both_interfaces_agree_on_streams():
    made = [torch.Stream(D), torch.Stream(device=D), flagos.Stream(), flagos.Stream()]
    assert len({stream.stream_id for stream in made} - {0}) == len(set(made)) == 4
    before = flagos.current_stream()
    for stream in made:
        for setter in (torch.accelerator.set_stream, flagos.set_stream):
            setter(stream)
            assert flagos.current_stream() == torch.accelerator.current_stream() == stream
            assert flagos.current_stream().stream_id == stream.stream_id
            assert torch.accelerator.current_stream(D).stream_id == stream.stream_id
            with made[0]:
                assert flagos.current_stream() == made[0]
                with flagos.stream(made[-1]):
                    assert torch.accelerator.current_stream() == made[-1]
            assert flagos.current_stream() == stream
            setter(before)
    assert flagos.current_stream() == before
    if COUNT > 1:
        # Setting a stream of another device makes that one current, as on CUDA.
        torch.accelerator.set_stream(torch.Stream(f"{D}:1"))
        assert flagos.current_device() == 1
        torch.accelerator.set_stream(torch.accelerator.current_stream(f"{D}:0"))
        flagos.set_stream(flagos.default_stream(1))
        flagos.set_stream(before)


# --- a long life ---------------------------------------------------------------------------------


def test_a_process_that_lives_long_does_not_degrade():
    """Small trainings of many shapes, errors that are caught, collections, an emptied cache."""

    def life(number):
        torch.manual_seed(number)
        width = 3 + number % 7
        model = torch.nn.Sequential(
            torch.nn.Linear(width, 5),
            torch.nn.BatchNorm1d(5),
            torch.nn.ReLU(),
            torch.nn.Linear(5, 2),
        ).to(D)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(4 + number % 5, width)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(x.to(D)).square().mean()
            loss.backward()
            optimizer.step()
        for wrong in (
            lambda: model(torch.ones(2, width + 1, device=D)),
            lambda: torch.empty(2**55, device=D),
            lambda: torch.ones(2, device=D).view(3),
            lambda: torch.linalg.cholesky(-torch.eye(2, device=D)),
        ):
            with pytest.raises(RuntimeError):
                wrong()
        if number % 10 == 0:
            gc.collect()
            flagos.empty_cache()
        return loss.item()

    first = [life(number) for number in range(5)]
    gc.collect()
    before = flagos.memory_allocated() if PLATFORM != "cpu" else 0
    for number in range(5, 40):
        life(number)
    assert [life(number) for number in range(5)] == first
    gc.collect()
    assert (flagos.memory_allocated() if PLATFORM != "cpu" else 0) <= before
