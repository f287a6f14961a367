"""Streams through PyTorch's generic interfaces, priorities, streams of other libraries."""

import threading
import time

import pytest
import torch

import torch_fl

flagos = torch.flagos
KIND = torch_fl.platform()["twin"] or "core"
asynchronous = pytest.mark.platforms("sim", "cuda")
# Cycles of _sleep that last half a second or longer, so that a busy host does not miss them.
LONG = 1_000_000_000


@pytest.fixture(autouse=True)
def unchanged():
    before = flagos.current_stream()
    yield
    flagos.synchronize()
    assert flagos.current_stream() == before


def test_torch_stream_is_a_context():
    stream = torch.Stream(device="flagos")
    assert stream.device == torch.device("flagos:0") and stream.device_index == 0
    with stream as entered:
        assert entered == stream == torch.accelerator.current_stream()
        x = torch.full((1000,), 2.0, device="flagos")
    stream.synchronize()
    assert stream.query() and x.sum().item() == 2000
    with pytest.raises(ZeroDivisionError):
        with stream:
            1 / 0


def test_torch_accelerator_sets_streams():
    before = torch.accelerator.current_stream()
    stream = torch.Stream(device="flagos")
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream() == stream == flagos.current_stream()
        assert torch.accelerator.current_stream("flagos:0") == stream
        assert torch.accelerator.current_stream(0).stream_id == stream.stream_id
    finally:
        torch.accelerator.set_stream(before)


def test_streams_are_compared_and_hashed():
    one, other = flagos.Stream(), flagos.Stream()
    assert one != other and len({one, other, one}) == 2
    assert flagos.default_stream() == flagos.default_stream(0) != one
    assert flagos.default_stream().stream_id == 0
    assert one.stream_id in {int(repr(one).split("stream_id=")[1].rstrip(">"), 16)}


def test_priorities_are_clamped():
    least, greatest = flagos.Stream.priority_range()
    assert greatest <= 0 <= least
    assert flagos.Stream().priority == 0
    assert flagos.Stream(priority=-1).priority == max(-1, greatest)
    assert flagos.Stream(priority=-1000).priority == greatest
    assert flagos.Stream(priority=1000).priority in (0, least)
    assert flagos.default_stream().priority == 0


def test_a_stream_waits_for_another():
    first, second = flagos.Stream(), flagos.Stream()
    with flagos.stream(first):
        x = torch.ones(2000, device="flagos")
        for _ in range(10):
            x = x + 1
    second.wait_stream(first)
    with flagos.stream(second):
        x.record_stream(second)
        y = x * 2
    event = second.record_event()
    flagos.current_stream().wait_event(event)
    assert y.sum().item() == 44000


@asynchronous
def test_the_host_does_not_wait_for_a_stream():
    flagos.synchronize()
    stream = flagos.Stream()
    begun = time.monotonic()
    with flagos.stream(stream):
        flagos._sleep(LONG)
    assert not stream.query()
    stream.synchronize()
    assert stream.query() and time.monotonic() - begun > 0.2


@asynchronous
def test_synchronize_waits_for_all_streams():
    streams = [flagos.Stream() for _ in range(3)]
    for stream in streams:
        with flagos.stream(stream):
            flagos._sleep(LONG // 4)
    torch.accelerator.synchronize()
    assert all(stream.query() for stream in streams)


@asynchronous
def test_memory_of_another_stream_is_not_reused_too_early():
    side = flagos.Stream()
    x = torch.full((2**20,), 7, dtype=torch.uint8, device="flagos")
    side.wait_stream(flagos.current_stream())
    with flagos.stream(side):
        flagos._sleep(LONG)
        kept = x.clone()
    x.record_stream(side)
    address = x.data_ptr()
    del x
    y = torch.zeros(2**20, dtype=torch.uint8, device="flagos")
    assert y.data_ptr() != address or side.query()
    side.synchronize()
    assert kept.sum().item() == 7 * 2**20


@asynchronous
def test_a_stream_of_another_library():
    made = flagos.Stream()
    wrapped = flagos.ExternalStream(made.flagos_stream)
    assert isinstance(wrapped, flagos.Stream) and wrapped.device == made.device
    assert wrapped.native_handle == made.native_handle
    found = flagos.get_stream_from_external(made.flagos_stream, "flagos:0")
    assert found == wrapped
    with flagos.stream(wrapped):
        x = torch.ones(10, device="flagos") * 3
    wrapped.synchronize()
    assert x.sum().item() == 30


@pytest.mark.platforms("cpu")
def test_the_host_wraps_no_streams():
    for call in (flagos.ExternalStream, flagos.get_stream_from_external):
        with pytest.raises(NotImplementedError, match="cpu.*another library"):
            call(1)


def test_streams_of_many_threads_are_their_own():
    failures = []

    def work():
        for _ in range(20):
            stream = flagos.Stream()
            with flagos.stream(stream):
                if flagos.current_stream() != stream:
                    failures.append("another current stream")
            if flagos.current_stream() != flagos.default_stream():
                failures.append("not restored")

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_gradients_use_the_stream_of_their_forward_pass():
    stream = flagos.Stream()
    x = torch.ones(1000, device="flagos", requires_grad=True)
    stream.wait_stream(flagos.current_stream())
    with flagos.stream(stream):
        (x * 3).sum().backward()
    flagos.current_stream().wait_stream(stream)
    assert x.grad.sum().item() == 3000


def test_sleep_refuses_less_than_nothing():
    if KIND != "cuda":
        with pytest.raises(ValueError):
            flagos._sleep(-1)
    flagos._sleep(0)


def test_a_word_that_streams_do_not_know_is_refused():
    with pytest.raises(TypeError, match="foo"):
        torch.flagos.Stream(foo=1)
    stream = torch.flagos.Stream()
    words = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
    assert torch.flagos.Stream(**words) == stream
