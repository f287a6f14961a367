"""Samples under PyTorch's transforms and modes: vmap and torch.func, tracing, fake tensors, autocast.

More variants, of the same form as those of variants.py.
"""

import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .outcome import observe
from .variants import CALL_SEED, Placed, cotangents_of, differentiable, tensors_of, variant


class Flat:
    """A call as a function of its tensors alone."""

    def __init__(self, op, placed, chooses=lambda leaf: isinstance(leaf, torch.Tensor)):
        self.op = op
        self.leaves, self.spec = tree_flatten(placed.tree)
        self.places = [i for i, leaf in enumerate(self.leaves) if chooses(leaf)]
        self.tensors = [self.leaves[i] for i in self.places]

    def __call__(self, *tensors):
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors):
            leaves[i] = tensor
        value, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.op(value, *args, **kwargs)


def rolled(tensor, places):
    """Other values of the same kind. Numbers of eight bits are moved as bytes, which every device can."""
    if not tensor.dim():
        return tensor
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.view(torch.uint8).roll(places).view(tensor.dtype)
    return tensor.roll(places)


def results_only(out):
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]


BATCH = 3


@variant()
def vmapped(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    flat = Flat(op, placed)
    if not flat.tensors:
        return None
    # Each copy differs from the others, or a kernel that mixes them up would go unseen.
    batched = [
        torch.stack([rolled(tensor.detach(), i) for i in range(BATCH)])
        for tensor in flat.tensors
        if tensor.layout is torch.strided
    ]
    if len(batched) != len(flat.tensors):
        return None
    side.seed(CALL_SEED)
    call = torch.func.vmap(
        lambda *tensors: tuple(results_only(flat(*tensors))), randomness="different"
    )
    return observe(side, lambda: call(*batched), ())


def functional(op, dtype, device_type):
    return differentiable(op, dtype, device_type)


def floats(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@variant(functional, grad=True)
def func_vjp(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    flat = Flat(op, placed, floats)
    if not flat.tensors:
        return None
    side.seed(CALL_SEED)

    def call():
        def function(*tensors):
            out = sample.output_process_fn_grad(flat(*tensors))
            return tuple(t for t in tensors_of(out) if t.is_floating_point() or t.is_complex())

        out, pull = torch.func.vjp(function, *[t.detach() for t in flat.tensors])
        return out, pull(tuple(cotangents_of(side, out, 1)))

    return observe(side, call, ())


@variant(lambda op, dtype, kind: op.supports_forward_ad and functional(op, dtype, kind), grad=True)
def func_jvp(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    flat = Flat(op, placed, floats)
    if not flat.tensors:
        return None
    tangents = tuple(cotangents_of(side, flat.tensors, 3))
    side.seed(CALL_SEED)

    def call():
        def function(*tensors):
            return tuple(results_only(sample.output_process_fn_grad(flat(*tensors))))

        return torch.func.jvp(function, tuple(t.detach() for t in flat.tensors), tangents)

    return observe(side, call, ())


@variant()
def traced(side, op, dtype, sample):
    """The operators that make_fx sees, and what the traced graph computes."""
    placed = Placed(side, op, sample)
    flat = Flat(op, placed)
    side.seed(CALL_SEED)

    def call():
        graph = make_fx(lambda *tensors: results_only(flat(*tensors)))(*flat.tensors)
        targets = " ".join(str(node.target) for node in graph.graph.nodes)
        side.seed(CALL_SEED)
        return targets, graph(*flat.tensors)

    return observe(side, call, ())


@variant()
def jit_traced(side, op, dtype, sample):
    """What torch.jit.trace records, and what that computes of other values than the example's."""
    placed = Placed(side, op, sample)
    flat = Flat(op, placed)
    if not flat.tensors or any(tensor.layout is not torch.strided for tensor in flat.tensors):
        return None
    example = [tensor.detach() for tensor in flat.tensors]
    others = [rolled(tensor, 1) for tensor in example]
    side.seed(CALL_SEED)

    def call():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded = torch.jit.trace(
                lambda *tensors: tuple(results_only(flat(*tensors))), tuple(example), check_trace=False
            )
        kinds = " ".join(node.kind() for node in recorded.inlined_graph.nodes())
        side.seed(CALL_SEED)
        return kinds, recorded(*others)

    return observe(side, call, ())


@variant()
def fake(side, op, dtype, sample):
    """What fake tensors say of the result: the metadata, without a kernel."""
    placed = Placed(side, op, sample)
    side.seed(CALL_SEED)

    def call():
        with FakeTensorMode() as mode:
            tree = tree_map(
                lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf,
                placed.tree,
            )
            out = op(tree[0], *tree[1], **tree[2])
        return [
            (tuple(map(str, t.shape)), str(t.stride()), str(t.dtype), t.device.type == side.type)
            if isinstance(t, torch.Tensor)
            else str(t)
            for t in tree_leaves(out)
        ]

    return observe(side, call, ())


@variant(lambda op, dtype, device_type: dtype == torch.float32, grad=True)
def autocast(side, op, dtype, sample):
    placed = Placed(side, op, sample)
    inputs = placed.differentiable()
    side.seed(CALL_SEED)

    def call():
        with warnings.catch_warnings(), torch.autocast(side.type, torch.bfloat16):
            warnings.simplefilter("ignore")
            out = sample.output_process_fn_grad(placed.call(op))
        roots = [t for t in tensors_of(out) if t.requires_grad]
        if not roots or not inputs:
            return out, None
        return out, torch.autograd.grad(
            roots, inputs, cotangents_of(side, roots, 1), allow_unused=True
        )

    return observe(side, call, placed.tree)


TRANSFORMS = ("vmapped", "func_vjp", "func_jvp", "traced", "jit_traced", "fake", "autocast")
