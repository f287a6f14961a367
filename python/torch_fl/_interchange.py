"""Interchange with other libraries: NumPy, DLPack, CUDA's array interface.

Where there is a twin, its memory is a flagos tensor's memory, so a flagos tensor is shown to others
under its twin's label, and without a copy.
"""

import ctypes

import torch

from torch_fl import _C
from torch_fl._wrapped import (
    TWIN,
    Row,
    _mark,
    is_plain,
    on_flagos,
    on_flagos_property,
    on_flagos_storage,
    twin_of,
)

CPU = torch.utils.dlpack.DLDeviceType.kDLCPU

# A capsule has a word for the one who made it: here an address that nobody else has says that its
# memory is flagos's, which the capsule's own device, the twin's, does not.
_MARK = ctypes.c_char()
_word_of, _set_word = ctypes.pythonapi.PyCapsule_GetContext, ctypes.pythonapi.PyCapsule_SetContext
_word_of.restype, _word_of.argtypes = ctypes.c_void_p, [ctypes.py_object]
_set_word.restype, _set_word.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]

# --- NumPy ---------------------------------------------------------------------------------------


def _numpy(original, self, *, force=False):
    if TWIN != "cpu" or not is_plain(self):
        return original(self, force=force)
    if force:
        self = self.detach()
    return original(twin_of(self, freeze=True), force=force)


def _array_wrap(original, self, array, *rest):
    return original(self, array, *rest).to(self.device)


Row(
    torch.Tensor,
    "numpy",
    on_flagos(_numpy),
    why="C++ compares the device with the CPU's; `numpy.asarray(tensor)` comes here as well",
    cpu="an array on the tensor's memory, with the conditions and errors of CPU tensors",
    none="TypeError, as for CUDA tensors; `force=True` copies",
    cuda="TypeError, as for CUDA tensors; `force=True` copies",
)
Row(
    torch.Tensor,
    "__array_wrap__",
    on_flagos(_array_wrap),
    why="results of NumPy's functions on tensors are made on the CPU",
    cpu="`numpy.sin(tensor)` is on the tensor's device",
    none="not reached, because NumPy cannot take the tensor",
    cuda="not reached, because NumPy cannot take the tensor",
)

# --- DLPack --------------------------------------------------------------------------------------


def _no_kind(self):
    name = _C.platform_chosen()["name"]
    return BufferError(
        f"DLPack has no kind of device for {self.device} on platform '{name}'; "
        f"export tensor.cpu() instead"
    )


def _check_export(self):
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if not is_plain(self):
        raise BufferError("Can't export tensors that are not plain strided ones")


def _dlpack_device(original, self):
    if TWIN is None:
        raise _no_kind(self)
    return original(torch.ops.flagos.as_twin(self.detach())) if is_plain(self) else original(self)


def _dlpack(original, self, *, stream=-1, max_version=None, dl_device=None, copy=None):
    _check_export(self)
    if TWIN is not None:
        capsule = original(
            twin_of(self), stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )
        if dl_device is None:
            _set_word(capsule, ctypes.addressof(_MARK))
        return capsule
    if dl_device is None or dl_device[0] != CPU or copy is False:
        raise _no_kind(self)
    return original(self.cpu(), max_version=max_version)


