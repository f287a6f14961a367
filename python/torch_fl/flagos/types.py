"""The old typed constructors, `torch.flagos.FloatTensor` and its kin. New code gives `dtype` and
`device` to torch.tensor and torch.empty instead."""

import torch


class TypedTensor(type):
    """What these classes can do: make tensors, and recognise them."""

    def __call__(cls, *args, **kwargs):
        return torch.empty(0, dtype=cls.dtype, device="flagos").new(*args, **kwargs)

    def __instancecheck__(cls, instance):
        if not isinstance(instance, torch.Tensor):
            return False
        # Below torch_fl.as_cuda, which makes a tensor say cuda.
        with torch._C.DisableTorchFunction():
            device = torch._C.TensorBase.device.__get__(instance)
        return (
            device.type == "flagos"
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )


def _typed(name, dtype):
    # Tensor.type(cls) goes by the name in C, which is the first argument here.
    members = {
        "__doc__": f"Makes tensors of {dtype} on flagos, as torch.cuda.{name} does on cuda.",
        "__module__": "torch.flagos",
        "__qualname__": name,
        "dtype": dtype,
        "layout": torch.strided,
        "is_sparse": False,
        "is_cuda": False,
    }
    return TypedTensor(f"torch.flagos.{name}", (), members)


_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}
__all__ = sorted(_DTYPES)
for _name, _dtype in _DTYPES.items():
    globals()[_name] = _typed(_name, _dtype)
