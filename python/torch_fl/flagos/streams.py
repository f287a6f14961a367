"""Streams and events, over PyTorch's own torch.Stream and torch.Event.

A stream belongs to a device, the current stream of a device to the calling thread.
"""

import time
from typing import Optional

import torch

from torch_fl import _C
from torch_fl.flagos._serve import CUDA as _CUDA, KIND, cuda, error, serve
from torch_fl.flagos.device import (
    Device,
    device as device_guard,
    index_of,
    set_device,
    waiting_index,
)
from torch_fl.flagos.lazy import _lazy_init

CUDA = 1  # c10::DeviceType::CUDA, as torch.Stream numbers kinds of devices


class Stream(torch.Stream):
    """A stream of `device` (the current one by default). Lower `priority` is more urgent; a number
    outside priority_range means the nearest one inside."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs):
        _lazy_init()
        unknown = kwargs.keys() - {"stream_id", "device_index", "device_type"}
        if unknown:
            raise TypeError(f"Stream() got an unexpected keyword argument {min(unknown)!r}")
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        place = torch.device("flagos", waiting_index(device))
        return super().__new__(cls, place, priority=priority)

    @property
    def flagos_stream(self) -> int:
        """The vendor's handle of the stream, as a number; 0 may be the vendor's default stream."""
        return self.native_handle

    @property
    def priority(self) -> int:
        """Urgency: 0 is normal, negative numbers are more urgent."""
        if KIND == "cuda":
            return to_cuda(self).priority
        return _C.stream_priority(self.device_index, self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(least, most urgent) of the current device."""
        if KIND == "cuda":
            return cuda().Stream.priority_range()
        _lazy_init()
        return _C.stream_priority_range(index_of())

    def __repr__(self):
        return f"<torch.flagos.Stream device={self.device} stream_id={self.stream_id:#x}>"


class _EventType(type):
    def __instancecheck__(cls, object):
        return isinstance(object, torch.Event) and object.device.type == "flagos"


class Event(metaclass=_EventType):
    """A mark in a stream; made on the device of the stream that first records it. With
    `enable_timing`, elapsed_time(end) gives milliseconds between two recorded events.

    Calling it makes a torch.Event, since PyTorch's functions accept that class alone and no class
    derived from it; isinstance holds for those of this device. For the same reason a class that
    derives from this one is refused. Raises NotImplementedError for `interprocess` and `external`.
    """

    record = torch.Event.record
    wait = torch.Event.wait
    query = torch.Event.query
    synchronize = torch.Event.synchronize
    elapsed_time = torch.Event.elapsed_time

    def __init_subclass__(cls):
        raise TypeError(
            "torch.flagos.Event has no subclasses: PyTorch's functions take torch.Event alone. Keep "
            f"an event as an attribute of {cls.__name__} instead"
        )

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ):
        if interprocess or external:
            raise error("Event", "events are not shared between processes or with graphs")
        _lazy_init()
        return torch.Event("flagos", enable_timing=enable_timing, blocking=blocking)

    @classmethod
    def from_ipc_handle(cls, device, handle):
        """Raises NotImplementedError: events are not shared between processes."""
        raise error("Event.from_ipc_handle", "events are not shared between processes")


def _make(stream_id, device_index):
    return Stream(
        stream_id=stream_id,
        device_index=device_index,
        device_type=torch._C._accelerator_getStream(device_index).device_type,
    )


def from_cuda(stream: torch.cuda.Stream) -> Stream:
    """The same stream as one of flagos; only where CUDA is the twin."""
    return _make(stream.stream_id, stream.device_index)


def to_cuda(stream: Optional[torch.Stream]) -> Optional[torch.cuda.Stream]:
    """The same stream as one of torch.cuda; only where CUDA is the twin. None stays None."""
    if stream is None or isinstance(stream, _CUDA.Stream):
        return stream
    return cuda().Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=CUDA
    )


@serve(cpu="the host has no streams that another library could have made")
class ExternalStream(Stream):
    """A stream that another library made: `stream_ptr` is the vendor's handle as a number. Who made
    it keeps it alive as long as this object is used."""

    def __new__(cls, stream_ptr: int, device: Device = None, **kwargs):
        _lazy_init()
        index = waiting_index(device)
        if KIND == "cuda":
            stream_id = cuda().ExternalStream(stream_ptr, index).stream_id
        else:
            stream_id = _C.stream_wrap(index, stream_ptr)
        kind = torch._C._accelerator_getStream(index).device_type
        kwargs |= {"stream_id": stream_id, "device_index": index, "device_type": kind}
        return super().__new__(cls, **kwargs)


@serve(cpu="the host has no streams that another library could have made")
def get_stream_from_external(data_ptr: int, device: Device = None) -> Stream:
    """The stream of a vendor's handle, given as a number; see ExternalStream."""
    stream = ExternalStream(data_ptr, device)
    return _make(stream.stream_id, stream.device_index)


def current_stream(device: Device = None) -> Stream:
    """The calling thread's current stream of a device."""
    _lazy_init()
    stream = torch._C._accelerator_getStream(waiting_index(device))
    return _make(stream.stream_id, stream.device_index)


def default_stream(device: Device = None) -> Stream:
    """The stream of a device that is current where no other was set."""
    return _make(0, current_stream(device).device_index)


def set_stream(stream: Optional[torch.Stream]) -> None:
    """Make `stream` current, and with it its device. None changes nothing."""
    if stream is None:
        return
    _lazy_init()
    set_device(stream.device)
    torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that selects a stream and its device, and brings back what was current on both
    devices, also after an exception. None changes nothing."""

    def __init__(self, stream: Optional[torch.Stream]):
        self.stream = stream

    def __enter__(self):
        if self.stream is None:
            return
        self.source = current_stream()
        self.target = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, *exception):
        if self.stream is None:
            return
        with device_guard(self.target.device):
            torch._C._accelerator_setStream(self.target)
        set_stream(self.source)


def stream(stream: Optional[torch.Stream]) -> StreamContext:
    """Context manager that selects a stream; see StreamContext."""
    return StreamContext(stream)


@serve(note="without CUDA a cycle is a nanosecond")
def _sleep(cycles: int) -> None:
    """Let the current stream do nothing for so many cycles of the device's clock; work that is queued
    on it afterwards waits. The host goes on, except on platform `cpu`, whose stream it is. Without
    CUDA a cycle is a nanosecond. NotImplementedError where the driver runs no host functions."""
    if KIND == "cuda":
        cuda()._sleep(cycles)
    elif KIND == "cpu":
        time.sleep(cycles / 1e9)
    else:
        current = current_stream()
        _C.stream_sleep(current.device_index, current.stream_id, cycles)
