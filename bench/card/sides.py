"""The processes that a bench of this folder compares, told what to do a line at a time.

A process is native CUDA, native CUDA once more, flagos, or flagos with the launch queue: once flagos
is PyTorch's accelerator, plain CUDA tensors cannot be differentiated beside it, and what two processes
of the same differ by is the error of what is measured. Each is this folder's script with --worker; it
answers a line of JSON for each line of text, so that only one works at a time. What is timed is called
from one processor: on a virtual machine one may be half as fast as the next for a minute.
"""

import contextlib
import json
import os
import subprocess
import sys

NATIVE, AGAIN = "cuda", "again"
ALL = (NATIVE, "flagos", "queue")  # "queue" is flagos with TORCH_FL_QUEUE=1.


class Side:
    """The process of one side: `script --worker NAME`."""

    def __init__(self, name, script):
        self.name, self.script = name, script
        environment = dict(os.environ, TORCH_FL_QUEUE=str(int(name == "queue")))
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(script), "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, command):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {self.name} died during '{command}'")
        answer = json.loads(line)
        if not answer["ok"]:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, command):
        self.tell(command)
        return self.answer(command)

    def quit(self):
        if self.process.poll() is None:
            self.process.stdin.close()
        self.process.wait()


def ask_all(sides, command):
    """What every side answers; they work at the same time."""
    for side in sides:
        side.tell(command)
    return [side.answer(command) for side in sides]


def in_turn(sides, command, turn):
    """{name: answer}, one side after the other, beginning with another one in each turn."""
    first = turn % len(sides)
    return {side.name: side.ask(command) for side in sides[first:] + sides[:first]}


@contextlib.contextmanager
def one_processor():
    """The calling thread and the one of its backward passes, of which one waits while the other works, on
    the processor that all sides call from. Other threads, as the launch queue's worker, run where they
    like: it works beside the caller."""
    threads = {thread: os.sched_getaffinity(thread) for thread in _callers()}
    processor = max(threads[os.getpid()])
    for thread in threads:
        os.sched_setaffinity(thread, {processor})
    try:
        yield
    finally:
        for thread, allowed in threads.items():
            os.sched_setaffinity(thread, allowed)


def _callers():
    """The main thread and those that PyTorch's engine of gradients made for a device."""
    yield os.getpid()
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            with open(f"/proc/self/task/{thread}/comm") as name:
                backward = name.read().startswith("pt_autograd")
        except (FileNotFoundError, ProcessLookupError):  # It ended after it was listed.
            continue
        if backward:
            yield thread


def finish(torch, device):
    """Wait for all that was called on this side, the launch queue included."""
    if device == "flagos":
        torch.flagos.synchronize()
    torch.cuda.synchronize()


def serve(name, make):
    """The worker's loop. `make(torch, device)` gives a function from a line to an answer."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever libraries print does not belong into the answers.
    import torch

    device = NATIVE
    if name not in (NATIVE, AGAIN):
        import torch_fl  # noqa: F401

        device = "flagos"
    respond = make(torch, device)
    for line in sys.stdin:
        try:
            answer = {"ok": True, **respond(line.strip())}
        except Exception as error:  # The parent must learn of it rather than wait.
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
