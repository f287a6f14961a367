"""Devices: how many, which one is current, what they are.

The current device belongs to the calling thread.
"""

from typing import Optional, Union

import torch

from torch_fl import _C
from torch_fl.flagos._serve import CUDA, KIND, error, serve
from torch_fl.flagos.lazy import _lazy_init, is_initialized

# What names a device: an index, "flagos:1", a torch.device, a `device`; None is the current one.
Device = Optional[Union[int, str, torch.device, "device"]]


def index_of(device: Device = None, optional: bool = True) -> int:
    """The index that `device` means: an int, "flagos", "flagos:1", a torch.device, a `device`
    object; None or a device without index is the current device."""
    if isinstance(device, int):
        return device
    if isinstance(device, globals()["device"]):
        return device.idx
    if isinstance(device, str):
        device = torch.device(device)
    if device is not None:
        if not isinstance(device, torch.device):
            raise TypeError(f"a device, an index or None was expected, not {device!r}")
        if device.type != "flagos":
            raise ValueError(f"Expected a flagos device, but got: {device}")
        if device.index is not None:
            return device.index
    if not optional:
        raise ValueError(f"Expected a device with an index or an integer, but got: {device}")
    return current_device()


def checked_index(device: Device = None) -> int:
    """index_of for a device that there is; RuntimeError for an index out of range."""
    index = index_of(device)
    _C.device_check(index)
    return index


class InvalidDevice(AssertionError, RuntimeError):
    """An index out of range where torch.cuda raises AssertionError, and flagos's own calls RuntimeError."""


def _described_index(device):
    try:
        return checked_index(device)
    except RuntimeError as error:
        raise InvalidDevice(str(error)) from None


def waiting_index(device: Device = None) -> int:
    """checked_index for which -1 is the current device, as it is for torch.cuda where a stream is asked
    for or waited for."""
    return checked_index(None if device == -1 else device)


def is_available() -> bool:
    """Whether there is a device to use. Never raises and makes no context."""
    try:
        return _C.device_count() > 0
    except Exception:
        return False


def device_count() -> int:
    """Number of devices; 0 when none can be used. Makes no context, and a process that has only
    counted may fork."""
    if KIND == "cuda" and not is_initialized():
        return CUDA.device_count()  # Asks the driver's management library, where there is one.
    return _C.device_count()


def current_device() -> int:
    """Index of the calling thread's current device."""
    _lazy_init()
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: Device) -> None:
    """Make `device` the calling thread's current one; a negative index changes nothing. RuntimeError
    for an index out of range, ValueError for another kind of device and where no index is said."""
    _lazy_init()
    index = index_of(device, optional=False)
    if index >= 0:
        _C.device_check(index)
        torch._C._accelerator_setDeviceIndex(index)


class device:
    """Context manager that selects a device and brings the former one back, also after an
    exception. None and negative indexes change nothing."""

    def __init__(self, device: Device):
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self):
        if self.idx >= 0:
            _lazy_init()
            _C.device_check(self.idx)
            self.prev_idx = torch._C._accelerator_exchangeDevice(self.idx)

    def __exit__(self, *exception):
        if self.prev_idx >= 0:
            torch._C._accelerator_setDeviceIndex(self.prev_idx)
            self.prev_idx = -1
        return False


class device_of(device):
    """Context manager that selects the device of a tensor or storage; another device's object
    changes nothing."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.device.type == "flagos" else -1)


class DeviceProperties:
    """What the driver says of a device. Sizes are bytes; a number that it does not say is 0. Where the
    twin is CUDA it has whatever else torch.cuda's has; elsewhere that is an AttributeError."""

    FIELDS = (
        "name",
        "total_memory",
        "major",
        "minor",
        "multi_processor_count",
        "warp_size",
        "is_integrated",
        "uuid",
    )
    __slots__ = (*FIELDS, "_index")

    def __init__(self, index, fields):
        object.__setattr__(self, "_index", index)
        for name in self.FIELDS:
            object.__setattr__(self, name, fields[name])

    def __getattr__(self, name):
        if KIND == "cuda" and not name.startswith("_"):
            return getattr(CUDA.get_device_properties(self._index), name)
        raise AttributeError(
            f"{name!r} of a device is not known on this platform; known are {', '.join(self.FIELDS)}"
        )

    def __setattr__(self, name, value):
        raise AttributeError("properties of a device cannot be changed")

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"FlagosDeviceProperties({fields})"


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, memory in bytes, capability and processors of a device, as a DeviceProperties.
    AssertionError, as torch.cuda's, for an index out of range."""
    _lazy_init()
    index = _described_index(device)
    return DeviceProperties(index, _C.device_properties(index))


def get_device_name(device: Device = None) -> str:
    """The device's name as its driver spells it."""
    return get_device_properties(device).name


@serve(
    cpu="the host has no compute capability",
    note="without a twin: where the driver tells one; `sim` has none",
)
def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(major, minor) of the compute capability. Raises NotImplementedError where there is none."""
    properties = get_device_properties(device)
    if (properties.major, properties.minor) == (0, 0):
        reason = f"'{properties.name}' has no compute capability"
        raise error("get_device_capability", reason)
    return properties.major, properties.minor


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether `device` can read the memory of `peer_device` without the host."""
    _lazy_init()
    return _C.device_can_access_peer(_described_index(device), _described_index(peer_device))


def synchronize(device: Device = None) -> None:
    """Wait until all work of all streams of a device has run. Failures of that work are raised here."""
    _lazy_init()
    index = waiting_index(device)
    torch._C._accelerator_synchronizeDevice(index)
