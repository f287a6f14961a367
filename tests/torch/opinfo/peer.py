"""A side of a case in a process of its own.

Where the twin is a card, flagos and the twin's plain device cannot share a process: once PrivateUse1 is
renamed, it is PyTorch's accelerator, and backward on plain tensors of the card fails inside PyTorch.
And what a kernel finds wrong there, such as an index out of range, ends the process's use of the card,
so that flagos has a process too. The parent asks through a pipe; requests and answers are pickles,
tensors in them lie on the host.
"""

import atexit
import importlib
import multiprocessing.connection
import os
import pathlib
import pickle
import subprocess
import sys

import torch

from .pickles import pickled


class Peer:
    """The parent's handle of the child. Starts it on first use, and again if a case ended it."""

    def __init__(self, device):
        self.device = device
        self.child = self.pipe = None
        atexit.register(self.stop)

    def start(self):
        ours, theirs = multiprocessing.connection.Pipe()
        # Launches wait, so that a failure belongs to the call that made it.
        environment = dict(
            os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", CUDA_LAUNCH_BLOCKING="1"
        )
        # PyTorch's generators of samples iterate over sets of strings.
        if not os.environ.get("PYTHONHASHSEED", "random").isdigit():
            raise RuntimeError("run Python with PYTHONHASHSEED=0: a side's process makes its samples")
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
        """What `function` of opinfo's `module` answers for this side."""
        if self.child is None:
            self.start()
        try:
            self.pipe.send_bytes(pickled((module, function, arguments)))
            answer, goes_on = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            code = self.child.wait(timeout=30)
            self.child = None
            raise RuntimeError(
                f"the process of {self.device} died with code {code} in {arguments}"
            ) from None
        if not goes_on:
            self.stop()
        if isinstance(answer, Exception):
            raise answer
        return answer


def is_lost(device):
    """Whether this process cannot use its device any more."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError:
        return True
    return False


def serve(file_number, device):
    from .sides import Side

    if device == "flagos":
        import torch_fl  # noqa: F401
    else:
        assert "torch_fl" not in sys.modules
    pipe = multiprocessing.connection.Connection(file_number)
    side = Side(device)
    while True:
        try:
            module, function, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            called = getattr(importlib.import_module(f"opinfo.{module}"), function)
            answer = called(side, *arguments)
        except Exception as error:  # The parent raises it in the test that asked.
            answer = RuntimeError(f"{type(error).__name__} in the process of {device}: {error}")
        lost = is_lost(device)
        pipe.send_bytes(pickled((answer, not lost)))
        if lost:
            os._exit(0)  # The next call starts another one.


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