def _wrap_to_dlpack(original):
    def to_dlpack(tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "flagos":
            return original(tensor)
        return tensor.__dlpack__()

    return _mark(to_dlpack, original)


def _from_flagos(original, tensor, device, copy):
    """`tensor` is on flagos: without a device, or with its own, so is the result."""
    wanted = tensor.device if device is None else torch.device(device)
    if wanted.type == "flagos" and wanted.index in (None, tensor.device.index):
        _check_export(tensor)
        return tensor.clone() if copy else tensor.detach()
    if TWIN is not None:
        return original(tensor, device=wanted, copy=copy)
    if copy is False:
        raise ValueError(f"cannot move a tensor from {tensor.device} to {wanted} without copying")
    _check_export(tensor)
    return tensor.to(wanted)


def _twin_device(device):
    """The DLPack device of the twin of a flagos device, and the same as a torch.device."""
    index = torch.flagos.current_device() if device.index is None else device.index
    twin = torch.device(TWIN, index) if TWIN != "cpu" else torch.device("cpu")
    return torch._C._torchDeviceToDLDevice(twin), twin


def _is_our_capsule(exported):
    if type(exported).__name__ != "PyCapsule":
        return False
    return _word_of(exported) == ctypes.addressof(_MARK)


def _wrap_from_dlpack(original):
    def from_dlpack(ext_tensor, *, device=None, copy=None):
        if _is_our_capsule(ext_tensor):
            return torch.ops.flagos.as_flagos(original(ext_tensor, device=device, copy=copy))
        if isinstance(ext_tensor, torch.Tensor) and ext_tensor.device.type == "flagos":
            return _from_flagos(original, ext_tensor, device, copy)
        if device is not None and TWIN is not None and hasattr(ext_tensor, "__dlpack__"):
            wanted = torch.device(device)
            if wanted.type == "flagos":
                kind, twin = _twin_device(wanted)
                if tuple(ext_tensor.__dlpack_device__()) == tuple(kind):
                    return torch.ops.flagos.as_flagos(original(ext_tensor, device=twin, copy=copy))
        return original(ext_tensor, device=device, copy=copy)

    return _mark(from_dlpack, original)


Row(
    torch.Tensor,
    "__dlpack_device__",
    on_flagos(_dlpack_device),
    why="Python lists the kinds of device by name, and fails for any other",
    cpu="kDLCPU",
    none="BufferError that says to export `tensor.cpu()`",
    cuda="kDLCUDA with the tensor's index",
)
Row(
    torch.Tensor,
    "__dlpack__",
    on_flagos(_dlpack),
    why="C++ exports any such device as kDLExtDev, which no library takes; the order of streams is "
    "kept for `cuda` alone. (`__dlpack_c_exchange_api__`, a table of C functions on the class, "
    "cannot be wrapped and still says kDLExtDev.)",
    cpu="a capsule on the tensor's memory",
    none="BufferError, unless a copy for the CPU is asked for with `dl_device`",
    cuda="a capsule on the tensor's memory; the consumer's stream waits for the current one",
)
for _module in (torch.utils.dlpack, torch):
    Row(
        _module,
        "to_dlpack",
        _wrap_to_dlpack,
        why="the old form of `__dlpack__`, in C++ alone",
        cpu="`tensor.__dlpack__()`",
        none="BufferError",
        cuda="`tensor.__dlpack__()`",
    )
    Row(
        _module,
        "from_dlpack",
        _wrap_from_dlpack,
        why="a flagos device asked for is compared with the twin's, in which the producer speaks",
        cpu='`device="flagos"` takes CPU memory without a copy; flagos tensors stay on flagos, and so do their capsules, which are CPU memory to other libraries',
        none='`device="flagos"` copies; flagos tensors stay on flagos',
        cuda='`device="flagos"` takes CUDA memory without a copy; flagos tensors stay on flagos, and so do their capsules',
    )

# --- byte order ----------------------------------------------------------------------------------


def _byteswap(original, self, *arguments):
    if TWIN == "cpu":
        return original(self, *arguments)
    host = self.cpu()
    result = original(host, *arguments)
    self.copy_(host)
    return result


Row(
    torch.UntypedStorage,
    "_byteswap",
    on_flagos_storage(_byteswap),
    why="C++ swaps the bytes where they lie, with the host's own loads and stores",
    cpu="swaps the bytes in place",
    none="swaps them in a copy on the host, and copies that back",
    cuda="swaps them in a copy on the host, and copies that back",
)

# --- CUDA's array interface ----------------------------------------------------------------------


def _cuda_array_interface(original, self):
    if TWIN != "cuda" or not is_plain(self):
        return original(self)
    return original(twin_of(self))


Row(
    torch.Tensor,
    "__cuda_array_interface__",
    on_flagos_property(_cuda_array_interface),
    why="Python asks `tensor.is_cuda`",
    cpu="AttributeError, as for CPU tensors",
    none="AttributeError, as for CPU tensors",
    cuda="as for CUDA tensors",
)
