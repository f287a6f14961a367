"""What is asked about the vendor's libraries: runtime, errors, architectures, debugging."""

import torch

from torch_fl.flagos._serve import CUDA, KIND, ONLY_CUDA, but_cuda, cuda, error, everywhere, serve
from torch_fl.flagos.lazy import DeferredCallError, is_initialized

NO_RUNTIME = "there is no runtime library that Python could call"

AcceleratorError = torch.AcceleratorError
CudaError = torch.AcceleratorError
OutOfMemoryError = torch.OutOfMemoryError
DeferredCudaCallError = DeferredCallError
has_half: bool = True


class cudaStatus(torch.cuda.cudaStatus):
    """Results of functions of `runtime`, as numbers: SUCCESS and ERROR_NOT_READY."""


@serve(**but_cuda(NO_RUNTIME))
def runtime():
    """The vendor's runtime, as torch.cuda.cudart() gives it: cudaMemGetInfo, cudaHostRegister, ..."""
    return cuda().cudart()


@serve(**but_cuda(NO_RUNTIME))
def cudart():
    """torch.cuda's name for `runtime`."""
    return runtime()


@serve(**but_cuda(NO_RUNTIME))
def check_error(res: int) -> None:
    """Raise torch.AcceleratorError unless `res`, a result of a function of `runtime`, is success."""
    if int(res) != cudaStatus.SUCCESS:
        library = runtime()
        sentence = library.cudaGetErrorString(library.cudaError(int(res)))
        raise torch.AcceleratorError(f"{sentence} ({int(res)})")


def get_arch_list() -> list[str]:
    """Architectures that PyTorch's kernels for the twin were compiled for; empty without CUDA."""
    return CUDA.get_arch_list() if KIND == "cuda" else []


def get_gencode_flags() -> str:
    """nvcc's flags for get_arch_list; empty without CUDA."""
    return CUDA.get_gencode_flags() if KIND == "cuda" else ""


def is_tf32_supported() -> bool:
    """Whether products of float32 can run in TensorFloat-32 on the current device."""
    return KIND == "cuda" and cuda().is_tf32_supported()


@serve(**but_cuda("operators use no BLAS library with handles"))
def current_blas_handle() -> int:
    """Address of the BLAS library's handle for the current stream."""
    return cuda().current_blas_handle()


@serve(**everywhere("PyTorch 2.11 has no such name"))
def current_solver_handle() -> int:
    """Address of the solver library's handle for the current stream."""


def ipc_collect() -> None:
    """Give back memory that other processes have stopped using. Does nothing where none is shared."""
    if KIND == "cuda" and is_initialized():
        cuda().ipc_collect()


MODES = ("default", "warn", "error")


@serve(note="without CUDA: mode `default` alone")
def set_sync_debug_mode(debug_mode) -> None:
    """Be silent ("default" or 0), warn ("warn" or 1) or raise ("error" or 2) where an operator makes
    the host wait for the device. Without CUDA only "default" is served."""
    if isinstance(debug_mode, str) and debug_mode not in MODES:
        raise RuntimeError(
            "invalid value of debug_mode, expected one of `default`, `warn`, `error`"
        )
    if KIND == "cuda":
        cuda().set_sync_debug_mode(debug_mode)
    elif debug_mode not in (0, "default"):
        reason = "nothing tells which operators make the host wait"
        raise error(f"set_sync_debug_mode({debug_mode!r})", reason)


def get_sync_debug_mode() -> int:
    """The mode of set_sync_debug_mode: 0, 1 or 2."""
    return cuda().get_sync_debug_mode() if KIND == "cuda" else 0


@serve(**but_cuda(ONLY_CUDA))
class GreenContext:
    """A share of a GPU's processors; see torch.cuda.GreenContext, whose static method `create` makes
    one."""

    def __new__(cls, *args, **kwargs):
        cuda()
        return CUDA.GreenContext.create(*args, **kwargs)


@serve(**everywhere("PyTorch 2.11 has no such name"))
def caching_allocator_disabled():
    """Context manager: allocate without the cache."""
