"""Pickles of what the two processes of a case tell each other."""

import io
import pickle

import torch


class Pickler(pickle.Pickler):
    """Plain host tensors by their bytes: not as files of shared memory, and of any dtype."""

    def reducer_override(self, value):
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
            # Even a contiguous tensor may have any stride in dimensions of one element.
            flat = value.detach().contiguous().as_strided((value.numel(),), (1,))
            data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
            return unpickled, (data, value.dtype, tuple(value.shape))
        return NotImplemented


def unpickled(data, dtype, shape):
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def pickled(value):
    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()
