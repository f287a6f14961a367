"""torch.flagos: what torch.cuda is for CUDA.

Names are made in the modules of this folder, one a subject, and collected here. A name whose meaning
the platform cannot serve raises NotImplementedError with the reason.
"""

from torch_fl.flagos import amp, device as _device, lazy as _lazy, memory, random, streams
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
from torch_fl.flagos.lazy import _is_in_bad_fork, _lazy_call, _lazy_init, init, is_initialized
from torch_fl.flagos.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
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
from torch_fl.flagos.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [name for name in globals() if not name.startswith("_")]


def __getattr__(name):
    # Generators exist from initialisation on; until then the tuple is empty, as torch.cuda's is.
    if name == "default_generators":
        return random.generators() if is_initialized() else ()
    raise AttributeError(f"module 'torch.flagos' has no attribute '{name}'")
