"""Every operator of PyTorch's OpInfo database, every dtype of the twin, against the twin bit for bit.

Quick: a few samples of each operator and dtype in every variant. With --full: all samples.
"""

import pytest

from opinfo import suite
from opinfo.variants import VARIANTS

# Samples of each variant in the quick set; the first four are what programs do most.
QUICK = dict.fromkeys(VARIANTS, 1) | {"forward": 3, "backward": 2, "inplace": 2, "out": 2}


@pytest.mark.parametrize("operator, dtype", suite.cases(), ids="-".join)
def test_operator(operator, dtype, full, count_cases):
    limits = dict.fromkeys(VARIANTS) if full else QUICK
    verdict = suite.Verdict(operator, dtype, limits)
    count_cases("operators", verdict)
    complaint = verdict.complaint()
    assert not complaint, complaint
