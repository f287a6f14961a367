"""Automatic mixed precision: torch.amp with the device filled in."""

import functools

import torch

from torch_fl import _C
from torch_fl.flagos._serve import CUDA


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("flagos") accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be used on the current device."""
    if _C.platform_chosen()["twin"] == "cuda":
        return CUDA.is_bf16_supported(including_emulation)
    return _C.device_count() > 0  # The host's kernels have it, natively or by way of float32.


class autocast(torch.amp.autocast):
    """torch.autocast for flagos."""

    def __init__(self, enabled: bool = True, dtype=torch.float16, cache_enabled: bool = True):
        super().__init__("flagos", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for flagos."""

    def __init__(self, *args, **kwargs):
        super().__init__("flagos", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="flagos")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="flagos")

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]
