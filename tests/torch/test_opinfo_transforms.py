"""Operators under vmap and torch.func, make_fx, fake tensors and autocast, against the twin."""

import pytest

from opinfo import suite
from opinfo.transforms import TRANSFORMS


@pytest.mark.parametrize("operator", suite.database("operators"))
def test_transforms(operator, full, count_cases):
    verdicts = [
        suite.judge(operator, dtype, dict.fromkeys(TRANSFORMS, None if full else 1))
        for dtype in suite.some_dtypes(operator)
    ]
    for verdict in verdicts:
        count_cases("transforms", verdict)
    complaint = "\n".join(filter(None, (verdict.complaint() for verdict in verdicts)))
    assert not complaint, complaint
