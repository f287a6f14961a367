"""Pools and allocators that a program brings along. CUDA's allocator alone has them."""

import contextlib

import torch

from torch_fl.flagos._serve import CUDA, HOST_MEMORY, cuda, serve
from torch_fl.flagos.device import checked_index

NO_POOLS = {"cpu": HOST_MEMORY, "core": "the core's allocator has one pool a stream and no others"}
NO_PLUGINS = {
    "cpu": "tensors take memory from the host's allocator, which torch cannot exchange at run time",
    "core": "memory comes from the driver; a driver of one's own (docs/driver.md) exchanges it",
}


@serve(**NO_POOLS)
class MemPool(torch.cuda.MemPool):
    """A pool of memory of its own; see torch.cuda.MemPool. Used with use_mem_pool."""


@serve(**NO_POOLS)
@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device=None):
    """Context manager: allocations of this thread on a device come from `pool`."""
    index = checked_index(device)
    with cuda().use_mem_pool(pool, index):
        yield


@serve(**NO_PLUGINS)
class CUDAPluggableAllocator(torch.cuda.CUDAPluggableAllocator):
    """An allocator from a shared object: (path, name of its alloc function, of its free function).
    See torch.cuda.CUDAPluggableAllocator for the two signatures."""


@serve(**NO_PLUGINS)
def change_current_allocator(allocator) -> None:
    """Let `allocator` serve the device from now on; RuntimeError once the present one was used."""
    CUDA.change_current_allocator(allocator)
