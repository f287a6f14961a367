"""Every module and every optimiser of PyTorch's databases, trained a few steps, against the twin."""

import warnings

import pytest
import torch

from opinfo import suite, training
from opinfo.sides import twin_device_type

MODULES = [
    (name, str(dtype)[6:])
    for name, info in training.module_infos().items()
    for dtype in info.supported_dtypes(twin_device_type())
]
OPTIMIZERS = [
    (name, way)
    for name, info in training.optimizer_infos().items()
    for way in training.implementations(info, twin_device_type())
]


def check(name, identity, dtype, variants, count_cases):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count, found = suite.compare_calls(variants)
    verdict = suite.Verdict(identity, dtype, variants, count, found)
    count_cases(name, verdict)
    complaint = verdict.complaint()
    assert not complaint, complaint


@pytest.mark.parametrize("module, dtype", MODULES)
def test_module(module, dtype, full, count_cases):
    limit = None if full else 2
    calls = {
        "train": ("module_outcomes", module, getattr(torch, dtype), True, limit),
        "eval": ("module_outcomes", module, getattr(torch, dtype), False, limit),
        "make": ("made_on_the_side", module, getattr(torch, dtype), limit),
    }
    check("modules", module, dtype, calls, count_cases)


@pytest.mark.parametrize("optimizer, way", OPTIMIZERS)
def test_optimizer(optimizer, way, count_cases):
    calls = {way: ("optimizer_outcomes", optimizer, way, twin_device_type())}
    check("optimisers", "torch.optim." + optimizer, "float32", calls, count_cases)
