"""Where host samples of a case come from: PyTorch's generators, seeded, and cut to a number.

A source is named by the variant that wants it. Both sides of one process share what was made.
"""

import contextlib
import functools
import itertools
import random

import torch

SAMPLE_SEED = 10


# The generators are called without OpInfo's iterator around them, which walks the stack in search
# of a test of PyTorch's and costs more than the cases.


def plain(op, dtype):
    return op.sample_inputs_func(op, "cpu", dtype, False)


def differentiable(op, dtype):
    return op.sample_inputs_func(op, "cpu", dtype, True)


def errors(op, dtype):
    """Samples that must be refused. They name their own dtypes."""
    found = op.error_inputs_func(op, "cpu")
    return (error.sample_input for error in found if has_sample(error))


def has_sample(error):
    return hasattr(error.sample_input, "input")


# --- layouts ------------------------------------------------------------------------------------

SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def supports(op, layout):
    """Whether PyTorch's database says that the operator takes operands of this layout."""
    if layout == "jagged":
        return has_jagged_samples(op)
    return getattr(op, "supports_sparse" if layout == "sparse_coo" else "supports_" + layout)


def has_jagged_samples(op):
    try:
        op.sample_inputs_func(op, "cpu", torch.float32, False)  # Makes none before it is asked to.
    except RuntimeError:
        return False
    return True


@functools.cache
def in_layout(source, layout):
    """The source that gives samples of a sparse layout for those of `source`."""

    def make(op, dtype):
        kind = getattr(torch, layout)
        if source is errors:
            if op.error_inputs_sparse_func is None:
                return []
            found = op.error_inputs_sparse_func(op, "cpu", kind)
            return (error.sample_input for error in found if has_sample(error))
        own = getattr(op, f"sample_inputs_{layout}_func")
        wants = source is differentiable
        try:
            return list(own(op, "cpu", dtype, wants, layout=kind))
        except NotImplementedError:  # The database says only that the operator takes them.
            return made_sparse(source(op, dtype), kind)

    return make


def made_sparse(samples, layout):
    blocks = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    for sample in samples:
        dense = sample.input
        if isinstance(dense, torch.Tensor) and dense.dim() == 2 and dense.numel() > 0:
            kept = torch.arange(dense.numel()).view(dense.shape) % 3 != 0
            zeroed = torch.where(kept, dense.detach(), torch.zeros((), dtype=dense.dtype))
            sample.input = zeroed.to_sparse(layout=layout, **blocks)
            sample.input.requires_grad_(dense.requires_grad)
            yield sample


def chosen(samples, limit):
    """At most `limit` of the samples, spread over the first forty; all where limit is None."""
    if limit is None:
        return list(samples)
    first = list(itertools.islice(samples, 40))
    step = max(1.0, len(first) / limit)
    return [first[int(i * step)] for i in range(min(limit, len(first)))]


@contextlib.contextmanager
def empty_tensors_filled():
    """What generators leave uninitialised is the same in each process."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Samples:
    """Host samples of the case last asked for."""

    def __init__(self):
        self.key, self.made = None, {}

    def get(self, op, dtype, source, limit):
        if self.key != (id(op), dtype):
            self.key, self.made = (id(op), dtype), {}
        if (source, limit) not in self.made:
            torch.default_generator.manual_seed(SAMPLE_SEED)
            random.seed(SAMPLE_SEED)  # Some generators draw their numbers there.
            with empty_tensors_filled():
                self.made[source, limit] = chosen(source(op, dtype), limit)
        return self.made[source, limit]
