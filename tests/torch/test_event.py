"""Events: order, time, waiting; torch.Event and torch.flagos.Event."""

import time

import pytest
import torch

flagos = torch.flagos
asynchronous = pytest.mark.platforms("sim", "cuda")
# Cycles of _sleep that last a fifth of a second or longer.
LONG = 400_000_000


def make(kind, **options):
    return flagos.Event(**options) if kind == "flagos" else torch.Event("flagos", **options)


both = pytest.mark.parametrize("kind", ["torch", "flagos"])


@both
def test_an_event_that_was_not_recorded_is_done(kind):
    event = make(kind)
    assert event.query()
    event.synchronize()
    event.wait()


@both
def test_events_are_of_this_device(kind):
    event = make(kind)
    event.record()
    assert event.device.type == "flagos"
    assert isinstance(event, torch.Event) and isinstance(event, flagos.Event)
    assert not isinstance(flagos.Stream(), flagos.Event)


@both
def test_elapsed_time_is_in_milliseconds(kind):
    start, end = make(kind, enable_timing=True), make(kind, enable_timing=True)
    flagos.synchronize()
    start.record()
    flagos._sleep(LONG)
    end.record()
    end.synchronize()
    assert 100 < start.elapsed_time(end) < 5000
    assert end.elapsed_time(start) <= 0


@both
def test_time_needs_two_recorded_events_that_keep_it(kind):
    start, end = make(kind, enable_timing=True), make(kind, enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    untimed = make(kind)
    untimed.record()
    untimed.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(untimed)


@asynchronous
@both
def test_an_event_is_done_when_its_stream_has_passed_it(kind):
    stream, event = flagos.Stream(), make(kind)
    with flagos.stream(stream):
        flagos._sleep(LONG)
        event.record()
    assert not event.query()
    begun = time.monotonic()
    event.synchronize()
    assert event.query() and time.monotonic() - begun > 0.01


@asynchronous
@both
def test_recording_again_moves_an_event(kind):
    stream, event = flagos.Stream(), make(kind)
    event.record(stream)
    event.synchronize()
    with flagos.stream(stream):
        flagos._sleep(LONG)
    event.record(stream)
    assert not event.query()
    event.synchronize()


@asynchronous
def test_a_stream_waits_for_an_event_of_another():
    slow, quick, event = flagos.Stream(), flagos.Stream(), flagos.Event()
    x = torch.zeros(1000, device="flagos")
    flagos.synchronize()
    with flagos.stream(slow):
        flagos._sleep(LONG)
        x.add_(5)
        event.record()
    event.wait(quick)
    with flagos.stream(quick):
        y = x * 2
    quick.synchronize()
    assert y.sum().item() == 10000


def test_a_stream_makes_events():
    stream = flagos.Stream()
    event = stream.record_event()
    event.synchronize()
    assert event.query()
    known = torch.Event("flagos")
    assert stream.record_event(known) is known


def test_an_event_of_another_device_waits_but_is_not_recorded():
    if flagos.device_count() < 2:
        pytest.skip("needs two devices")
    event = flagos.Event()
    event.record(flagos.Stream(device=1))
    flagos.current_stream(0).wait_event(event)
    flagos.synchronize(0)
    with pytest.raises(RuntimeError):
        event.record(flagos.Stream(device=0))


def test_what_events_cannot_do_is_said():
    for option in ("interprocess", "external"):
        with pytest.raises(NotImplementedError, match="not shared"):
            flagos.Event(**{option: True})
    with pytest.raises(NotImplementedError, match="not shared"):
        flagos.Event.from_ipc_handle("flagos:0", b"")


def test_events_leave_nothing_behind():
    import gc
    import resource

    def many(number):
        for _ in range(number):
            event = flagos.Event(enable_timing=True)
            event.record()
        flagos.synchronize()
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    many(2000)
    before = many(2000)
    assert many(10000) - before < 4096  # KiB


def test_the_class_has_the_methods_and_no_subclass():
    event = flagos.Event(enable_timing=True)
    flagos.Event.record(event)
    flagos.Event.synchronize(event)
    assert flagos.Event.query(event)
    assert {"record", "wait", "query", "synchronize", "elapsed_time"} <= set(dir(flagos.Event))
    with pytest.raises(TypeError, match="an attribute of Timer"):

        class Timer(flagos.Event):
            pass
