"""Whether this thread is inside torch_fl.as_cuda, where flagos is called cuda.

The names that as_cuda exchanges are the whole process's, so each of them asks here first. Inside are
the thread of the `with` block, threads that it starts, and PyTorch's own threads for as long as they
run its backward pass. What torch_fl does itself for a call is done outside.
"""

import threading

import torch
from torch.overrides import TorchFunctionMode


class Block:
    """The outermost `with torch_fl.as_cuda()` of a thread, which threads that it starts share. False once
    it has ended: a thread that outlives it is outside, whoever opens another one."""

    users = 0  # How many `with` are open: its own, and those inside it.

    def __bool__(self):
        return self.users > 0


class _Thread(threading.local):
    # A block, or False outside. None: nobody has said so in this thread, and the modes that it carries
    # decide.
    block = None


here = _Thread()


class Mode(TorchFunctionMode):
    """The mode of as_cuda, to know it by."""

    def __init__(self):
        super().__init__()
        self.block = block()


def block():
    """The block that the calling thread is in; something false where there is none."""
    if here.block is not None:
        return here.block
    # PyTorch hands the modes of a thread on to those that run its backward pass.
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, Mode):
            return mode.block
    return None


def inside():
    """Whether "cuda" means flagos in the calling thread."""
    return bool(block())


class setting:
    """Context manager: the calling thread is in a block, or outside (False), whatever it was."""

    __slots__ = ("_value", "_before")

    def __init__(self, value):
        self._value = value

    def __enter__(self):
        self._before = here.block
        here.block = self._value

    def __exit__(self, *exception):
        here.block = self._before
