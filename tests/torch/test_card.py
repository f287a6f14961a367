"""The scripts of bench/card that no card is needed for: they run on fakes and simulated devices, so
that what a card is borrowed for does not fail by a slip."""

import pytest
from conftest import ROOT, run_python

FAKES = ROOT / "build" / "native" / "fakes"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def script(name, *arguments, **environment):
    assert FAKES.is_dir(), "the fakes are not built: make native"
    return run_python(RUN, str(ROOT / "bench" / "card" / name), *arguments, **environment)


@pytest.mark.parametrize("platform", ["cuda-direct", "musa"])
def test_direct(platform):
    arguments = ("--platform", platform, "--random", "statistics", "minilm")
    done = script("direct.py", *arguments, TORCH_FL_VENDOR_PATH=FAKES)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.startswith(f"platform    {platform}, 2 of it, no twin\n")
    assert "minilm      equal, bit for bit" in done.stdout
    assert done.stdout.endswith("all hold; PyTorch's CUDA is uninitialised\n")


def test_direct_fails_where_a_work_does():
    arguments = ("--platform", "musa", "statistics", "timing")
    done = script("direct.py", *arguments, TORCH_FL_VENDOR_PATH=FAKES / "broken" / "musa-memory")
    assert done.returncode == 1
    assert done.stdout.endswith("failed: statistics, timing\n")
    assert "musaMalloc: out of memory" in done.stderr
