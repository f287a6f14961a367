"""What `import torch` runs of torch_fl: the entry point of the group `torch.backends`.

It stands outside the package, because importing anything of the package loads it, and whether to
load is decided here. It never raises: a failure is kept and raised when the device is first used.
"""

import glob
import os
import sys
import types

# Device nodes of the accelerators whose PyTorch builds answer to the name "cuda". Looking at them
# makes no context; asking torch.cuda could, and a process with a context cannot fork.
CUDA_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/mxcd*", "/dev/alixpu*", "/dev/kfd")


class Unloaded(types.ModuleType):
    """Stands at torch.flagos when loading failed: honest about having no device, and every other
    name raises the error."""

    def __init__(self, error):
        super().__init__("torch.flagos")
        self.__dict__["_error"] = error

    def is_available(self):
        return False

    def device_count(self):
        return 0

    def is_initialized(self):
        return False

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass

    def _lazy_init(self):
        raise RuntimeError(f"the device 'flagos' cannot be used: {self._error}") from self._error

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._lazy_init()


def has_cuda_device():
    """Whether plain `cuda` tensors may be used in this process. Loading torch_fl would break their
    backward pass, since it makes flagos PyTorch's accelerator (pytorch #161129)."""
    import torch

    if not torch.backends.cuda.is_built():
        return False
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()
    if hidden == "" or hidden.startswith("-1"):
        return False
    return any(glob.glob(pattern) for pattern in CUDA_DEVICES)


def _keep(error):
    import torch

    if has_cuda_device():
        # Plain cuda tensors must go on working, so the device's name stays unknown to PyTorch.
        torch.flagos = sys.modules["torch.flagos"] = Unloaded(error)
        return
    if torch._C._get_privateuse1_backend_name() == "privateuseone":
        torch.utils.rename_privateuse1_backend("flagos")
    if torch._C._get_privateuse1_backend_name() == "flagos" and not hasattr(torch, "flagos"):
        torch._register_device_module("flagos", Unloaded(error))


def autoload():
    """Load torch_fl where that is wanted: TORCH_FL_AUTOLOAD=1 always, 0 never, and without it where
    the machine has no CUDA device."""
    try:
        if "torch_fl" in sys.modules:
            return  # `import torch_fl` came first and is what imports torch; it goes on afterwards.
        wanted = os.environ.get("TORCH_FL_AUTOLOAD", "").strip().lower()
        if wanted in ("0", "off", "false", "no"):
            return
        if wanted in ("1", "on", "true", "yes") or not has_cuda_device():
            import torch_fl  # noqa: F401
    except BaseException as error:
        if not isinstance(error, Exception):
            raise  # A keyboard interrupt is not ours to keep.
        try:
            _keep(error)
        except Exception:
            pass  # `import torch` never fails because of us; `import torch_fl` tells the story.
