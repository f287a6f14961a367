"""torch.flagos: what torch.cuda is for CUDA.

Names are made in the modules of this folder, one a subject, and collected here. A name whose meaning
the platform cannot serve raises NotImplementedError with the reason; docs/flagos.md lists them all.
"""

import torch as _torch

from torch_fl.flagos import (
    amp,
    device as _device,
    graphs,
    lazy as _lazy,
    memory,
    nvtx,
    profiler,
    random,
    streams,
)
from torch_fl.flagos.amp import get_amp_supported_dtype, is_bf16_supported
from torch_fl.flagos.device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    set_device,
    synchronize,
)
from torch_fl.flagos.graphs import (
    CUDAGraph,
    Graph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torch_fl.flagos.lazy import (
    DeferredCallError,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    init,
    is_initialized,
)
from torch_fl.flagos.libraries import (
    AcceleratorError,
    CudaError,
    DeferredCudaCallError,
    GreenContext,
    OutOfMemoryError,
    caching_allocator_disabled,
    check_error,
    cudart,
    cudaStatus,
    current_blas_handle,
    current_solver_handle,
    get_arch_list,
    get_gencode_flags,
    get_sync_debug_mode,
    has_half,
    ipc_collect,
    is_tf32_supported,
    runtime,
    set_sync_debug_mode,
)
from torch_fl.flagos.memory import (
    _set_allocator_settings,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_enable,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_fl.flagos.pools import (
    CUDAPluggableAllocator,
    MemPool,
    change_current_allocator,
    use_mem_pool,
)
from torch_fl.flagos.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_fl.flagos.snapshot import (
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
    memory_snapshot,
)
from torch_fl.flagos.storages import (
    BFloat16Storage,
    BoolStorage,
    ByteStorage,
    CharStorage,
    ComplexDoubleStorage,
    ComplexFloatStorage,
    DoubleStorage,
    FloatStorage,
    HalfStorage,
    IntStorage,
    LongStorage,
    ShortStorage,
)
from torch_fl.flagos.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _sleep,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
)
from torch_fl.flagos.submodules import _sanitizer, comm, gds, jiterator, nccl, sparse, tunable
from torch_fl.flagos.telemetry import (
    clock_rate,
    list_gpu_processes,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)
from torch_fl.flagos.types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)

default_generators: "tuple[_torch.Generator, ...]"
has_magma: bool

# Modules that hold names which are collected here; not names of torch.cuda themselves.
_own = {
    "lazy",
    "libraries",
    "pools",
    "report",
    "snapshot",
    "storages",
    "submodules",
    "telemetry",
    "types",
}
__all__ = [name for name in globals() if not name.startswith("_") and name not in _own]
__all__ += ["default_generators", "has_magma"]


def __getattr__(name):
    # Generators exist from initialisation on; until then the tuple is empty, as torch.cuda's is.
    if name == "default_generators":
        return random.generators() if is_initialized() else ()
    if name == "has_magma":
        return _device._C.platform_chosen()["twin"] == "cuda" and _serve.CUDA.has_magma
    # Asked by torch.utils.checkpoint, which else leaves the device's generators out.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.flagos' has no attribute '{name}'")


def __dir__():
    names = set(globals()) - _own | set(__all__)
    return sorted(name for name in names if name not in ("_device", "_lazy", "_own", "_torch"))
