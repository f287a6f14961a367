"""Memory of a device: statistics, peaks, the cache. Numbers are bytes unless the name says otherwise.

The meaning of each statistic is torch.cuda's, and where CUDA is the twin torch.cuda answers. On
platforms without a twin the core's allocator does. The platform `cpu` uses the host's allocator,
which keeps no statistics; none are invented there.
"""

import collections
import warnings
from typing import Any

import torch

from torch_fl import _C
from torch_fl.flagos._serve import HOST_MEMORY, KIND, cuda, serve
from torch_fl.flagos.device import Device, checked_index, index_of
from torch_fl.flagos.lazy import _lazy_init, is_initialized
from torch_fl.flagos.report import summary as _summary

Stats = dict[str, Any]


def flattened(tree: dict, prefix: str = "") -> list:
    """(name with dots, value) of each leaf of a tree of dicts."""
    leaves = []
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves += flattened(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value))
    return leaves


def nested(leaves: dict) -> dict:
    """The tree of dicts whose leaves these are by their names with dots."""
    tree = {}
    for name, value in leaves.items():
        node = tree
        *path, leaf = name.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def empty_cache() -> None:
    """Give unused cached memory back to the driver. Does nothing where nothing is cached, and before
    the device is initialised. The memory of live tensors stays."""
    if is_initialized():
        torch.accelerator.empty_cache()


# --- statistics ----------------------------------------------------------------------------------


@serve(cpu=HOST_MEMORY)
def memory_stats(device: Device = None) -> Stats:
    """Every statistic of a device by its name in torch.cuda's tree, sorted.

    Counts: "allocation", "segment", "active", "inactive_split"; bytes: "allocated_bytes",
    "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"; each followed by
    ".all", ".small_pool" or ".large_pool" and by ".current", ".peak", ".allocated" or ".freed". Also
    "num_alloc_retries", "num_ooms" and others of torch.cuda.memory_stats. Empty before the device is
    initialised.

    Raises NotImplementedError on platform `cpu`.
    """
    if not is_initialized():
        return collections.OrderedDict()
    index = checked_index(device)
    if KIND == "cuda":
        return cuda().memory_stats(index)
    return torch.accelerator.memory_stats(index)


@serve(cpu=HOST_MEMORY)
def memory_stats_as_nested_dict(device: Device = None) -> Stats:
    """memory_stats as a tree of dicts: ["allocated_bytes"]["all"]["current"]."""
    return nested(memory_stats(device))


@serve(cpu=HOST_MEMORY)
def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors of a device occupy at present, rounded as the allocator rounds."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


@serve(cpu=HOST_MEMORY)
def max_memory_allocated(device: Device = None) -> int:
    """The peak of memory_allocated since the start or the last reset_peak_memory_stats."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


@serve(cpu=HOST_MEMORY)
def memory_reserved(device: Device = None) -> int:
    """Bytes that the caching allocator holds at present, used or not."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


@serve(cpu=HOST_MEMORY)
def max_memory_reserved(device: Device = None) -> int:
    """The peak of memory_reserved since the start or the last reset_peak_memory_stats."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def _renamed(old, new):
    text = f"torch.flagos.{old} has been renamed to torch.flagos.{new}"
    warnings.warn(text, FutureWarning, stacklevel=3)


@serve(cpu=HOST_MEMORY)
def memory_cached(device: Device = None) -> int:
    """Deprecated; see memory_reserved."""
    _renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


@serve(cpu=HOST_MEMORY)
def max_memory_cached(device: Device = None) -> int:
    """Deprecated; see max_memory_reserved."""
    _renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


@serve(cpu=HOST_MEMORY)
def reset_peak_memory_stats(device: Device = None) -> None:
    """Let every ".peak" of a device start again from the present value."""
    _lazy_init()
    torch.accelerator.reset_peak_memory_stats(checked_index(device))


@serve(cpu=HOST_MEMORY)
def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Set the sums of a device (".allocated", ".freed", numbers of retries and failures) to 0."""
    _lazy_init()
    torch.accelerator.reset_accumulated_memory_stats(checked_index(device))


