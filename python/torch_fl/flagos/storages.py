"""The old typed storages, `torch.flagos.FloatStorage` and its kin: classes of which `Tensor.storage()`
is an instance. New code uses `Tensor.untyped_storage()`.

PyTorch finds the device of such a class in the name of its module, so that is `torch.flagos`.
"""

import torch
from torch._utils import classproperty
from torch.storage import (
    _LegacyStorage,
    _storage_type_to_dtype_map,
    _warn_typed_storage_removal,
)


class _FlagosStorage(_LegacyStorage):
    """What the classes below refuse, in torch.cuda's words."""

    @classmethod
    def from_buffer(cls, *args, **kwargs):
        _warn_typed_storage_removal()
        raise RuntimeError("from_buffer: Not available for flagos storage")

    @classmethod
    def _new_with_weak_ptr(cls, *args, **kwargs):
        raise RuntimeError("_new_with_weak_ptr: Not available for flagos storage")

    @classmethod
    def _new_shared_filename(cls, manager, obj, size, *, device=None, dtype=None):
        raise RuntimeError("_new_shared_filename: Not available for flagos storage")

    @classproperty
    def dtype(cls):
        _warn_typed_storage_removal()
        return cls._dtype


def _typed(name, dtype):
    members = {
        "__doc__": f"Storages of {dtype} on flagos, as torch.cuda.{name} is for cuda.",
        "__module__": "torch.flagos",
        "__qualname__": name,
        "_dtype": dtype,
    }
    return type(_FlagosStorage)(name, (_FlagosStorage,), members)


__all__ = [name for name in torch.cuda.__all__ if name.endswith("Storage")]
for _name in __all__:
    globals()[_name] = _typed(_name, _storage_type_to_dtype_map()[_name])
