"""One case from end to end: samples, both sides, comparison, reasons.

A case is an operator with a dtype. Where flagos and its twin can live in one process (the twin is the
host, or there is none and the host is the judge), both sides run here; on a card the twin's side runs
in a child process that does not load us (peer.py).
"""

import collections
import functools
import importlib
import itertools
import os
import warnings

import torch

from . import training, transforms  # noqa: F401 (transforms adds variants)
from .outcome import close, differences, failed, same_bits
from .peer import Peer
from .reasons import Explained
from .sides import FLAGOS, Side, twin_device_type, twin_name
from .sources import SPARSE, Samples, in_layout, supports
from .variants import VARIANTS

# --- cases --------------------------------------------------------------------------------------


def op_id(op):
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def read_databases():
    """{suite: {identity: OpInfo}} of PyTorch's databases of operators."""
    from torch.testing._internal import common_methods_invocations as databases
    from torch.testing._internal.opinfo.definitions import nested

    foreach = itertools.chain(
        databases.foreach_unary_op_db,
        databases.foreach_binary_op_db,
        databases.foreach_pointwise_op_db,
        databases.foreach_reduce_op_db,
        databases.foreach_other_op_db,
    )
    ours = {
        "operators": databases.op_db,
        "foreach": foreach,
        "references": databases.python_ref_db,
        "jagged": nested.njt_op_db,
    }
    found = {name: {} for name in ours}
    for name, database in ours.items():
        for op in database:
            found[name].setdefault(op_id(op), op)
    return found


_databases = {}


def database(suite):
    if not _databases:
        _databases.update(read_databases())
    return _databases[suite]


def op_of(identity, layout="strided"):
    if layout == "jagged":  # The same operators with other samples.
        return database("jagged")[identity]
    database("operators")
    return next(ops[identity] for ops in _databases.values() if identity in ops)


def cases(suite):
    """Every (operator, dtype name) of a suite that the twin supports."""
    device_type = twin_device_type()
    return [
        (identity, str(dtype)[6:])
        for identity, op in database(suite).items()
        for dtype in sorted(op.supported_dtypes(device_type), key=str)
    ]


def sparse_cases():
    """Every (operator, layout, dtype name) that the twin supports of the sparse layouts."""
    return [
        (identity, layout, dtype)
        for identity, dtype in cases("operators")
        for layout in SPARSE
        if supports(op_of(identity), layout)
    ]


def jagged_cases():
    """Operators that have samples of jagged nested tensors."""
    return [name for name, op in database("jagged").items() if supports(op, "jagged")]


def some_dtypes(identity):
    """A floating dtype that the operator takes, or else any other."""
    supported = [str(dtype)[6:] for dtype in op_of(identity).supported_dtypes(twin_device_type())]
    wanted = ("float32", "int64", "complex64", "bool", *supported)
    return [next(dtype for dtype in wanted if dtype in supported)] if supported else []


_samples = Samples()

# --- both sides ---------------------------------------------------------------------------------


def outcomes(side, identity, dtype_name, device_type, limits, layout):
    """{variant: outcomes of each sample} of one case on one side; `limits` gives the number of samples
    of each variant that is wanted, `layout` that of the operands."""
    op, dtype = op_of(identity, layout), getattr(torch, dtype_name)
    seen = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, limit in limits.items():
            variant = VARIANTS[name]
            if variant.applies(op, dtype, device_type):
                source = variant.source
                if layout in SPARSE:
                    source = in_layout(source, layout)
                samples = _samples.get(op, dtype, source, limit)
                seen[name] = [run_one(variant, side, op, dtype, sample) for sample in samples]
    return seen


def run_one(variant, side, op, dtype, sample):
    """An outcome; where a kernel's assertion ends the process's use of a card, that, and None for
    whatever comes after it in this process."""
    try:
        return variant.run(side, op, dtype, sample)
    except torch.AcceleratorError as error:
        if str(error) in _lost:
            return None
        _lost.add(str(error))
        return failed(error)


_lost = set()


_peers = {}


def on_side(side, module, function, *arguments):
    """Call a function of opinfo's `module`, whose first argument is a side."""
    if twin_device_type() == "cpu" and not os.environ.get("TORCH_FL_TEST_PEERS"):
        return getattr(importlib.import_module(f"opinfo.{module}"), function)(side, *arguments)
    if side.name not in _peers:
        _peers[side.name] = Peer(side.name)
    return _peers[side.name].call(module, function, *arguments)


