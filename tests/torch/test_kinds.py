"""Every operator of PyTorch's database on every kind of tensor: the value, or the class of error,
that the CPU gives; backward too. Sampled unless --full is given.

Two sources of cases: the samples that the database has for sparse layouts, and its plain samples
with the tensors turned into each kind. Most of the latter are refused by PyTorch; that the refusal
is the same, and no crash, is the point.
"""

import collections
import zlib

import pytest
import torch
from kinds import COMPRESSED, LAYOUTS, assert_same, blocks, moved, name_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.filterwarnings("ignore")]

DTYPES = (torch.float64, torch.complex64, torch.int64, torch.bool)
PER_OPERATOR = 3  # Plain samples, spread over those that the operator has.


def tensors(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def outcome(program):
    torch.manual_seed(0)
    try:
        return program(), None
    except Exception as error:
        return None, error


def agree(ours, twins):
    """Whether two programs give equal results; answers those, or None where both raise."""
    (got, error), (wanted, wanted_error) = outcome(ours), outcome(twins)
    if wanted_error is not None:
        assert error is not None, f"no error, but the CPU says: {wanted_error}"
        assert type(error) is type(wanted_error), (error, wanted_error)
        return None
    if error is not None:
        raise error
    assert_same(got, wanted)
    return got, wanted


def gradients(results, operands):
    outputs = [result for result in tensors(results) if result.requires_grad]
    inputs = [operand for operand in tensors(operands) if operand.requires_grad]
    if not outputs or not inputs:
        return None
    ones = [torch.ones_like(output) for output in outputs]
    return list(torch.autograd.grad(outputs, inputs, ones, allow_unused=True))


def compare(op, sample):
    """One sample on both devices. Answers whether it gave a value."""
    host = moved(sample, "cpu")
    there = moved(sample, "flagos")
    results = agree(
        lambda: op.op(there[0], *there[1], **there[2]), lambda: op.op(host[0], *host[1], **host[2])
    )
    if results is not None:
        agree(lambda: gradients(results[0], there), lambda: gradients(results[1], host))
    return results is not None


class Tally:
    """Counts of one case, and what differed."""

    def __init__(self):
        self.counts, self.wrong = collections.Counter(), []

    def add(self, label, op, sample):
        try:
            self.counts["value" if compare(op, sample) else "refused"] += 1
        except Exception as error:
            self.wrong.append((label, type(error).__name__, str(error).split("\n")[0][:200]))

    def finish(self, record, least):
        record("values", self.counts["value"])
        record("refused", self.counts["refused"])
        assert not self.wrong, f"{len(self.wrong)} differ: {self.wrong[:20]}"
        assert self.counts["value"] >= least


# --- the database's own sparse samples -----------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_sparse_samples(layout, full, record_property):
    tally = Tally()
    for op in op_db:
        for dtype in op.dtypes if full else op.dtypes.intersection(DTYPES):
            wants = dtype.is_floating_point or dtype.is_complex
            try:
                samples = list(op.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=wants))
            except Exception:
                continue  # The database has none for this operator.
            for i, sample in enumerate(samples if full else samples[:8]):
                tally.add((op.name, dtype, i), op, (sample.input, sample.args, sample.kwargs))
    tally.finish(record_property, least=20)


@pytest.mark.parametrize("layout", COMPRESSED, ids=name_of)
def test_sparse_errors(layout, record_property):
    tally = Tally()
    for op in op_db:
        try:
            errors = list(op.error_inputs_sparse("cpu", layout))
        except Exception:
            continue
        for i, error in enumerate(errors):
            sample = error.sample_input
            tally.add((op.name, i), op, (sample.input, sample.args, sample.kwargs))
    tally.finish(record_property, least=0)
    assert tally.counts["refused"] >= 3


# --- plain samples, their tensors turned into a kind ---------------------------------------------


def compress(tensor, layout):
    return tensor.to_sparse(layout=layout, blocksize=blocks(layout, (1, 1)))


