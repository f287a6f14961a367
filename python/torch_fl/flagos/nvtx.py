"""Ranges of a program's own in a timeline: torch.profiler shows them on every platform, and where
CUDA is the twin NVIDIA's tools do as well."""

import contextlib
import threading

import torch

from torch_fl.flagos._serve import CUDA, KIND, but_cuda, serve

_thread = threading.local()
THREAD_BOUND = "torch.profiler's ranges end in the thread in which they began"


def _open_ranges():
    if not hasattr(_thread, "ranges"):
        _thread.ranges = []
    return _thread.ranges


def range_push(msg: str) -> int:
    """Begin a range inside the open ones of this thread; answers its depth, from 0."""
    record = torch.profiler.record_function(msg)
    record.__enter__()
    ranges = _open_ranges()
    ranges.append(record)
    if KIND == "cuda":
        CUDA.nvtx.range_push(msg)
    return len(ranges) - 1


def range_pop() -> int:
    """End this thread's innermost range; answers its depth. RuntimeError if none is open."""
    ranges = _open_ranges()
    if not ranges:
        raise RuntimeError("torch.flagos.nvtx.range_pop: this thread has no open range")
    if KIND == "cuda":
        CUDA.nvtx.range_pop()
    ranges.pop().__exit__(None, None, None)
    return len(ranges)


@contextlib.contextmanager
def range(msg: str, *args, **kwargs):
    """Context manager and decorator: a range named msg.format(*args, **kwargs)."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


def mark(msg: str) -> None:
    """A moment in the timeline."""
    with torch.profiler.record_function(msg):
        if KIND == "cuda":
            CUDA.nvtx.mark(msg)


@serve("nvtx.range_start", **but_cuda(THREAD_BOUND))
def range_start(msg: str) -> int:
    """Begin a range that another thread may end; answers its number."""
    return CUDA.nvtx.range_start(msg)


@serve("nvtx.range_end", **but_cuda(THREAD_BOUND))
def range_end(range_id: int) -> None:
    """End the range of range_start's number."""
    CUDA.nvtx.range_end(range_id)


__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]
