"""What each platform serves: a mark on every function and class of torch.flagos that some platform
cannot serve. `_names` makes the table of the documents from these marks.

A platform is of one of three kinds: "cpu" (the host is the twin), "core" (no twin: the simulated
device, and chips that PyTorch itself cannot drive) and "cuda" (PyTorch's CUDA is the twin).
"""

import functools

from torch_fl import _C
from torch_fl.flagos import lazy
from torch_fl.flagos.lazy import CUDA

KINDS = ("cpu", "core", "cuda")
KIND = _C.platform_chosen()["twin"] or "core"

# Reasons that several names share.
HOST_MEMORY = (
    "memory comes from the host's allocator, which keeps no statistics, no cache and no limit"
)
NO_TELEMETRY = "the platform's driver offers no such reading"
NO_GRAPHS = "its operators cannot be captured and replayed"
ONLY_CUDA = "it is about CUDA alone"


def error(name, reason):
    """The exception of a name whose meaning this platform cannot serve."""
    platform = _C.platform_chosen()["name"]
    return NotImplementedError(
        f"torch.flagos.{name} is not served on platform '{platform}': {reason}"
    )


def serve(name=None, note=None, **reasons):
    """Decorator: this function or class is not served on the kinds of platform that are named, each
    with the reason as its value. There, calling it raises NotImplementedError."""
    unknown = set(reasons) - set(KINDS)
    assert not unknown, f"no kind of platform: {unknown}"

    def mark(served):
        result = served
        if KIND in reasons:
            label = name or served.__name__

            def refuse(*args, **kwargs):
                raise error(label, reasons[KIND])

            if isinstance(served, type):
                served.__new__ = refuse
                served.__init__ = refuse
            else:
                result = functools.wraps(served)(refuse)
        result._unserved = reasons
        result._note = note
        return result

    return mark


def everywhere(reason):
    """`reason` for every kind, as arguments of `serve`."""
    return dict.fromkeys(KINDS, reason)


def but_cuda(reason):
    """`reason` for every kind but "cuda"."""
    return {"cpu": reason, "core": reason}


def cuda():
    """torch.cuda with its Python side initialised; only where CUDA is the twin."""
    lazy._lazy_init()
    return CUDA