def per_tensor(tensor):
    return torch.quantize_per_tensor(tensor.float(), 0.5, 10, torch.quint8)


def per_channel(tensor):
    scales = torch.full((tensor.shape[0],), 0.5, dtype=torch.float64)
    zeros = torch.full((tensor.shape[0],), 10)
    return torch.quantize_per_channel(tensor.float(), scales, zeros, 0, torch.qint8)


# How a tensor becomes one of the kind, the fewest dimensions that this takes, and whether only the
# first tensor of a sample is turned.
KINDS = {
    "sparse_coo": (lambda t: t.to_sparse(), 1, False),
    "sparse_coo beside dense": (lambda t: t.to_sparse(), 1, True),
    "sparse_csr": (lambda t: compress(t, torch.sparse_csr), 2, True),
    "sparse_csc": (lambda t: compress(t, torch.sparse_csc), 2, True),
    "sparse_bsr": (lambda t: compress(t, torch.sparse_bsr), 2, True),
    "sparse_bsc": (lambda t: compress(t, torch.sparse_bsc), 2, True),
    "per tensor": (per_tensor, 0, False),
    "per channel": (per_channel, 1, False),
    "nested": (lambda t: torch.nested.nested_tensor([t, t]), 0, False),
    "jagged": (lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged), 1, False),
}

# Operators that are left out, by reason.
LEFT_OUT = {
    "the values are uninitialised": {
        *("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"),
        *("empty_permuted", "nn.functional.dropout2d", "nn.functional.feature_alpha_dropout"),
    },
    "scalars that PyTorch makes on the CPU by a way that no other device takes": {
        *("corrcoef", "quantile", "nanquantile"),
    },
    "an argument that must lie on the CPU": {"tensor_split"},
}
LEFT_OUT_OF_KIND = {
    # PyTorch itself ends the process, on the CPU as elsewhere: reads out of bounds, runs out of
    # stack, divides by zero.
    "sparse_coo": {"masked.cumsum", "masked.cumprod"},
    "nested": {"trapz", "trapezoid", "cumulative_trapezoid", "select"},
    "jagged": {"meshgrid", "split", "split_list_args", "split_with_sizes", "reshape_as"},
    # The choice of the kernel is not the CPU's, whose tensors do not ask the dispatcher.
    "per tensor": {"nn.functional.scaled_dot_product_attention"},
    "per channel": {"nn.functional.scaled_dot_product_attention"},
}


def turned(kind, sample):
    """The sample with its tensors turned; None where PyTorch cannot."""
    make, least_dims, only_first = KINDS[kind]
    left = [1 if only_first else 1 << 30]

    def turn(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        left[0] -= 1
        if left[0] < 0 or leaf.dim() < least_dims:
            return leaf
        if kind.startswith("per ") and not leaf.is_floating_point():
            return leaf
        result = make(leaf.detach())
        return result if result.is_quantized else result.requires_grad_(leaf.requires_grad)

    try:
        return tree_map(turn, (sample.input, sample.args, sample.kwargs))
    except Exception:
        return None


def is_sampled(name, kind):
    return zlib.crc32(f"{name} {kind}".encode()) % 16 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_plain_samples(kind, full, record_property):
    left_out = set.union(*LEFT_OUT.values()) | LEFT_OUT_OF_KIND.get(kind, set())
    tally = Tally()
    for op in op_db:
        if torch.float32 not in op.dtypes or op.name in left_out:
            continue
        if not full and not is_sampled(op.name, kind):
            continue
        try:
            wants = not kind.startswith("per ")
            samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=wants))
        except Exception:
            continue
        for i in range(0, len(samples), max(1, len(samples) // PER_OPERATOR)):
            sample = turned(kind, samples[i])
            if sample is not None and tensors(sample):
                tally.add((op.name, i), op, sample)
    tally.finish(record_property, least=5)
