"""The scripts of bench/card that no card is needed for: they run on fakes and simulated devices, so
that what a card is borrowed for does not fail by a slip."""

import json

import pytest
from conftest import ROOT, run_python, skip_on_a_card

FAKES = ROOT / "build" / "native" / "fakes"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def script(name, *arguments, **environment):
    if not FAKES.is_dir():
        skip_on_a_card("the fakes are not built here")
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


def test_alloc_against_a_source_without_a_card(tmp_path):
    """malloc reserves nothing beyond what is live, so the traces cannot pass that bar."""
    log = tmp_path / "log.jsonl"
    counts = ("--rounds", "3", "--pairs", "2000", "--passes", "3", "--log", str(log))
    source = str(ROOT / "bench" / "c" / "malloc_source.c")
    done = script("alloc.py", "--platform", "sim", "--source", source, *counts)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    traces = [line.split() for line in done.stdout.splitlines() if line.startswith("gpt2_train ")]
    assert [line[3] for line in traces] == ["1.0663"] and traces[0][-1] == "MISSED"
    assert "4 KiB, four threads" in done.stdout and "gpt2_train" in done.stdout.splitlines()[-1]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum("round" in row for row in rows) == 7 * 2 * 3
    assert sum("pass" in row for row in rows) == 3 * 2 * 3


def test_overlap_copies_and_reports():
    """Whether simulated devices overlap depends on this machine; what is asked of them does not."""
    sizes = ("--mib", "2", "--rounds", "1", "--width", "32")
    done = script("overlap.py", "sim", "cuda-direct", *sizes, TORCH_FL_VENDOR_PATH=FAKES)
    lines = done.stdout.splitlines()
    assert len(lines) == 6, f"{done.stdout}\n{done.stderr}"
    for line, side in zip(lines[1:], ("sim", "sim", "cuda-direct", "cuda-direct")):
        assert line.startswith(side) and "WRONG" not in line and "failed" not in line
    assert done.returncode == (lines[-1] == "some do not hold")
