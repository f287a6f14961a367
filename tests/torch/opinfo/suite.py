"""One case from end to end: samples, both sides, comparison, reasons.

A case is an operator with a dtype. Where flagos and its twin can live in one process (the twin is the
host, or there is none and the host is the judge), both sides run here; on a card the twin's side runs
in a child process that does not load us (peer.py).
"""

import collections
import itertools
import warnings

import torch

from .outcome import difference
from .peer import Peer
from .reasons import Explained
from .sides import FLAGOS, Side, twin_device_type
from .variants import VARIANTS

SAMPLE_SEED = 10

# --- cases --------------------------------------------------------------------------------------


def op_id(op):
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


_by_id = {}


def op_of(identity):
    if not _by_id:
        from torch.testing._internal.common_methods_invocations import op_db

        for op in op_db:
            _by_id.setdefault(op_id(op), op)
    return _by_id[identity]


def cases():
    """Every (operator, dtype name) that the twin supports."""
    op_of("add")
    device_type = twin_device_type()
    return [
        (identity, str(dtype)[6:])
        for identity, op in _by_id.items()
        for dtype in sorted(op.supported_dtypes(device_type), key=str)
    ]


def chosen(samples, limit):
    """At most `limit` of the samples, spread over the first forty; all where limit is None."""
    if limit is None:
        return list(samples)
    first = list(itertools.islice(samples, 40))
    step = max(1.0, len(first) / limit)
    return [first[int(i * step)] for i in range(min(limit, len(first)))]


class Samples:
    """Host samples of the case last asked for; both sides of one process share them."""

    def __init__(self):
        self.key, self.made = None, {}

    def get(self, identity, dtype, grad, limit):
        if self.key != (identity, dtype):
            self.key, self.made = (identity, dtype), {}
        if (grad, limit) not in self.made:
            torch.manual_seed(SAMPLE_SEED)
            generated = op_of(identity).sample_inputs("cpu", dtype, requires_grad=grad)
            self.made[grad, limit] = chosen(generated, limit)
        return self.made[grad, limit]


_samples = Samples()

# --- both sides ---------------------------------------------------------------------------------


def outcomes(side, identity, dtype_name, device_type, limits):
    """{variant: outcomes of each sample} of one case on one side; `limits` gives the number of samples
    of each variant that is wanted."""
    op, dtype = op_of(identity), getattr(torch, dtype_name)
    seen = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, limit in limits.items():
            variant = VARIANTS[name]
            if variant.applies(op, dtype, device_type):
                samples = _samples.get(identity, dtype, variant.grad, limit)
                seen[name] = [variant.run(side, op, dtype, sample) for sample in samples]
    return seen


_peers = {}


def twins_outcomes(identity, dtype_name, device_type, limits):
    if device_type == "cpu":
        return outcomes(Side("cpu"), identity, dtype_name, device_type, limits)
    if device_type not in _peers:
        _peers[device_type] = Peer(device_type)
    return _peers[device_type].outcomes(identity, dtype_name, device_type, limits)


Found = collections.namedtuple("Found", "variant index kind sentence")


def compare_case(identity, dtype_name, limits):
    """How many samples were compared, and what was found to differ."""
    device_type = twin_device_type()
    ours = outcomes(FLAGOS, identity, dtype_name, device_type, limits)
    twins = twins_outcomes(identity, dtype_name, device_type, limits)
    count, found = 0, []
    for name in ours:
        for index, (a, b) in enumerate(zip(ours[name], twins[name])):
            if a is None and b is None:
                continue
            count += 1
            if (a is None) != (b is None):
                found.append(Found(name, index, "applies", f"{a} against {b}"))
            elif gap := difference(a, b):
                found.append(Found(name, index, *gap))
    return count, found


# --- the verdict --------------------------------------------------------------------------------


class Verdict:
    """What a case's differences amount to, under the table of reasons."""

    def __init__(self, identity, dtype_name, limits):
        self.count, found = compare_case(identity, dtype_name, limits)
        explained = Explained(identity, dtype_name)
        self.unexplained = [f for f in found if explained.row(f.variant, f.kind) is None]
        self.by_reason = collections.Counter()
        for row, times in explained.used.items():
            self.by_reason[row.reason] += times
        self.idle = explained.idle(limits)

    @property
    def equal(self):
        return self.count - len(self.unexplained) - sum(self.by_reason.values())

    def complaint(self):
        lines = [f"{f.variant}, sample {f.index}: {f.kind}: {f.sentence}" for f in self.unexplained]
        lines += [f"unexpected pass: nothing differs as in the row {row}" for row in self.idle]
        return "\n".join(lines)
