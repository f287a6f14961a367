"""Files of safetensors, whose reader knows the names of devices that it was built with, and takes
any other device by its number alone: the number of PyTorch's accelerator, which flagos is."""

import sys

import torch

from torch_fl._wrapped import Row, _mark


def _number(device):
    """The number of a flagos device; any other device as it is."""
    if not isinstance(device, (str, torch.device)) or not str(device).startswith("flagos"):
        return device
    index = torch.device(device).index
    return torch.flagos.current_device() if index is None else index


def _wrap(original):
    def safe_open(filename, framework, device="cpu", **options):
        return original(filename, framework, device=_number(device), **options)

    return _mark(safe_open, original)


class _Reader(Row):
    """Where safetensors is installed; in the modules as well that have taken the name already."""

    def install(self):
        try:
            import safetensors
        except Exception:
            return  # Not there, or damaged: nobody will read files with it.
        original = safetensors.safe_open
        if hasattr(original, "_torch_fl_original"):
            return
        replacement = self.wrap(original)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(self.name) is original:
                module.safe_open = replacement


_Reader(
    "safetensors",
    "safe_open",
    _wrap,
    why="the names of devices are compiled in, and any other than those is refused",
    cpu="tensors are read to the device",
    none="tensors are read to the device",
    cuda="tensors are read to the device",
)
