"""Graphs: work that is captured once and replayed. Where CUDA is the twin they are CUDA's graphs,
since flagos and CUDA share devices, streams and memory."""

import torch

from torch_fl.flagos._serve import KIND, NO_GRAPHS, but_cuda, cuda, serve
from torch_fl.flagos.lazy import is_initialized
from torch_fl.flagos.streams import to_cuda


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured. False where nothing can be captured, and before
    the device is initialised."""
    return KIND == "cuda" and is_initialized() and cuda().is_current_stream_capturing()


@serve(**but_cuda(NO_GRAPHS))
def graph_pool_handle():
    """A token for memory that several graphs share."""
    return cuda().graph_pool_handle()


@serve(**but_cuda(NO_GRAPHS))
class Graph(torch.cuda.CUDAGraph):
    """Captured work, with the methods of torch.cuda.CUDAGraph: capture_begin, capture_end,
    instantiate, replay, reset, pool, enable_debug_mode, debug_dump. Usually made with `graph`."""

    def __new__(cls, keep_graph: bool = False):
        cuda()
        return super().__new__(cls, keep_graph)


@serve(**but_cuda(NO_GRAPHS))
class graph(torch.cuda.graph):
    """Context manager that captures into a Graph what runs on flagos inside. `pool` comes from
    graph_pool_handle or Graph.pool; without `stream` a side stream is used."""

    default_capture_stream = None

    def __init__(self, graph, pool=None, stream=None, capture_error_mode: str = "global"):
        cuda()
        super().__init__(graph, pool, to_cuda(stream), capture_error_mode)


@serve(**but_cuda(NO_GRAPHS))
def make_graphed_callables(
    callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None
):
    """Functions or modules that replay graphs of their forward and backward pass; see
    torch.cuda.make_graphed_callables."""
    return cuda().make_graphed_callables(
        callables, sample_args, num_warmup_iters, allow_unused_input, pool
    )


CUDAGraph = Graph
