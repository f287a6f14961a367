"""Modules of torch.cuda whose functions are handed on one by one, or that have no meaning here."""

import functools
import types

import torch

from torch_fl.flagos._serve import but_cuda, cuda, everywhere, serve

COLLECTIVES = "collectives of flagos tensors are torch.distributed's"


def _module(name, doc, members):
    module = types.ModuleType(f"torch_fl.flagos.{name}", doc)
    vars(module).update(members)
    module.__all__ = sorted(members)
    return module


def _stand_in(module, name, doc, reasons):
    """A function that calls torch.cuda's of the same name where that is served."""

    def call(*args, **kwargs):
        return getattr(getattr(cuda(), module), name)(*args, **kwargs)

    original = getattr(getattr(torch.cuda, module, None), name, None)
    if original is not None:
        functools.update_wrapper(call, original)
    call.__name__ = call.__qualname__ = name
    call.__module__ = f"torch_fl.flagos.{module}"
    call.__doc__ = call.__doc__ or doc
    return serve(f"{module}.{name}", **reasons)(call)


def _mirror(module, doc, reasons, names):
    return _module(
        module, doc, {name: _stand_in(module, name, f"{doc} Not served.", reasons) for name in names}
    )


tunable = _mirror(
    "tunable",
    "Tuning of matrix products; see torch.cuda.tunable.",
    but_cuda("only CUDA's matrix products can be tuned"),
    torch.cuda.tunable.__all__,
)
nccl = _mirror(
    "nccl",
    "NCCL called directly; see torch.cuda.nccl.",
    everywhere(COLLECTIVES),
    torch.cuda.nccl.__all__,
)
nccl.version = _stand_in("nccl", "version", "NCCL's version.", but_cuda("there is no NCCL"))
nccl.__all__.append("version")
comm = _module(
    "comm",
    "Copies between devices, as torch.cuda.comm has them; torch_fl._data_parallel says what they do here.",
    {
        name: getattr(torch.nn.parallel.comm, name)
        for name in (
            "broadcast",
            "broadcast_coalesced",
            "gather",
            "reduce_add",
            "reduce_add_coalesced",
            "scatter",
        )
    },
)
jiterator = _mirror(
    "jiterator",
    "Elementwise operators from CUDA source.",
    everywhere("operators from CUDA source take CUDA tensors alone"),
    ("_create_jit_fn", "_create_multi_output_jit_fn"),
)
gds = _mirror(
    "gds",
    "GPUDirect Storage.",
    everywhere("files are read through the host"),
    torch.cuda.gds.__all__,
)
_sanitizer = _mirror(
    "_sanitizer",
    "Search for missing synchronisation between streams.",
    everywhere("CUDA's sanitizer does not see work of flagos tensors"),
    ("enable_cuda_sanitizer",),
)
sparse = _module(
    "sparse", "Old typed sparse tensors, of which flagos has none; use torch.sparse_coo_tensor.", {}
)
sparse._unserved = everywhere("typed sparse tensors are obsolete; use torch.sparse_coo_tensor")

__all__ = ["comm", "gds", "jiterator", "nccl", "sparse", "tunable"]
