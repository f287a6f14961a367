"""A host tensor beside flagos tensors gives what CUDA gives, operator by operator."""

import json
import warnings

import pytest

from opinfo import mixed, suite
from opinfo.sides import FLAGOS

RECORDED = json.loads(mixed.RECORD.read_text())


@pytest.mark.parametrize("operator", RECORDED)
def test_host_operand(operator, count_cases):
    op = suite.op_of(operator)
    dtype = mixed.dtype_of(op, "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = mixed.answers(op, FLAGOS, dtype)
    found = []
    for key, cuda in RECORDED[operator].items():
        answer = ours.get(key, "not tried: the operator fails on flagos alone")
        if answer != cuda:
            kind = "accepts" if answer == "ok" else "raises" if cuda == "ok" else "exception"
            sentence = f"{key}: {answer}, CUDA: {cuda}"
            found.append(suite.Found("host_" + key.split("/")[-1], key, kind, sentence))
    variants = ["host_full", "host_scalar", "host_inplace", "host_out"]
    verdict = suite.Verdict(operator, str(dtype)[6:], variants, len(RECORDED[operator]), found)
    count_cases("mixed devices", verdict)
    complaint = verdict.complaint()
    assert not complaint, complaint
