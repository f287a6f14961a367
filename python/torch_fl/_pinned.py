"""Storages of the host that are pinned, where PyTorch means CUDA's pinned memory unless it is told
another device. Tensors need nothing: they ask the accelerator."""

import torch

from torch_fl._wrapped import TWIN, Row, _mark


def _for_the_accelerator(original):
    def wrapper(self, device="cuda" if TWIN == "cuda" else "flagos"):
        return original(self, device)

    return _mark(wrapper, original)


for _owner in (torch.UntypedStorage, torch.TypedStorage):
    for _name in ("is_pinned", "pin_memory"):
        Row(
            _owner,
            _name,
            _for_the_accelerator,
            why="without an argument it means `cuda`, also where flagos is the accelerator",
            cpu="storages of the host get flagos's pinned memory, as their tensors do",
            none="the same",
            cuda="CUDA's, as in PyTorch",
        )
