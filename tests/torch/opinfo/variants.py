"""The ways in which a sample of an operator is called.

Each variant is a function of a side, an operator, a dtype and a host sample; it places the sample,
calls, and answers with an Outcome, or None where it does not apply to this sample. It must do the
same on every side: whatever it draws at random, it draws on the host.
"""

import dataclasses
import warnings

import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from . import sources
from .outcome import failed, observe

CALL_SEED = 20
VARIANTS = {}


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    run: object
    applies: object
    source: object  # What makes its samples: a function of sources.py.


def variant(applies=lambda op, dtype, device_type: True, grad=False, source=None):
    source = source or (sources.differentiable if grad else sources.plain)

    def register(function):
        VARIANTS[function.__name__] = Variant(function.__name__, function, applies, source)
        return function

    return register


def differentiable(op, dtype, device_type):
    return op.supports_autograd and dtype in op.supported_backward_dtypes(device_type)


# Arguments that lie on the host by their meaning, whatever the device of the rest.
HOST_ARGUMENTS = ("tensor_split", "_refs.tensor_split")


class Placed:
    """A sample's operands on one side."""

    def __init__(self, side, op, sample):
        place = side.placement()
        self.input = tree_map(place, sample.input)
        if op.name in HOST_ARGUMENTS:
            self.args = tuple(sample.args)
        else:
            self.args = tree_map(place, tuple(sample.args))
        self.kwargs = tree_map(place, dict(sample.kwargs))

    def call(self, function):
        return function(self.input, *self.args, **self.kwargs)

    @property
    def tree(self):
        return (self.input, self.args, self.kwargs)

    def differentiable(self):
        return [
            leaf
            for leaf in tree_leaves(self.tree)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def cotangents_of(side, tensors, seed):
    """A gradient for each tensor, the same on every side."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_nested:
            made.append(torch.ones_like(tensor))
            continue
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        host = torch.randn(tensor.shape, dtype=wide, generator=generator)
        made.append(host.to(side.name, tensor.dtype, copy=True))
    return made


@variant()
def forward(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    side.seed(CALL_SEED)
    return observe(side, lambda: placed.call(op), placed.tree)


def outputs_with_grad(sample, placed, function):
    out = sample.output_process_fn_grad(placed.call(function))
    return out, [t for t in tensors_of(out) if t.requires_grad]


# PyTorch 2.11's own gradient of these on a jagged tensor ends the process, on the CPU too.
NESTED_GRADIENT_CRASHES = ("split_with_sizes",)


@variant(differentiable, grad=True)
def backward(side, op, dtype, sample):
    if op.name in NESTED_GRADIENT_CRASHES and sample.input.is_nested:
        return None
    return gradients_of(side, op, sample, op)


def gradients_of(side, op, sample, function):
    placed = Placed(side, op, sample)
    inputs = placed.differentiable()
    if not inputs:
        return None
    side.seed(CALL_SEED)

    def call():
        out, roots = outputs_with_grad(sample, placed, function)
        if not roots:
            return out, None
        grads = torch.autograd.grad(
            roots, inputs, cotangents_of(side, roots, 1), allow_unused=True
        )
        return out, grads

    return observe(side, call, placed.tree)


@variant(
    lambda op, dtype, device_type: op.supports_gradgrad and differentiable(op, dtype, device_type),
    grad=True,
)
def double_backward(side, op, dtype, sample):
    # On one thread: the second pass accumulates in the order of the nodes' numbers, which each
    # thread counts for itself, and an accelerator's first pass runs on a thread of its own.
    with torch.autograd.set_multithreading_enabled(False):
        return second_gradients_of(side, op, sample)


def second_gradients_of(side, op, sample):
    placed = Placed(side, op, sample)
    inputs = placed.differentiable()
    if not inputs:
        return None
    side.seed(CALL_SEED)

    def call():
        _, roots = outputs_with_grad(sample, placed, op)
        if not roots:
            return None
        cotangents = [c.requires_grad_() for c in cotangents_of(side, roots, 1)]
        first = torch.autograd.grad(
            roots, inputs, cotangents, allow_unused=True, create_graph=True
        )
        again = [g for g in first if g is not None and g.requires_grad]
        if not again:
            return first, None
        second = torch.autograd.grad(
            again, inputs + cotangents, cotangents_of(side, again, 2), allow_unused=True
        )
        return first, second

    return observe(side, call, placed.tree)


@variant(
    lambda op, dtype, device_type: op.supports_forward_ad and differentiable(op, dtype, device_type),
    grad=True,
)
def forward_mode(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    inputs = placed.differentiable()
    if not inputs:
        return None
    tangents = {id(t): c for t, c in zip(inputs, cotangents_of(side, inputs, 3))}
    side.seed(CALL_SEED)

    def call():
        with forward_ad.dual_level():

            def dual(leaf):
                if id(leaf) in tangents:
                    return forward_ad.make_dual(leaf.detach(), tangents[id(leaf)])
                return leaf

            tree = tree_map(dual, placed.tree)
            out = sample.output_process_fn_grad(op(tree[0], *tree[1], **tree[2]))
            return [tuple(forward_ad.unpack_dual(t)) for t in tensors_of(out)]

    return observe(side, call, placed.tree)


# --- in-place -----------------------------------------------------------------------------------


def takes_inplace(sample):
    return isinstance(sample.input, (torch.Tensor, list)) and not sample.broadcasts_input


@variant(lambda op, dtype, device_type: op.get_inplace() is not None)
def inplace(side, op, dtype, sample):
    if not takes_inplace(sample):
        return None
    placed = Placed(side, op, sample)
    side.seed(CALL_SEED)
    return observe(side, lambda: placed.call(op.get_inplace()), placed.tree)


@variant(
    lambda op, dtype, device_type: op.get_inplace() is not None
    and op.supports_inplace_autograd
    and differentiable(op, dtype, device_type),
    grad=True,
)
def inplace_backward(side, op, dtype, sample):
    if not takes_inplace(sample):
        return None

    def function(value, *args, **kwargs):
        copy = tree_map(torch.clone, value)
        result = op.get_inplace()(copy, *args, **kwargs)
        return copy if result is None else result

    return gradients_of(side, op, sample, function)


# --- out= ---------------------------------------------------------------------------------------


def has_out(op, dtype, device_type):
    return op.supports_out and not op.name.startswith("_foreach")


def with_out(side, op, sample, make):
    """Call with out tensors that `make` derives from the results' shapes and dtypes."""
    placed = Placed(side, op, sample)
    side.seed(CALL_SEED)
    try:
        expected = placed.call(op)
    except Exception as error:  # The forward variant compares it.
        return failed(error)
    if not tree_leaves(expected) or not all(
        isinstance(t, torch.Tensor) for t in tree_leaves(expected)
    ):
        return None
    placed = Placed(side, op, sample)
    leaves, spec = tree_flatten(expected)
    made = [make(leaf) for leaf in leaves]
    if any(m is None for m in made):
        return None
    outs = made[0] if isinstance(expected, torch.Tensor) else tuple(made)
    if isinstance(expected, list):
        outs = list(made)
    side.seed(CALL_SEED)

    def call():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return op(placed.input, *placed.args, **placed.kwargs, out=outs)

    return observe(side, call, (placed.tree, outs))


def filled(shape, dtype, side, memory_format=torch.contiguous_format):
    host = torch.full(shape, 1, dtype=dtype)
    return host.contiguous(memory_format=memory_format).to(side.name)


@variant(has_out)
def out(side, op, dtype, sample):
    return with_out(side, op, sample, lambda t: filled(t.shape, t.dtype, side))


@variant(has_out)
def out_empty(side, op, dtype, sample):
    return with_out(side, op, sample, lambda t: filled((0,), t.dtype, side))


@variant(has_out)
def out_strided(side, op, dtype, sample):
    def make(result):
        if result.dim() == 0:
            return filled((2,), result.dtype, side)[1]
        return filled((*result.shape[:-1], 2 * result.shape[-1]), result.dtype, side)[..., ::2]

    return with_out(side, op, sample, make)


# PyTorch 2.11 writes beyond a transposed out= of three or more dimensions on the CPU.
CORRUPTS_ITS_OUT = ("tril", "triu", "lu_unpack", "linalg.lu")


@variant(lambda op, *rest: has_out(op, *rest) and op.name not in CORRUPTS_ITS_OUT)
def out_transposed(side, op, dtype, sample):
    def make(result):
        turned = filled(result.shape[::-1], result.dtype, side)
        return turned.permute(tuple(reversed(range(result.dim()))))

    return with_out(side, op, sample, make)


@variant(has_out)
def out_wrong_shape(side, op, dtype, sample):
    return with_out(side, op, sample, lambda t: filled((*t.shape, 2), t.dtype, side))


@variant(has_out)
def out_wrong_dtype(side, op, dtype, sample):
    def make(result):
        other = torch.int64 if result.dtype.is_floating_point or result.is_complex() else torch.bool
        return filled(result.shape, other, side)

    return with_out(side, op, sample, make)


@variant(has_out)
def out_wider(side, op, dtype, sample):
    def make(result):
        wider = {torch.float32: torch.float64, torch.int64: torch.float32}
        other = wider.get(result.dtype)
        return other and filled(result.shape, other, side)

    return with_out(side, op, sample, make)


# --- operands of other kinds --------------------------------------------------------------------


def is_strided(sample):
    return all(t.layout is torch.strided for t in tensors_of((sample.input, sample.args)))


@variant()
def noncontiguous(side, op, dtype, sample):
    if not is_strided(sample):
        return None
    return forward(side, op, dtype, sample.noncontiguous())


@variant(differentiable, grad=True)
def noncontiguous_backward(side, op, dtype, sample):
    if not is_strided(sample):
        return None
    return gradients_of(side, op, sample.noncontiguous(), op)


@variant(
    lambda op, dtype, device_type: dtype.is_complex and op.test_conjugated_samples
)
def conjugate(side, op, dtype, sample):
    def lazy(value):
        if isinstance(value, torch.Tensor) and value.is_complex():
            return value.detach().conj().resolve_conj().conj()
        return value

    if not is_strided(sample):
        return None
    return forward(side, op, dtype, sample.transform(lazy))


# No kernel negates these, complex32 with a conjugate bit, not even to make a sample.
NOT_NEGATED = (
    *(torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex32),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


@variant(lambda op, dtype, device_type: op.test_neg_view and dtype not in NOT_NEGATED)
def negative(side, op, dtype, sample):
    def lazy(value):
        if isinstance(value, torch.Tensor) and value.dtype == dtype:
            return torch._neg_view(-value.detach())
        return value

    if not is_strided(sample):
        return None
    return forward(side, op, dtype, sample.transform(lazy))


@variant(lambda op, dtype, device_type: op.get_method() is not None)
def method(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    side.seed(CALL_SEED)
    return observe(side, lambda: placed.call(op.get_method()), placed.tree)


@variant()
def inference(side, op, dtype, sample):
    with torch.inference_mode():
        return forward(side, op, dtype, sample)


# --- what must be refused -----------------------------------------------------------------------


@variant(lambda op, dtype, device_type: op.error_inputs_func is not None, source=sources.errors)
def errors(side, op, dtype, sample):
    return forward(side, op, dtype, sample)
