"""Memory of a device: statistics, peaks, the cache. Numbers are bytes unless the name says otherwise.

The meaning of each statistic is torch.cuda's. The platform `cpu` uses the host's allocator, which
keeps no statistics; none are invented there.
"""

import torch

from torch_fl import _C
from torch_fl.flagos.device import index_of
from torch_fl.flagos.lazy import _lazy_init, is_initialized


def _served(function, device):
    """The index of a device whose platform counts memory."""
    platform = _C.platform_chosen()
    if platform["twin"] == "cpu":
        raise NotImplementedError(
            f"torch.flagos.{function}: platform '{platform['name']}' takes memory from the host's "
            f"allocator, which keeps no statistics"
        )
    _lazy_init()
    index = index_of(device)
    _C.device_check(index)
    return index


def empty_cache():
    """Give unused cached memory back. Does nothing where nothing is cached."""
    if is_initialized():
        torch.accelerator.empty_cache()


def memory_stats(device=None):
    """Every statistic by its name in torch.cuda's tree ("allocated_bytes.all.current")."""
    return torch.accelerator.memory_stats(_served("memory_stats", device))


def memory_stats_as_nested_dict(device=None):
    """memory_stats as a tree of dicts."""
    tree = {}
    for name, value in memory_stats(device).items():
        node = tree
        *path, leaf = name.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def memory_allocated(device=None):
    """What tensors occupy at present."""
    return torch.accelerator.memory_allocated(_served("memory_allocated", device))


def max_memory_allocated(device=None):
    """The peak of memory_allocated."""
    return torch.accelerator.max_memory_allocated(_served("max_memory_allocated", device))


def memory_reserved(device=None):
    """What the caching allocator holds at present."""
    return torch.accelerator.memory_reserved(_served("memory_reserved", device))


def max_memory_reserved(device=None):
    """The peak of memory_reserved."""
    return torch.accelerator.max_memory_reserved(_served("max_memory_reserved", device))


def reset_peak_memory_stats(device=None):
    """Let every peak start again from the present value."""
    torch.accelerator.reset_peak_memory_stats(_served("reset_peak_memory_stats", device))


def reset_accumulated_memory_stats(device=None):
    """Set the sums ("allocated", "freed", numbers of retries) to 0."""
    torch.accelerator.reset_accumulated_memory_stats(
        _served("reset_accumulated_memory_stats", device)
    )


def reset_max_memory_allocated(device=None):
    """Older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device=None):
    """Older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def mem_get_info(device=None):
    """(free, total) bytes of a device, as its driver says."""
    _lazy_init()
    return _C.device_memory_info(index_of(device))
