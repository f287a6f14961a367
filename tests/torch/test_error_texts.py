"""docs/errors.md says what is really raised: each of its programs is run and its error compared."""

import re

import pytest
from conftest import ROOT, run_python

PAGE = (ROOT / "docs" / "errors.md").read_text()
CASES = re.findall(r"^```error ?(\w*)\n(.*?)^```\n```raises\n(.*?)^```", PAGE, re.M | re.S)


def test_every_program_has_its_text():
    assert len(CASES) == PAGE.count("```error") > 15


@pytest.mark.parametrize("platform, program, raises", CASES, ids=[text[:40] for *_, text in CASES])
def test_what_is_raised(platform, program, raises):
    start = "import os\nimport torch\n" + ("" if platform == "nosuch" else "import torch_fl\n")
    environment = {"TORCH_FL_PLATFORM": platform or "cpu", "TORCH_FL_AUTOLOAD": "1"}
    if platform == "nosuch":
        # Where there is a CUDA device a failure leaves even the device's name to PyTorch.
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = run_python(start + program, **environment)
    assert done.returncode == 1, done.stderr
    wanted = ".*".join(map(re.escape, raises.strip().split("...")))
    assert re.search(rf"^{wanted}$", done.stderr, re.M), done.stderr
    assert "cuda:" not in done.stderr.split("Error: ")[-1]