@serve(cpu=HOST_MEMORY)
def reset_max_memory_allocated(device: Device = None) -> None:
    """Deprecated: resets every peak, as reset_peak_memory_stats does."""
    _renamed("reset_max_memory_allocated", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


@serve(cpu=HOST_MEMORY)
def reset_max_memory_cached(device: Device = None) -> None:
    """Deprecated: resets every peak, as reset_peak_memory_stats does."""
    _renamed("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


@serve(cpu=HOST_MEMORY)
def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of memory_stats for people; `abbreviated` leaves the two pools out."""
    _lazy_init()
    index = checked_index(device)
    return _summary(memory_stats(index), index, abbreviated)


# --- what the driver says ------------------------------------------------------------------------


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of a device, as its driver says; all processes count. Raises
    NotImplementedError where the driver cannot tell."""
    _lazy_init()
    return _C.device_memory_info(index_of(device))


def device_memory_used(device: Device = None) -> int:
    """Bytes of a device that all processes together use, as its driver says."""
    free, total = mem_get_info(device)
    return total - free


# --- limits, blocks, settings --------------------------------------------------------------------


@serve(cpu=HOST_MEMORY)
def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let this process take at most total memory times `fraction` (0 to 1) of a device; beyond that
    allocations raise torch.OutOfMemoryError. TypeError for anything but a float, ValueError outside
    the range."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _lazy_init()
    index = checked_index(device)
    if KIND == "cuda":
        cuda().set_per_process_memory_fraction(fraction, index)
    else:
        _C.memory_set_fraction(index, fraction)


@serve(cpu=HOST_MEMORY)
def get_per_process_memory_fraction(device: Device = None) -> float:
    """The limit of set_per_process_memory_fraction; 1.0 unless it was set."""
    _lazy_init()
    index = checked_index(device)
    if KIND == "cuda":
        return cuda().get_per_process_memory_fraction(index)
    return _C.memory_get_fraction(index)


_host_blocks = {}  # address -> the storage that keeps it; only where the host's allocator serves


def caching_allocator_alloc(size: int, device: Device = None, stream=None) -> int:
    """Address of a new block of `size` bytes, for other libraries; it lives until
    caching_allocator_delete. `stream` (the current one by default) is where it is used first: a
    stream, or the number of the vendor's stream. Raises torch.OutOfMemoryError."""
    _lazy_init()
    index = checked_index(device)
    if stream is not None and not isinstance(stream, (int, torch.Stream)):
        raise TypeError("stream must be a torch.flagos.Stream or the number of a vendor's stream")
    if KIND == "cpu":
        storage = torch.UntypedStorage(size, device="cpu")
        _host_blocks[storage.data_ptr()] = storage
        return storage.data_ptr()
    if KIND == "cuda":
        handle = stream.native_handle if isinstance(stream, torch.Stream) else stream
        return cuda().caching_allocator_alloc(size, index, handle)
    if isinstance(stream, int):
        stream_id = _C.stream_wrap(index, stream)
    else:
        stream_id = (stream or torch._C._accelerator_getStream(index)).stream_id
    try:
        return _C.memory_alloc(index, size, stream_id)
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error)) from None


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free a block of caching_allocator_alloc. ValueError for another address, where the platform
    can tell."""
    if KIND == "cuda":
        cuda().caching_allocator_delete(mem_ptr)
    elif KIND == "core":
        _C.memory_free(mem_ptr)
    elif _host_blocks.pop(mem_ptr, None) is None:
        raise ValueError(f"{mem_ptr:#x} is no block of caching_allocator_alloc")


@serve(cpu=HOST_MEMORY, core="the core's allocator is always on; nothing else could serve")
def caching_allocator_enable(value: bool = True) -> None:
    """Switch CUDA's caching allocator on or off."""
    cuda().caching_allocator_enable(value)


@serve(cpu=HOST_MEMORY)
def get_allocator_backend() -> str:
    """Which allocator serves: "native" for a caching allocator, "cudaMallocAsync" for CUDA's own."""
    return cuda().get_allocator_backend() if KIND == "cuda" else "native"


@serve(cpu=HOST_MEMORY)
def _set_allocator_settings(env: str) -> None:
    """Put settings in the grammar of PYTORCH_ALLOC_CONF in force for later allocations. ValueError
    for a wrong one; a warning for one that PyTorch knows and nothing here serves."""
    if KIND == "cuda":
        _lazy_init()
        torch._C._accelerator_setAllocatorSettings(env)
        return
    ignored = _C.memory_configure(env)
    if ignored:
        warnings.warn(f"torch.flagos: allocator settings without effect: {ignored}", stacklevel=2)


# --- pinned memory of the host -------------------------------------------------------------------


def host_memory_stats_as_nested_dict() -> Stats:
    """host_memory_stats as a tree of dicts."""
    if not is_initialized():
        return {}
    if KIND == "cuda":
        return cuda().host_memory_stats_as_nested_dict()
    return _C.pinned_stats()


def host_memory_stats() -> Stats:
    """Statistics of pinned host memory by name, sorted: blocks ("allocations", "active_requests") and
    bytes ("allocated_bytes", "active_bytes") with ".current", ".peak", ".allocated", ".freed";
    "host_alloc_time" and "host_free_time" in microseconds with ".total", ".max", ".min", ".count",
    ".avg"; "num_host_alloc", "num_host_free". Empty before the device is initialised."""
    return collections.OrderedDict(sorted(flattened(host_memory_stats_as_nested_dict())))


def reset_accumulated_host_memory_stats() -> None:
    """Set the sums (".allocated", ".freed") of host_memory_stats to 0."""
    _lazy_init()
    if KIND == "cuda":
        cuda().reset_accumulated_host_memory_stats()
    else:
        _C.pinned_reset_accumulated()


def reset_peak_host_memory_stats() -> None:
    """Let the peaks of host_memory_stats start again from the present values."""
    _lazy_init()
    if KIND == "cuda":
        cuda().reset_peak_host_memory_stats()
    else:
        _C.pinned_reset_peak()


from torch_fl.flagos.pools import (  # noqa: E402,F401  (torch.cuda.memory has them too)
    CUDAPluggableAllocator,
    MemPool,
    change_current_allocator,
    use_mem_pool,
)
from torch_fl.flagos.snapshot import (  # noqa: E402,F401
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
    memory_snapshot,
)
