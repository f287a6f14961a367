"""Where host samples of a case come from: PyTorch's generators, seeded, and cut to a number.

A source is named by the variant that wants it. Both sides of one process share what was made.
"""

import itertools

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


def chosen(samples, limit):
    """At most `limit` of the samples, spread over the first forty; all where limit is None."""
    if limit is None:
        return list(samples)
    first = list(itertools.islice(samples, 40))
    step = max(1.0, len(first) / limit)
    return [first[int(i * step)] for i in range(min(limit, len(first)))]


class Samples:
    """Host samples of the case last asked for."""

    def __init__(self):
        self.key, self.made = None, {}

    def get(self, op, dtype, source, limit):
        if self.key != (id(op), dtype):
            self.key, self.made = (id(op), dtype), {}
        if (source, limit) not in self.made:
            torch.default_generator.manual_seed(SAMPLE_SEED)
            self.made[source, limit] = chosen(source(op, dtype), limit)
        return self.made[source, limit]
