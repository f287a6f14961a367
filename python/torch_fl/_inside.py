"""Whether this thread is inside torch_fl.as_cuda, where flagos is called cuda.

The names that as_cuda exchanges are the whole process's, so each of them asks here first. Inside are
the thread of the `with` block, threads that it starts, and PyTorch's own threads for as long as they
run its backward pass. What torch_fl does itself for a call is done outside.
"""

import threading

import torch
from torch.overrides import TorchFunctionMode


class _Thread(threading.local):
    # None: nobody has said so in this thread, and the modes that it carries decide.
    is_inside = None


here = _Thread()


class Mode(TorchFunctionMode):
    """The mode of as_cuda, to know it by."""


def inside():
    """Whether "cuda" means flagos in the calling thread."""
    if here.is_inside is not None:
        return here.is_inside
    # PyTorch hands the modes of a thread on to those that run its backward pass.
    stack = range(torch._C._len_torch_function_stack())
    return any(isinstance(torch._C._get_function_stack_at(index), Mode) for index in stack)


class setting:
    """Context manager: the calling thread is inside, or outside, whatever it was."""

    __slots__ = ("_value", "_before")

    def __init__(self, value):
        self._value = value

    def __enter__(self):
        self._before = here.is_inside
        here.is_inside = self._value

    def __exit__(self, *exception):
        here.is_inside = self._before
