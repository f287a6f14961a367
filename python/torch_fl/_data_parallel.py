"""What torch.nn.DataParallel and torch.nn.parallel.comm are built on: the same tensor on several
devices, its parts on several devices, and parts of several devices in one tensor. Plain copies, each
ordered on the streams of its two devices. They know numbers of devices, which are flagos's where the
tensors are."""

import contextlib
import functools
import itertools
import sys
import threading

import torch

from torch_fl._inside import inside, setting
from torch_fl._wrapped import Row, _mark
from torch_fl.flagos._serve import CUDA


def _device(index):
    return torch.device("flagos", index)


def _broadcast(tensor, devices):
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _broadcast_out(tensor, out):
    for result in out:
        result.copy_(tensor, non_blocking=True)
    return out


def _broadcast_coalesced(tensors, devices, buffer_size):
    """Copied one by one: flagos has no kernel that a large buffer would feed better."""
    first, *others = devices
    if any(tensor.device != _device(first) for tensor in tensors):
        raise RuntimeError("all tensors must be on devices[0]: flagos:%d" % first)
    copies = [[tensor.to(_device(i), non_blocking=True, copy=True) for tensor in tensors] for i in others]
    return [list(tensors), *copies]


def _on(streams, index):
    return (streams[index] if streams else None) or contextlib.nullcontext()


def _scatter(tensor, devices, chunk_sizes=None, dim=0, streams=None):
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    else:
        chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
    parts = []
    for index, chunk in enumerate(chunks):
        with _on(streams, index):
            parts.append(chunk.to(_device(devices[index]), non_blocking=True))
    return parts


def _scatter_out(tensor, out, dim=0, streams=None):
    chunks = tensor.split_with_sizes([result.size(dim) for result in out], dim)
    for index, (result, chunk) in enumerate(zip(out, chunks, strict=True)):
        with _on(streams, index):
            result.copy_(chunk, non_blocking=True)
    return out


def _gather(tensors, dim, index=None):
    if index == -1:
        return torch.cat([tensor.cpu() for tensor in tensors], dim)
    device = _device(torch.flagos.current_device() if index is None else index)
    return torch.cat([tensor.to(device, non_blocking=True) for tensor in tensors], dim)


def _gather_out(tensors, out, dim=0):
    parts = out.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=out.device.type != "cpu")
    return out


_calling = threading.local()  # .of_flagos: whether a module on flagos is being made parallel or called.


def _is_of_flagos():
    return getattr(_calling, "of_flagos", False)


def _names_ours(named, given):
    """Whether a tensor of the host is for flagos where CUDA is there too, whose devices have the same
    numbers: the module, a stream, or memory for the result says so."""
    if _is_of_flagos():
        return True
    lists = [each for each in (*given, *named.values()) if isinstance(each, (list, tuple))]
    return any(
        isinstance(entry, (torch.Tensor, torch.Stream)) and entry.device.type == "flagos"
        for entries in lists
        for entry in entries
    )


def _wrap(name, served):
    def wrap(original):
        def wrapper(tensors, *args, **kwargs):
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            takes_hosts = inside() or not CUDA.is_available()
            with setting(False):
                kind = None if first is None else first.device.type
                takes_hosts = takes_hosts or _names_ours(kwargs, args)
                if kind == "flagos" or kind == "cpu" and takes_hosts:
                    return served(tensors, *args, **kwargs)
            if original is None:
                raise NotImplementedError(f"this build of PyTorch has no torch._C.{name}")
            return original(tensors, *args, **kwargs)

        wrapper.__name__ = name
        return _mark(wrapper, original or served)

    return wrap


class _Copies(Row):
    """A build of PyTorch without CUDA lacks them, and torch.nn.parallel.comm calls them all the same."""

    def install(self):
        if hasattr(self.owner, self.name):
            super().install()
        else:
            setattr(self.owner, self.name, self.wrap(None))


for _served in (
    _broadcast,
    _broadcast_out,
    _broadcast_coalesced,
    _scatter,
    _scatter_out,
    _gather,
    _gather_out,
):
    _Copies(
        torch._C,
        _served.__name__,
        _wrap(_served.__name__, _served),
        why="torch.nn.DataParallel copies by it from device to device, and its devices are CUDA's",
        cpu="plain copies and slices",
        none="plain copies and slices",
        cuda="plain copies and slices. A tensor of the host goes to CUDA, unless a stream or `out` of "
        "flagos is given, for a module on flagos, or inside as_cuda",
    )


# --- which devices a module's copies go to


def _is_on_flagos(module):
    tensors = itertools.chain(module.parameters(), module.buffers())
    return any(tensor.device.type == "flagos" for tensor in tensors)


def _for_modules(module_of):
    def wrap(original):
        def wrapper(first, *args, **kwargs):
            module = module_of(first, args, kwargs)
            if inside() or not isinstance(module, torch.nn.Module) or not _is_on_flagos(module):
                return original(first, *args, **kwargs)
            before, _calling.of_flagos = _is_of_flagos(), True
            try:
                return original(first, *args, **kwargs)
            finally:
                _calling.of_flagos = before

        return _mark(wrapper, original)

    return wrap


def _device_type(original):
    return _mark(lambda: "flagos" if _is_of_flagos() else original(), original)


_module = sys.modules["torch.nn.parallel.data_parallel"]  # The package's attribute is the function.
_Modules = functools.partial(
    Row,
    why="it asks which kind of device there is, and takes CUDA before any other",
    cpu="the module's copies, and inputs from the host, go to flagos",
    none="the module's copies, and inputs from the host, go to flagos",
    cuda="those of a module on flagos go to flagos",
)
_Modules(_module, "_get_available_device_type", _device_type)
_Modules(
    torch.nn.DataParallel,
    "__init__",
    _for_modules(lambda self, args, kwargs: args[0] if args else kwargs.get("module")),
)
_Modules(torch.nn.DataParallel, "forward", _for_modules(lambda self, args, kwargs: self.module))
for _owner in (_module, torch.nn.parallel):
    _Modules(_owner, "data_parallel", _for_modules(lambda module, args, kwargs: module))
