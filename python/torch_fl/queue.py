"""The launch queue: the calling thread prepares operators, a worker thread launches them in order.

    >>> import torch, torch_fl
    >>> from torch_fl import queue
    >>> with queue.using(torch_fl.platform()["twin"] is not None):
    ...     y = torch.ones(4, device="flagos") + 1
    >>> queue.drain()

It is on where the twin is an accelerator and off on `cpu`; TORCH_FL_QUEUE=0 or 1 says otherwise for a
process, and so does `set` while it runs. Results are the same, bit for bit; docs/queue.md says what is queued, what waits, and when an operator's
failure shows. `record` and `dump` tell what the queue is doing, also while it hangs.
"""

import contextlib
import dataclasses
import sys

import torch

from torch_fl import _C, _queue_points


def is_on():
    """Whether operators are queued."""
    return torch.ops.flagos.queue_is_on()


def set(on=True):
    """Switch the queue on, or off, which waits for what is queued. NotImplementedError on a platform
    without a twin; RuntimeError where TORCH_FL_LAUNCH_BLOCKING is 1."""
    torch.ops.flagos.queue_set(bool(on))
    _queue_points.install()


@contextlib.contextmanager
def using(on=True):
    """Context manager: the queue on or off for the whole process, and afterwards as before."""
    before = is_on()
    if on != before:
        set(on)
    try:
        yield
    finally:
        if is_on() != before:
            set(before)


def drain():
    """Wait until everything that was queued before has been launched; not for the device. Raises the
    failure of a queued operator if there is one."""
    torch.ops.flagos.queue_drain()


@dataclasses.dataclass(frozen=True)
class Task:
    """One entry of the flight record: its number among the device's tasks, the operator, the stream,
    "queued", "running", "done" or "failed", and for how many nanoseconds it has been running."""

    number: int
    name: str
    stream: int
    state: str
    running_ns: int

    def __str__(self):
        running = f" for {self.running_ns / 1e9:.3f} s" if self.state == "running" else ""
        return f"{self.number:>10}  {self.state}{running}  {self.name}  stream {self.stream}"


def record(device=0):
    """The flight record of a device: its last tasks, at most 256, oldest first. Waits for nothing."""
    return [Task(*row) for row in _C.queue_record(device)]


def dump(file=None, device=0, done=16):
    """Write the flight record to a file (the standard error stream): the last `done` tasks that have
    run, and every one that has not."""
    file = sys.stderr if file is None else file
    tasks = record(device)
    waiting = [task for task in tasks if task.state in ("queued", "running")]
    ran = [task for task in tasks if task.state not in ("queued", "running")]
    print(f"launch queue of flagos:{device}: {stats(device)}", file=file)
    for task in ran[max(0, len(ran) - done) :] + waiting:
        print(task, file=file)


def stats(device=0):
    """Counters of a device's queue: tasks `queued` and `run`; `drains`, calls that waited for it;
    `full`, calls that waited for room; `sleeps` of the worker; `held_bytes`, new memory of tasks
    that have not run."""
    return _C.queue_stats(device)
