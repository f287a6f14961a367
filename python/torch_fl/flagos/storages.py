"""The old typed storages, `torch.flagos.FloatStorage` and its kin: classes of which `Tensor.storage()`
is an instance. New code uses `Tensor.untyped_storage()`.

PyTorch finds the device of such a class in the name of its module, so that is `torch.flagos`.
"""

import torch
from torch._utils import classproperty
from torch.storage import _LegacyStorage, _warn_typed_storage_removal


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


_DTYPES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}
__all__ = sorted(_DTYPES)
for _name, _dtype in _DTYPES.items():
    globals()[_name] = _typed(_name, _dtype)
