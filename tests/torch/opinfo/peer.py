"""The twin's side of a case in a process of its own, which does not load torch_fl.

Where the twin is a card, flagos and the twin's plain device cannot share a process: once PrivateUse1 is
renamed, it is PyTorch's accelerator, and backward on plain tensors of the card fails inside PyTorch.
The parent asks through a pipe; requests and answers are pickles, tensors in them lie on the host.
"""

import atexit
import importlib
import multiprocessing.connection
import os
import pathlib
import subprocess
import sys


class Peer:
    """The parent's handle of the child. Starts it on first use, and again if a case killed it."""

    def __init__(self, device):
        self.device = device
        self.child = self.pipe = None
        atexit.register(self.stop)

    def start(self):
        ours, theirs = multiprocessing.connection.Pipe()
        environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        # PyTorch's generators of samples iterate over sets of strings.
        if not os.environ.get("PYTHONHASHSEED", "random").isdigit():
            raise RuntimeError("run Python with PYTHONHASHSEED=0: a twin's process makes its samples")
        here = str(pathlib.Path(__file__).resolve().parents[1])
        found = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{here}{os.pathsep}{found}" if found else here
        self.child = subprocess.Popen(
            [sys.executable, "-m", "opinfo.peer", str(theirs.fileno()), self.device],
            env=environment,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.pipe = ours

    def stop(self):
        if self.child is not None:
            self.pipe.close()
            self.child.wait(timeout=30)
            self.child = None

    def call(self, module, function, *arguments):
        """What `function` of opinfo's `module` answers for the twin's side."""
        if self.child is None:
            self.start()
        try:
            self.pipe.send((module, function, arguments))
            answer = self.pipe.recv()
        except (EOFError, OSError):
            code = self.child.wait(timeout=30)
            self.child = None
            raise RuntimeError(f"the twin's process died with code {code} in {arguments}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(file_number, device):
    from .sides import Side

    assert "torch_fl" not in sys.modules
    pipe = multiprocessing.connection.Connection(file_number)
    side = Side(device)
    while True:
        try:
            module, function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            called = getattr(importlib.import_module(f"opinfo.{module}"), function)
            pipe.send(called(side, *arguments))
        except Exception as error:  # The parent raises it in the test that asked.
            pipe.send(RuntimeError(f"{type(error).__name__} in the twin's process: {error}"))


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
