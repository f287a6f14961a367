"""Fake tensors: PyTorch's rules for results that hold no data ask which device computes them."""

import torch
import torch._meta_registrations
import torch._refs.fft

from torch_fl._wrapped import TWIN, Row, _mark

_COMPUTES = TWIN or "cpu"  # The kind of device whose kernels make flagos's results.


def _hint(original):
    def device_hint(tensor):
        kind = original(tensor)
        return _COMPUTES if kind == "flagos" else kind

    return _mark(device_hint, original)


def _promoted(original):
    def _promote_type_fft(dtype, require_complex, device):
        if device.type == "flagos":
            device = torch.device(_COMPUTES)
        return original(dtype, require_complex, device)

    return _mark(_promote_type_fft, original)


Row(
    torch._meta_registrations,
    "device_hint",
    _hint,
    why="the strides that a fake result gets are cuFFT's or cuDNN's where it says `cuda`",
    cpu="those of the CPU",
    none="those of the CPU",
    cuda="those of CUDA",
)
Row(
    torch._refs.fft,
    "_promote_type_fft",
    _promoted,
    why="it allows float16 on CUDA alone",
    cpu="float16 is refused, as the CPU's kernels do",
    none="float16 is refused, as the CPU's kernels do",
    cuda="float16 is taken, as cuFFT does",
)
