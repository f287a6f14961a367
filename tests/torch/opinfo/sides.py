"""The two places on which a case runs: flagos, and the twin's own device.

A case is made once, on the host, and placed on each side. Placing keeps what an operator can see of
its operands: strides, offsets, which of them share a storage, lazy conjugate and negative bits,
whether they need a gradient. Knows nothing of operators.
"""

import torch
from torch.utils._pytree import tree_map


class Side:
    """One device on which cases run. `name` is what users write in a device argument."""

    def __init__(self, name):
        self.name = name
        self.type = name.split(":")[0]

    def __repr__(self):
        return f"Side({self.name})"

    def seed(self, seed):
        """What torch.manual_seed does for this side and the host, without its calls to every other
        kind of device, which torch keeps with a stack trace each until that device is used."""
        torch.default_generator.manual_seed(seed)
        if self.type != "cpu":
            getattr(torch, self.type).manual_seed_all(seed)

    def placement(self):
        return Placement(self)

    def place(self, tree):
        """A copy of `tree` on this side; tensors that share memory in it share memory in the copy."""
        return tree_map(self.placement(), tree)


class Placement:
    """Copies leaves of one case to a side, and remembers what it copied."""

    def __init__(self, side):
        self.side = side
        self.storages = {}
        self.tensors = {}

    def __call__(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return self.tensor(leaf)
        if isinstance(leaf, torch.device):
            return torch.device(self.side.name)
        if isinstance(leaf, str) and leaf in ("cpu", "cpu:0", "cuda"):
            return self.side.name  # Some samples name CUDA wherever there is one.
        return leaf

    def tensor(self, source):
        if id(source) not in self.tensors:
            placed = self.copy(source.detach())
            if type(source) is torch.nn.Parameter:
                placed = torch.nn.Parameter(placed, requires_grad=source.requires_grad)
            else:
                placed.requires_grad_(source.requires_grad)
            # The source is kept too, so that its identity is not given to another tensor.
            self.tensors[id(source)] = (source, placed)
        return self.tensors[id(source)][1]

    def copy(self, source):
        if source.layout != torch.strided or source.is_quantized or source.is_nested:
            copied = source.to(self.side.name)
            return copied.clone() if copied is source else copied
        if source.is_meta:
            return source
        storage = source.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.storages[key] = (
                storage,
                torch.empty(storage.nbytes(), dtype=torch.uint8, device=self.side.name)
                .copy_(whole)
                .untyped_storage(),
            )
        placed = torch.empty(0, dtype=source.dtype, device=self.side.name).set_(
            self.storages[key][1], source.storage_offset(), source.shape, source.stride()
        )
        if source.is_conj():
            placed = torch._C._conj(placed) if hasattr(torch._C, "_conj") else placed.conj()
        if source.is_neg():
            placed = torch._neg_view(placed)
        return placed.detach()


FLAGOS = Side("flagos")


def twin_device_type():
    """The twin's device type, "cpu" where there is none: then the CPU is what should be matched."""
    return twin_name() if twin_name() != "none" else "cpu"


def twin_name():
    """"cpu", "cuda", or "none" on a platform without a twin."""
    import torch_fl

    return torch_fl.platform()["twin"] or "none"
