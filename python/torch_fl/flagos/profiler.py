"""Tell NVIDIA's profilers when to record. torch.profiler needs none of this."""

import contextlib

from torch_fl.flagos._serve import but_cuda, cuda, serve

NO_PROFILER = "no outside profiler listens; torch.profiler shows its operators"


@serve("profiler.start", **but_cuda(NO_PROFILER))
def start() -> None:
    """Let the outside profiler record from now on."""
    cuda().profiler.start()


@serve("profiler.stop", **but_cuda(NO_PROFILER))
def stop() -> None:
    """Let the outside profiler record no longer."""
    cuda().profiler.stop()


@serve("profiler.profile", **but_cuda(NO_PROFILER))
@contextlib.contextmanager
def profile():
    """Context manager: start, and afterwards stop."""
    with cuda().profiler.profile():
        yield


__all__ = ["profile", "start", "stop"]
