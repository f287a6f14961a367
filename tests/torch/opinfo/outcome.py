"""What one call did, as plain data that can be compared across sides and across processes.

An outcome says everything that the caller of an operator can see afterwards: results and operands
with their values, layout, device, sharing of storage, versions and autograd standing; or the class of
the exception. Values are held on the host.
"""

import collections
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves


@dataclass
class Seen:
    """A tensor as its user sees it."""

    path: str
    shape: tuple
    stride: tuple
    offset: int
    dtype: torch.dtype
    device: str
    layout: torch.layout
    kind: str  # Class name, as far as it is no plain tensor.
    requires_grad: bool
    grad_fn: str
    is_view: bool
    bits: tuple  # (conjugate, negative)
    storage: int  # Which of the outcome's storages it lies on, numbered in order of appearance.
    nbytes: int
    version: int
    value: object  # Host tensors.


@dataclass
class Outcome:
    raised: str = ""
    message: str = ""
    results: list = field(default_factory=list)
    operands: list = field(default_factory=list)


def device_kind(device, side):
    """'side' for the side's own device, so that both sides say the same."""
    return "side" if device.type == side.type else device.type


def parts(tensor):
    """The dense tensors that hold the value of `tensor`."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return [part.contiguous() for part in tensor.unbind()]
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            scales = torch.tensor([tensor.q_scale(), tensor.q_zero_point()])
        else:
            scales = torch.cat(
                [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points().double()]
            )
        return [tensor.int_repr(), scales]
    return [tensor]


def host_value(tensor):
    with torch.no_grad():
        return [part.detach().resolve_conj().resolve_neg().cpu() for part in parts(tensor)]


class Observer:
    """Describes tensors of one outcome; numbers their storages."""

    def __init__(self, side):
        self.side = side
        self.numbers = {}

    def see(self, path, tensor, with_value=True):
        dense = tensor.layout is torch.strided and not tensor.is_nested
        storage, nbytes = -1, 0
        if dense and tensor.device.type != "meta":
            untyped = tensor.untyped_storage()
            storage = self.numbers.setdefault(untyped._cdata, len(self.numbers))
            nbytes = untyped.nbytes()
        inference = tensor.is_inference()
        return Seen(
            path=path,
            shape=tuple(tensor.shape) if not tensor.is_nested else (tensor.size(0),),
            stride=tuple(tensor.stride()) if dense else (),
            offset=tensor.storage_offset() if dense else 0,
            dtype=tensor.dtype,
            device=device_kind(tensor.device, self.side),
            layout=tensor.layout,
            kind=type(tensor).__name__,
            requires_grad=tensor.requires_grad,
            grad_fn=tensor.grad_fn.name() if tensor.grad_fn is not None else "",
            is_view=tensor._is_view(),
            bits=(tensor.is_conj(), tensor.is_neg()),
            storage=storage,
            nbytes=nbytes,
            version=-1 if inference else tensor._version,
            value=host_value(tensor) if with_value and tensor.device.type != "meta" else [],
        )

    def see_all(self, tree, with_values=True):
        seen = []
        for path, leaf in tree_flatten_with_path(tree)[0]:
            name = keystr(path)
            if isinstance(leaf, torch.Tensor):
                seen.append(self.see(name, leaf, with_values))
            elif isinstance(leaf, torch.device):
                seen.append((name, device_kind(leaf, self.side)))
            elif isinstance(leaf, str) and leaf == self.side.name:
                seen.append((name, "side"))
            elif isinstance(leaf, torch.Generator):
                seen.append((name, device_kind(leaf.device, self.side)))
            elif isinstance(leaf, (bool, int, float, complex, str, torch.dtype, type(None))):
                seen.append((name, leaf))
            else:
                seen.append((name, type(leaf).__name__))
        return seen


def observe(side, call, operands):
    """Run `call()` and tell what it did to itself and to `operands`, a tree of tensors."""
    before = [t.device for t in tree_leaves(operands) if isinstance(t, torch.Tensor)]
    raised, message, results = "", "", None
    try:
        results = call()
    except torch.AcceleratorError as error:  # Nothing on the device can be read any more.
        return failed(error)
    except Exception as error:  # Any class may be the right one: it is compared with the twin's.
        raised, message = type(error).__name__, str(error)[:600]
    observer = Observer(side)
    # Operands first, so that numbers of storages say which result shares with which operand.
    seen_operands = observer.see_all(operands)
    # Operands that lie on the host by their meaning are no difference; one that moved is.
    kept = iter(before)
    for seen in seen_operands:
        if isinstance(seen, Seen) and seen.device == device_kind(next(kept), side):
            seen.device = "kept"
    return Outcome(raised, message, [] if raised else observer.see_all(results), seen_operands)


def failed(error):
    return Outcome(raised=type(error).__name__, message=str(error)[:600])


# --- comparison ---------------------------------------------------------------------------------


def flat(tensor):
    """Its elements in one dimension; some functions refuse more than 64."""
    # Even a contiguous tensor may have any stride in dimensions of one element.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))


def same_bits(a, b):
    """Whether two host tensors hold the same bits; any NaN equals any NaN."""
    a, b = flat(a), flat(b)
    if a.numel() == 0 or torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a).flatten(), torch.view_as_real(b).flatten()
    if a.element_size() == 1:
        a, b = a.float(), b.float()
    numbers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    same = a.view(numbers) == b.view(numbers)
    return bool((same | (a.isnan() & b.isnan())).all())


def close(a, b, computed_in=None):
    """Whether two host tensors are as near as two orders of summation are: relative to the largest
    value, since small ones may be what is left of large ones. `computed_in` is the dtype of the
    operands, where a wider result is no more exact than they are."""
    a, b = flat(a), flat(b)
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    relative = RELATIVE[a.dtype]
    if computed_in is not None and (computed_in.is_floating_point or computed_in.is_complex):
        relative = max(relative, RELATIVE[computed_in])
    if a.element_size() == 1:
        a, b = a.float(), b.float()
    sizes = b.abs().nan_to_num(0.0, posinf=0.0)
    largest = sizes.max().item() if sizes.numel() else 0.0
    return torch.allclose(a, b, rtol=relative, atol=relative * max(1.0, largest), equal_nan=True)


RELATIVE = collections.defaultdict(
    lambda: 2e-2,
    {torch.float16: 2e-3, torch.float32: 2e-5, torch.float64: 1e-7}
    | {torch.complex64: 2e-5, torch.complex128: 1e-7},
)

# The fields of Seen with the kind of difference that the table of reasons speaks of.
FIELDS = (
    ("device", "device"),
    ("layout", "layout"),
    ("dtype", "dtype"),
    ("shape", "shape"),
    ("stride", "stride"),
    ("offset", "stride"),
    ("kind", "class"),
    ("bits", "bits"),
    ("storage", "alias"),
    ("nbytes", "nbytes"),
    ("is_view", "view"),
    ("version", "version"),
    ("requires_grad", "autograd"),
    ("grad_fn", "autograd"),
)


def differences_of_lists(what, ours, twins, same):
    """{kind: sentence}, the first of each kind; `same` says whether two host tensors are equal."""
    found = {}
    if len(ours) != len(twins):
        return {"count": f"{what}: {len(ours)} against {len(twins)}"}
    for a, b in zip(ours, twins):
        if isinstance(a, Seen) != isinstance(b, Seen):
            found.setdefault("class", f"{what}: {a} against {b}")
        elif not isinstance(a, Seen):
            same_nan = a[1] != a[1] and b[1] != b[1]
            if a != b and not same_nan:
                found.setdefault("value", f"{what}{a[0]}: {a[1]} against {b[1]}")
        else:
            for kind, sentence in differences_of_tensors(a, b, same):
                found.setdefault(kind, f"{what}{a.path}: {sentence}")
    return found


def differences_of_tensors(a, b, same):
    for name, kind in FIELDS:
        if getattr(a, name) != getattr(b, name):
            yield kind, f"{name} {getattr(a, name)} against {getattr(b, name)}"
    for x, y in zip(a.value, b.value):
        if x.shape != y.shape or x.dtype != y.dtype:
            if a.shape == b.shape and a.dtype == b.dtype:
                yield "value", f"a part is {x.shape} against {y.shape}"
        elif not same(x, y):
            yield "value", f"values differ {spread(x, y)}"


def spread(x, y):
    if x.dtype == torch.bool or x.numel() == 0:
        return ""
    wide = torch.complex128 if x.is_complex() else torch.float64
    gap = (x.to(wide) - y.to(wide)).abs()
    return f"by up to {gap.max().item():.3g} in {int((gap != 0).sum())} of {gap.numel()}"


def differences(ours, twins, same=same_bits):
    """{kind: sentence} of what differs between two outcomes; empty where they are equal."""
    found = {}
    if ours.raised != twins.raised:
        if not twins.raised:
            return {"raises": f"raises {ours.raised}: {ours.message}"}
        if not ours.raised:
            refusal = f"{twins.raised}: {twins.message}"
            return {"accepts": f"accepts what the twin refuses with {refusal}"}
        found["exception"] = (
            f"{ours.raised} ({ours.message}) against {twins.raised} ({twins.message})"
        )
    # What a failed call leaves behind is to be seen as well.
    found |= differences_of_lists("operand", ours.operands, twins.operands, same)
    results = differences_of_lists("result", ours.results, twins.results, same)
    for kind, sentence in results.items():
        found.setdefault(kind, sentence)
    return found
