"""Initialisation at first use, and the calls that wait for it.

Nothing touches a device until somebody needs one. Seeds and generator states that are set earlier
wait in a queue and are applied in the order in which they were given.
"""

import sys
import threading
import traceback

import torch

from torch_fl import _C, _lib

# PyTorch's own module, whatever stands at torch.cuda later (see torch_fl.as_cuda).
CUDA = torch.cuda
_CUDA_IS_TWIN = _C.platform_chosen()["twin"] == "cuda"

_lock = threading.Lock()
_thread = threading.local()
_queue = []  # (kind, function, formatted stack of the caller); guarded by _lock
_done = False


class DeferredCallError(RuntimeError):
    """A seed or a state that was set before the device was initialised could not be set then."""


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had initialised the device already."""
    return _C.device_in_bad_fork()


def is_initialized() -> bool:
    """Whether the device has been initialised in this process."""
    return _done and not _C.device_in_bad_fork()


def init() -> None:
    """Initialise the device now, which its first use would do as well. Idempotent."""
    _lazy_init()


def _lazy_init():
    global _done
    if is_initialized() or getattr(_thread, "inside", False):
        return
    if _C.device_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize flagos in forked subprocess. To use flagos with "
            "multiprocessing, you must use the 'spawn' start method"
        )
    _C.device_init()  # First, since it says best why a device cannot be used.
    if _CUDA_IS_TWIN:
        if not CUDA.is_initialized():
            _start_cuda()  # Before the lock is taken: CUDA's start holds one, and may come here.
        _lib.put_fastbins()
    with _lock:
        if is_initialized():
            return
        # Queued calls come back here through the functions that they use.
        _thread.inside = True
        try:
            while _queue:
                _, function, stack = _queue.pop(0)
                try:
                    function()
                except Exception as error:
                    raise DeferredCallError(
                        f"a call that waited for flagos to initialise failed: {error}\n\n"
                        f"It was made here:\n\n{''.join(stack)}"
                    ) from error
        finally:
            _thread.inside = False
        _done = True


# CUDA as the twin draws from the same generators, and each of the two modules keeps seeds for its
# start: if one started later than the other, it would set them once more, and random numbers would
# come again. So either starts the other, and what waits for flagos comes last.


def _start_cuda():
    # It writes names into whatever module stands at torch.cuda (see torch_fl.as_cuda).
    standing, sys.modules["torch.cuda"] = sys.modules["torch.cuda"], CUDA
    _thread.inside = True
    try:
        CUDA.init()
    finally:
        _thread.inside = False
        sys.modules["torch.cuda"] = standing


def _follow_cuda():
    if not getattr(_thread, "inside", False):
        CUDA._queued_calls.append((_lazy_init, ()))  # Behind its seeds, which are in the list by now.


if _CUDA_IS_TWIN:
    CUDA._lazy_call(_follow_cuda)


def _lazy_call(function, kind=None):
    """Run `function` now or at initialisation. A later call of the kind "seed_all" makes earlier
    seeds pointless, and one of the kind "seed" earlier ones of its own kind."""
    if getattr(_thread, "inside", False) or is_initialized():
        function()
        return
    with _lock:
        if not is_initialized():
            replaced = {"seed_all": ("seed", "seed_all"), "seed": ("seed",)}.get(kind, ())
            _queue[:] = [entry for entry in _queue if entry[0] not in replaced]
            _queue.append((kind, function, traceback.format_stack()[:-1]))
            return
    function()
