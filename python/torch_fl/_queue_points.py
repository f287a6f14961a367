"""Functions of PyTorch that show memory, or change how kernels work, without calling an operator:
with the launch queue they have to wait for it. They are wrapped when the queue is first switched on;
a process that never does keeps PyTorch's own."""

import torch

from torch_fl import routes
from torch_fl._wrapped import TABLE, TWIN, Row, _mark, on_flagos, on_flagos_storage


class QueueRow(Row):
    """A row that `install` leaves out until the queue is used."""

    def install(self):
        if torch.ops.flagos.queue_is_on():
            super().install()


def install():
    """When the queue is switched on. Again is harmless."""
    for row in TABLE:
        if isinstance(row, QueueRow):
            row.install()


# --- addresses -----------------------------------------------------------------------------------


def _address(original, self):
    torch.ops.flagos.memory_is_known(self)
    return original(self)


def _storage_address(original, self):
    if self.nbytes() != 0:
        torch.ops.flagos.memory_is_known(
            torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        )
    return original(self)


_SERVED = "waits for what is queued; from then on nothing that writes to this memory is queued"

for _owner, _wrap in (
    (torch.Tensor, on_flagos(_address)),
    (torch.UntypedStorage, on_flagos_storage(_storage_address)),
):
    QueueRow(
        _owner,
        "data_ptr",
        _wrap,
        why="an address is for code that does not know the launch queue. Wrapped when the queue is "
        "first switched on",
        cpu=_SERVED,
        none="not wrapped: nothing is queued",
        cuda=_SERVED,
    )

# --- settings of the process ---------------------------------------------------------------------


def _drain_first(original):
    def wrapper(*args, **kwargs):
        torch.ops.flagos.queue_drain()
        return original(*args, **kwargs)

    return _mark(wrapper, original)


_SETTINGS = (
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_mkldnn_enabled",
    "_set_cublas_allow_tf32",
    "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_set_cublas_allow_fp16_accumulation",
    "_set_blas_preferred_backend",
    "_set_linalg_preferred_backend",
    "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark",
    "_set_cudnn_deterministic",
    "_set_cudnn_enabled",
    "_set_default_dtype",
)

for _name in _SETTINGS:
    if hasattr(torch._C, _name):
        QueueRow(
            torch._C,
            _name,
            _drain_first,
            why="kernels read it when they run, and what is queued was called before. Wrapped when "
            "the queue is first switched on; acts on every call, for it has no tensor",
            cpu="waits for what is queued",
            none="not wrapped: nothing is queued",
            cuda="waits for what is queued",
        )

# --- CUDA's own names ----------------------------------------------------------------------------


class CudaRow(QueueRow):
    """A name of torch.cuda, which is about flagos' work only where CUDA is the twin."""

    def install(self):
        if TWIN == "cuda":
            super().install()


_before = []  # Whether the queue was on, of each capture and pool that is in use.


def _make_handles():
    """CUDA makes no handle of a library while it captures, and so far the worker has made them for
    itself. Those of this thread are made on the default stream, as a program that warms up there does,
    and so are those of the thread in which autograd calls for this device, unless gradients are off."""
    called = " ".join(row.name for row in routes.report().rows)
    wants_gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    default = torch.flagos.default_stream()
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(wants_gradients),
        torch._C.DisableTorchFunction(),
        torch.flagos.stream(default),
    ):
        one = torch.ones(
            1, 1, dtype=torch.float32, device=default.device, requires_grad=wants_gradients
        )
        results = [torch.mm(one, one)]
        if "convolution" in called or "cudnn" in called:
            results.append(torch.conv2d(one[None, None], one[None, None]))
        if "linalg" in called or "cholesky" in called:
            results.append(torch.linalg.cholesky_ex(one)[0])
        if wants_gradients:
            torch.autograd.grad([result.sum() for result in results], one)


def _off_from(original, first=lambda: None):
    def begin(*args, **kwargs):
        before = torch.ops.flagos.queue_is_on()
        torch.ops.flagos.queue_set(False)
        try:
            if before:
                first()
            result = original(*args, **kwargs)
        except BaseException:
            torch.ops.flagos.queue_set(before)
            raise
        _before.append(before)
        return result

    return _mark(begin, original)


def _capture_from(original):
    return _off_from(original, _make_handles)


def _as_before(original):
    def end(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        finally:
            if _before and _before.pop():
                torch.ops.flagos.queue_set(True)

    return _mark(end, original)


for _owner, _name in (
    (torch.cuda, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Stream, "query"),
    (torch.cuda.Event, "record"),
):
    CudaRow(
        _owner,
        _name,
        _drain_first,
        why="programs that measure call it, and what is queued was called before. Wrapped when the "
        "queue is first switched on",
        cpu="not wrapped: it is about no work of flagos",
        none="not wrapped: nothing is queued",
        cuda="waits for what is queued",
    )

for _name in (
    "_cuda_memoryStats",
    "_cuda_memorySnapshot",
    "_cuda_resetPeakMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_emptyCache",
):
    if hasattr(torch._C, _name):
        CudaRow(
            torch._C,
            _name,
            _drain_first,
            why="memory that the caller has freed counts until queued operators have run. Wrapped when "
            "the queue is first switched on",
            cpu="not wrapped: it is about no memory of flagos",
            none="not wrapped: nothing is queued",
            cuda="waits for what is queued, and gives back what waited to be freed",
        )

# --- graphs and pools ----------------------------------------------------------------------------

_OFF = "the queue is off until the end"
_BACK = "the queue is as it was before"
_GRAPH = "a graph is captured from the calling thread's launches, and replayed by no operator"
_POOL = (
    "memory comes from a pool while the calling thread says so, for results and for what kernels "
    "use meanwhile"
)

for _owner, _name, _wrap, _why, _what in (
    (torch.cuda.CUDAGraph, "capture_begin", _capture_from, _GRAPH, _OFF),
    (torch.cuda.CUDAGraph, "capture_end", _as_before, _GRAPH, _BACK),
    (torch.cuda.CUDAGraph, "replay", _drain_first, _GRAPH, "waits for what is queued"),
    (torch.cuda.memory, "_cuda_beginAllocateCurrentThreadToPool", _off_from, _POOL, _OFF),
    (torch.cuda.memory, "_cuda_endAllocateToPool", _as_before, _POOL, _BACK),
):
    CudaRow(
        _owner,
        _name,
        _wrap,
        why=f"{_why}. Wrapped when the queue is first switched on",
        cpu="not wrapped: it is about no work of flagos",
        none="not wrapped: nothing is queued",
        cuda=_what,
    )
