"""What torch_fl replaces or sets outside itself, in PyTorch, safetensors, accelerate and transformers:
one table, and nothing outside it.

PyTorch 2.11 decides a few things in Python, or in C++ without a hook, by asking whether a tensor
is on the device `cuda` or `cpu`. Those functions are wrapped here. For everything that is not on
flagos a wrapper calls the original with the same arguments, after one check.

    python -c "from torch_fl import _wrapped; print(_wrapped.page(), end='')" > docs/wrapped.md
"""

import functools

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from torch_fl import _C
from torch_fl._inside import inside, setting

TWIN = _C.platform_chosen()["twin"]  # None where there is none.
TABLE = []  # Row, in the order of the page.


class Row:
    """One wrapped function: where it is, why it has to be wrapped, and what flagos tensors get on
    the platform `cpu`, on platforms without a twin, and where CUDA is the twin."""

    def __init__(self, owner, name, wrap, *, why, cpu, none, cuda):
        self.owner, self.name, self.wrap, self.why = owner, name, wrap, why
        self.served = {"cpu": cpu, None: none, "cuda": cuda}
        TABLE.append(self)

    @property
    def full_name(self):
        owner = self.owner if isinstance(self.owner, str) else self.owner.__name__
        module = "" if isinstance(self.owner, str) else getattr(self.owner, "__module__", "")
        module = {"torch.storage": "torch", "torch.nn.modules.rnn": "torch.nn"}.get(module, module)
        return ".".join(part for part in (module, owner, self.name) if part)

    def install(self):
        current = self.owner.__dict__.get(self.name, None) or getattr(self.owner, self.name)
        if not _is_ours(current):
            setattr(self.owner, self.name, self.wrap(current))


def _is_ours(function):
    return hasattr(getattr(function, "fget", function), "_torch_fl_original")


def _mark(wrapper, original):
    functools.update_wrapper(wrapper, original)
    wrapper._torch_fl_original = original
    return wrapper


def says_cuda(holder):
    """Whether a tensor or storage may be one of flagos that says cuda: then the caller asks it once
    more, outside."""
    return holder.device.type == "cuda" and inside()


def on_flagos(served):
    """A wrap for methods of Tensor: `served` takes the original first, and flagos tensors alone."""

    def wrap(original):
        def wrapper(self, *args, **kwargs):
            if has_torch_function_unary(self):
                return handle_torch_function(wrapper, (self,), self, *args, **kwargs)
            if says_cuda(self):
                with setting(False):
                    return wrapper(self, *args, **kwargs)
            if self.device.type != "flagos":
                return original(self, *args, **kwargs)
            return served(original, self, *args, **kwargs)

        return _mark(wrapper, original)

    return wrap


def on_flagos_storage(served):
    """The same for methods of UntypedStorage, which know no overrides."""

    def wrap(original):
        def wrapper(self, *args, **kwargs):
            if says_cuda(self):
                with setting(False):
                    return wrapper(self, *args, **kwargs)
            if self.device.type != "flagos":
                return original(self, *args, **kwargs)
            return served(original, self, *args, **kwargs)

        return _mark(wrapper, original)

    return wrap


def on_flagos_property(served):
    """The same for a property of Tensor."""

    def wrap(original):
        def getter(self):
            if has_torch_function_unary(self):
                return handle_torch_function(replacement.__get__, (self,), self)
            if says_cuda(self):
                with setting(False):
                    return getter(self)
            if self.device.type != "flagos":
                return original.fget(self)
            return served(original.fget, self)

        replacement = property(_mark(getter, original.fget))
        return replacement

    return wrap


def is_plain(tensor):
    """Whether a tensor is memory and a layout, and no more."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    )


def twin_of(tensor, freeze=False):
    """The tensor under its twin's label, as demanding of gradients as it was."""
    twin = torch.ops.flagos.as_twin(tensor.detach(), freeze)
    return twin.requires_grad_() if tensor.requires_grad else twin


def install():
    """Replace what the table names, which those modules fill. Again is harmless."""
    from torch_fl import (  # noqa: F401
        _data_parallel,
        _default_type,
        _files,
        _frameworks,
        _interchange,
        _meta,
        _pinned,
        _queue_points,
        _rnn,
        _sharing,
    )

    for row in TABLE:
        row.install()


HEAD = """# What torch_fl replaces in PyTorch

Made by `torch_fl._wrapped.page` from the code; a test compares the two.

PyTorch has an interface for almost everything that a device does. For the functions below PyTorch
2.11 has none: they ask in Python, or in C++ without a hook, whether a tensor is on `cuda` or `cpu`.
torch_fl wraps them when it is loaded. Whatever is not on flagos gets the original with the same
arguments, at the cost of one check; nothing else is replaced. Storages of the host that are asked
for pinned memory are the exception: no argument means the accelerator's. Three rows are of other libraries,
which keep lists of devices.
"""


def page():
    lines = [HEAD]
    for row in TABLE:
        lines += [
            f"## `{row.full_name}`\n",
            f"*Why:* {row.why}\n",
            "| platform | flagos tensors |",
            "|---|---|",
            f"| `cpu` | {row.served['cpu']} |",
            f"| without a twin | {row.served[None]} |",
            f"| CUDA as the twin | {row.served['cuda']} |",
            "",
        ]
    return "\n".join(lines)

