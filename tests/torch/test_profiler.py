"""torch.profiler: operators, routes, memory and ranges of flagos in its tables and traces."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from torch_fl import _C, routes

PLATFORM = _C.platform_chosen()["name"]

D = "flagos"


def work():
    x = torch.ones(16, 16, device=D, requires_grad=True)
    with record_function("own range"):
        (x @ x).relu().sum().backward()


def profiled(**options):
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        work()
    return profiler


@pytest.mark.parametrize("session", [1, 2])
def test_operators_and_ranges(session, tmp_path):
    profiler = profiled(record_shapes=True, with_stack=session == 2)
    rows = {row.key: row for row in profiler.key_averages()}
    for name in ("aten::mm", "aten::relu", "aten::sum", "own range", "aten::threshold_backward"):
        assert rows[name].count >= 1 and rows[name].cpu_time_total > 0
    shapes = [row.input_shapes for row in profiler.key_averages(group_by_input_shape=True)]
    assert [[16, 16], [16, 16]] in shapes
    assert "aten::mm" in profiler.key_averages().table(sort_by="cpu_time_total")
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"aten::mm", "own range"} <= names


def test_memory():
    profiler = profiled(profile_memory=True)
    rows = profiler.key_averages()
    assert any(row.cpu_memory_usage or row.device_memory_usage for row in rows)


def test_memory_of_a_device_is_the_devices():
    """On platform `cpu` device memory is the host's, and is booked as that."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        x = torch.empty(1 << 20, device=D)
        del x
    (row,) = [row for row in profiler.key_averages() if row.key == "aten::empty"]
    used = row.cpu_memory_usage if PLATFORM == "cpu" else row.device_memory_usage
    assert used >= 4 << 20
    whole = [e for e in profiler.events() if e.name in ("[memory]", "aten::empty")]
    sums = [e.cpu_memory_usage if PLATFORM == "cpu" else e.device_memory_usage for e in whole]
    assert sum(sums) == 0


def test_a_schedule_of_several_steps():
    done = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda profiler: done.append(len(profiler.events())),
    ) as profiler:
        for _ in range(6):
            work()
            profiler.step()
    assert len(done) == 2 and all(count > 10 for count in done)


@pytest.mark.platforms("cpu", "cuda")
def test_the_route_of_an_operator_is_in_the_trace():
    with routes.using({"aten::mm": "cpu"}):
        events = profiled().events()
    inside = set()
    for event in events:
        if event.name == "flagos::cpu":
            while event.cpu_parent is not None:
                event = event.cpu_parent
                inside.add(event.name)
    assert "aten::mm" in inside and "aten::sum" not in inside


def test_the_automatic_profiler_of_autograd():
    with torch.autograd.profiler.profile() as profiler:
        work()
    assert "aten::mm" in profiler.key_averages().table()
    with torch.flagos.nvtx.range("a range"):
        pass
