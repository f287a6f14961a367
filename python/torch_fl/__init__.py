"""torch_fl: PyTorch's device `flagos`.

Importing this package loads the core and the adapter, chooses the platform, and makes the device
known to PyTorch as `torch.flagos`. It makes no context and prints nothing; the few functions of
PyTorch that it wraps are the table of `_wrapped.py`. `torch_fl.routes` says what serves each
operator; `python -m torch_fl info` says what was found.
"""

import atexit
import sys

try:
    from torch_fl import _C  # Before torch, whose import does not return in a second interpreter.
except ImportError as error:
    if "main Python interpreter" in str(error):
        raise

import torch  # noqa: E402

from torch_fl import _lib  # noqa: E402  (says what else is wrong with the core)

try:
    _C = _lib.load()
except ImportError as error:
    # The command line says it in its own words; `env` is asked for when nothing works.
    if not _lib.is_command():
        raise
    _failure = error
else:
    _failure = None
    __version__ = _C.version


def _register():
    """Tell PyTorch the device's name and its module. Once a process."""
    from torch_fl import _wrapped, flagos

    torch.utils.rename_privateuse1_backend("flagos")
    if not hasattr(torch, "flagos"):
        torch._register_device_module("flagos", flagos)
    # `import torch.flagos.amp` must find the modules that are already loaded, not load them again.
    for name, module in vars(flagos).items():
        if getattr(module, "__name__", None) == f"torch_fl.flagos.{name}":
            sys.modules[f"torch.flagos.{name}"] = module
    if not hasattr(torch.Tensor, "is_flagos"):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    _wrapped.install()
    return flagos


if _failure is None:
    flagos = _register()
    atexit.unregister(torch.ops.flagos._process_is_ending)
    atexit.register(torch.ops.flagos._process_is_ending)

    from torch_fl import queue, routes  # (need the core loaded)
    from torch_fl._as_cuda import as_cuda


def platform():
    """The chosen platform: {"name", "twin", "probe_order"}; "twin" is None where there is none."""
    return _C.platform_chosen()


__all__ = ["__version__", "as_cuda", "flagos", "platform", "queue", "routes"]
