"""torch.set_default_tensor_type for torch.flagos.FloatTensor and its like: the default dtype and the
default device, which PyTorch 2.1 put in its place."""

import torch

from torch_fl._wrapped import Row, _mark


def _typed(wanted):
    """The class that is meant, where it is one of torch.flagos; else None."""
    from torch_fl.flagos import types

    if isinstance(wanted, str) and wanted.startswith("torch.flagos."):
        wanted = getattr(types, wanted[13:], None)
    return wanted if isinstance(wanted, types.TypedTensor) else None


def default_context():
    """PyTorch's own record of the calling thread's default device; None where none was set."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _device(context):
    return context and context.device


def _wrap(original):
    def set_default_tensor_type(t, /):
        # The device before flagos became the default, where that was done here.
        former = getattr(default_context(), "_torch_fl_former", ...)
        typed = _typed(t)
        if typed is None:
            original(t)
            if former is not ...:
                torch.set_default_device(former)
            return
        torch.set_default_dtype(typed.dtype)
        former = _device(default_context()) if former is ... else former
        torch.set_default_device("flagos")
        default_context()._torch_fl_former = former

    return _mark(set_default_tensor_type, original)


_SERVED = (
    "`torch.flagos.FloatTensor` and its like set the default dtype and the default device; another type "
    "brings the device back. `torch.Tensor(2)` stays on the host"
)
Row(
    torch,
    "set_default_tensor_type",
    _wrap,
    why="the types that it takes are PyTorch's own classes, made in C for the devices that it knows",
    cpu=_SERVED,
    none="the same",
    cuda="the same",
)
