"""Every operator of PyTorch's databases, every dtype of the twin, against the twin bit for bit.

Quick: a few samples of each operator and dtype, for common dtypes in every variant. With --full: all
samples in every variant.
"""

import pytest

from opinfo import suite
from opinfo.transforms import TRANSFORMS
from opinfo.variants import VARIANTS

# Samples of each variant in the quick set; the first four are what programs do most.
# Errors name their own dtypes, so that they are asked for once an operator.
ERRORS = {"errors": None}
WAYS = [name for name in VARIANTS if name not in ERRORS and name not in TRANSFORMS]
QUICK = dict.fromkeys(WAYS, 1) | {"forward": 3, "backward": 2, "inplace": 2, "out": 2}
FULL = dict.fromkeys(WAYS)
# Other dtypes take the same ways through flagos as these: the quick set shows that they are served.
COMMON_DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
QUICK_OTHERS = {"forward": 2, "backward": 1, "inplace": 1, "out": 1, "noncontiguous": 1}
# No operator writes a sparse or nested result into a dense out=, and none has operands of these kinds
# that are not contiguous.
LAYOUT_WAYS = ("forward", "backward", "inplace", "method", "inference")
QUICK_LAYOUTS = dict.fromkeys(LAYOUT_WAYS, 1) | {"forward": 3, "backward": 2} | ERRORS
FULL_LAYOUTS = dict.fromkeys(LAYOUT_WAYS) | ERRORS


def limits_of(dtype, full):
    if full:
        return FULL
    return QUICK if dtype in COMMON_DTYPES else QUICK_OTHERS


def check(name, operator, dtype, limits, count_cases, layout="strided"):
    verdict = suite.judge(operator, dtype, limits, layout)
    count_cases(name, verdict)
    complaint = verdict.complaint()
    assert not complaint, complaint


@pytest.mark.parametrize("operator, dtype", suite.cases("operators"))
def test_operator(operator, dtype, full, count_cases):
    check("operators", operator, dtype, limits_of(dtype, full), count_cases)


@pytest.mark.parametrize("operator, dtype", suite.cases("foreach"))
def test_foreach(operator, dtype, full, count_cases):
    check("foreach", operator, dtype, limits_of(dtype, full), count_cases)


@pytest.mark.parametrize("operator, dtype", suite.cases("references"))
def test_python_reference(operator, dtype, full, count_cases):
    """PyTorch's references in Python, which call other operators than the kernels do."""
    check("references", operator, dtype, {"forward": None if full else 1}, count_cases)


@pytest.mark.parametrize("operator, layout, dtype", suite.sparse_cases())
def test_sparse(operator, layout, dtype, full, count_cases):
    limits = FULL_LAYOUTS if full else QUICK_LAYOUTS
    check("sparse", operator, dtype, limits, count_cases, layout)


@pytest.mark.parametrize("operator", suite.jagged_cases())
def test_jagged(operator, full, count_cases):
    """PyTorch's own samples of nested tensors; its generators give floating ones."""
    limits = dict(FULL_LAYOUTS if full else QUICK_LAYOUTS)
    del limits["inference"]  # PyTorch cannot detach a nested tensor there.
    check("jagged", operator, "float32", limits, count_cases, "jagged")


@pytest.mark.parametrize("operator", suite.database("operators"))
def test_errors(operator, count_cases):
    """What the twin refuses is refused with the same class, and leaves the operands as the twin does."""
    check("errors", operator, "float32", ERRORS, count_cases)