Found = collections.namedtuple("Found", "variant index kind sentence")


def judge(identity, dtype_name, limits, layout="strided"):
    """The verdict on one case; `limits` gives the number of samples of each variant. The table of
    reasons knows the operator on another layout than strided as "operator:layout"."""
    name = identity if layout == "strided" else f"{identity}:{layout}"
    found = compare_case(identity, dtype_name, limits, layout)
    return Verdict(name, dtype_name, limits, *found)


def compare_case(identity, dtype_name, limits, layout):
    """How many samples were compared, and what was found to differ."""
    case = (identity, dtype_name, twin_device_type(), limits, layout)
    dtype = getattr(torch, dtype_name)
    return compare(lambda side: on_side(side, "suite", "outcomes", *case), dtype)


def compare_calls(calls):
    """The same for calls of functions of training.py: {variant: (function, arguments...)}."""
    return compare(
        lambda side: {name: on_side(side, "training", *call) for name, call in calls.items()}
    )


REPEATS = 50  # A small kernel that adds atomically seldom does so in another order.


def compare(outcomes_of, dtype=None):
    """The same for what `outcomes_of` a side answers, {variant: outcomes of each sample}; `dtype` is the
    operands', where they share one. Values that the twin, asked again, does not repeat differ in the
    kind "unsteady", and on a card those too that flagos, asked again, gives as the twin does: small
    kernels that add atomically do so in another order only while others are on the card."""
    twin = Side(twin_device_type())
    judges = [(twin, explains_itself)]
    if twin_name() == "cuda":
        judges.append((FLAGOS, comes_to_the_twins))
    ours, twins = outcomes_of(FLAGOS), outcomes_of(twin)
    count, found = compare_outcomes(ours, twins, dtype)
    for side, is_explained in judges:
        for _ in range(REPEATS):
            if not any(gap.kind == "value" for gap in found):
                break
            again = outcomes_of(side)
            for i, gap in enumerate(found):
                place = (outcomes[gap.variant][gap.index] for outcomes in (ours, twins, again))
                if gap.kind == "value" and is_explained(*place):
                    found[i] = gap._replace(kind="unsteady")
    return count, found


def explains_itself(ours, twins, again):
    """Whether the twin's two values differ as well, and by more than rounding if ours do."""
    return not same_value(twins, again, same_bits) and (
        same_value(ours, twins, close) or not same_value(twins, again, close)
    )


def comes_to_the_twins(ours, twins, again):
    """Whether ours are the twin's another time, and were no more than rounding away before."""
    return same_value(ours, twins, close) and same_value(again, twins, same_bits)


def same_value(a, b, how):
    return a is None or b is None or "value" not in differences(a, b, how)


def compare_outcomes(ours, twins, dtype):
    # Without a twin the host judges. A copy to it is contiguous where the operand has gaps, and
    # kernels sum a contiguous tensor in another order.
    same = same_bits
    if twin_name() == "none":
        same = functools.partial(close, computed_in=dtype)
    count, found = 0, []
    for variant in ours:
        for index, (a, b) in enumerate(zip(ours[variant], twins[variant])):
            if a is None and b is None:
                continue
            count += 1
            if (a is None) != (b is None):
                found.append(Found(variant, index, "applies", f"{a} against {b}"))
            else:
                found += [Found(variant, index, *gap) for gap in differences(a, b, same).items()]
    return count, found


# --- the verdict --------------------------------------------------------------------------------


class Verdict:
    """What the differences of one case amount to, under the table of reasons."""

    def __init__(self, identity, dtype_name, variants, count, found):
        self.count = count
        table = Explained(identity, dtype_name)
        rows = [(f, table.row(f.variant, f.kind)) for f in found]
        self.unexplained = [f for f, row in rows if row is None]
        self.idle = table.idle(variants)
        # A sample is unexplained if anything about it is, and counted once under its first reason.
        samples = {(f.variant, f.index) for f in self.unexplained}
        self.unequal = len(samples)
        self.by_reason = collections.Counter()
        for f, row in rows:
            if (f.variant, f.index) not in samples:
                samples.add((f.variant, f.index))
                self.by_reason[row.reason] += 1

    @property
    def equal(self):
        return self.count - self.unequal - sum(self.by_reason.values())

    def complaint(self):
        lines = [f"{f.variant}, sample {f.index}: {f.kind}: {f.sentence}" for f in self.unexplained]
        lines += [f"unexpected pass: nothing differs as in the row {row}" for row in self.idle]
        return "\n".join(lines)
