"""Segments, blocks and the history of an allocator, in the form that torch.cuda's tools read."""

import pickle
import sys
from typing import Any

from torch_fl import _C
from torch_fl.flagos._serve import HOST_MEMORY, KIND, cuda, error, serve
from torch_fl.flagos.lazy import _lazy_init

# Events that the core keeps for each device at most; each takes 48 bytes of host memory.
MAX_ENTRIES = 2**20
_skipped = frozenset()  # actions that the present history leaves out; only where the core keeps it


@serve(cpu=HOST_MEMORY)
def memory_snapshot(mempool_id=None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of every device with their blocks: addresses, sizes in bytes, states, streams."""
    if KIND == "cuda":
        return cuda().memory_snapshot(mempool_id, include_traces)
    if mempool_id is not None:
        raise error("memory_snapshot(mempool_id)", "the core's allocator has no separate pools")
    return _segments()


def _segments():
    _lazy_init()
    return _C.memory_segments(-1)


def _traces():
    traces = [[] for _ in range(_C.device_count())]
    for action, device, stream, address, size, time_ns in _C.memory_events(-1):
        if action in _skipped:
            continue
        entry = {"action": action, "size": size, "stream": stream, "time_us": time_ns // 1000}
        entry["device_free" if action == "oom" else "addr"] = address
        entry["frames"] = []
        traces[device].append(entry)
    return traces


@serve(cpu=HOST_MEMORY, note="without a twin: no stack traces; `frames` is empty")
def _record_memory_history(
    enabled="all",
    context="all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device=None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Keep the last `max_entries` events of each device's allocator from now on ("all" or True), or
    stop and forget them (None or False); "state" keeps none, since _snapshot shows what is live.

    Without a twin at most 2**20 events are kept, starting again forgets earlier ones, and there are
    no stack traces, so `context` and `stacks` change nothing. ValueError for another word.
    """
    global _skipped
    if enabled not in (None, False, True, "state", "all"):
        raise ValueError(f"expected 'all', 'state' or None, not {enabled!r}")
    _lazy_init()
    if KIND == "cuda":
        cuda().memory._record_memory_history(
            {False: None, True: "all"}.get(enabled, enabled),
            context,
            stacks,
            max_entries,
            clear_history=clear_history,
            compile_context=compile_context,
            global_record_annotations=global_record_annotations,
            skip_actions=skip_actions,
        )
        return
    known = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"}
    unknown = set(skip_actions or ()) - known - {"snapshot", "record_stream"}
    if unknown:
        raise ValueError(f"no action of an allocator: {sorted(unknown)}")
    keeps = enabled in (True, "all")
    _C.memory_history_enable(min(max_entries, MAX_ENTRIES) if keeps else 0)
    _skipped = frozenset(skip_actions or ())


@serve(cpu=HOST_MEMORY)
def _snapshot(device=None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """{"segments": as memory_snapshot, "device_traces": a list of events for each device, ...}."""
    if KIND == "cuda":
        return cuda().memory._snapshot(device, augment_with_fx_traces)
    return {
        "segments": _segments(),
        "device_traces": _traces(),
        "allocator_settings": {},
        "external_annotations": [],
    }


@serve(cpu=HOST_MEMORY)
def _dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write _snapshot to a file that pytorch.org/memory_viz reads."""
    picture = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(picture, file)
