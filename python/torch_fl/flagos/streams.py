"""Streams and events, over PyTorch's own torch.Stream and torch.Event.

A stream belongs to a device, the current stream of a device to the calling thread.
"""

import torch

from torch_fl.flagos.device import device as device_guard, index_of, set_device
from torch_fl.flagos.lazy import _lazy_init


class Stream(torch.Stream):
    """A stream of `device` (the current one by default). Lower `priority` is more urgent."""

    def __new__(cls, device=None, priority=0, **kwargs):
        _lazy_init()
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, torch.device("flagos", index_of(device)), priority=priority)

    def __repr__(self):
        return f"<torch.flagos.Stream device={self.device} stream_id={self.stream_id:#x}>"


class _EventType(type):
    def __instancecheck__(cls, object):
        return isinstance(object, torch.Event) and object.device.type == "flagos"


class Event(metaclass=_EventType):
    """A mark in a stream; made on the device of the stream that first records it.

    Calling it makes a torch.Event, since PyTorch's functions accept that class alone and no class
    derived from it; isinstance holds for those of this device.
    """

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        if interprocess or external:
            raise NotImplementedError(
                "torch.flagos.Event: events are not shared between processes or with graphs"
            )
        _lazy_init()
        return torch.Event("flagos", enable_timing=enable_timing, blocking=blocking)


def _from(stream):
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device=None):
    """The calling thread's current stream of a device."""
    _lazy_init()
    return _from(torch._C._accelerator_getStream(index_of(device)))


def default_stream(device=None):
    """The stream of a device that is current where no other was set."""
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream):
    """Make `stream` current, and with it its device. None changes nothing."""
    if stream is None:
        return
    _lazy_init()
    set_device(stream.device)
    torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that selects a stream and its device, and brings back what was current on both
    devices, also after an exception. None changes nothing."""

    def __init__(self, stream):
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


def stream(stream):
    """Context manager that selects a stream; see StreamContext."""
    return StreamContext(stream)
