"""The scripts of bench/card that no card is needed for: they run on fakes and simulated devices, so
that what a card is borrowed for does not fail by a slip."""

import importlib
import json
import sys

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


class FakeSide:
    """A process of pairs.py that takes the same time in each round: native 1.0 and, the second one,
    1.21; flagos in the first, second and third process 1.0, 1.1 and 1/1.1. `bert_train` ends it."""

    times = {"cuda": [1.0], "again": [1.21], "flagos": [1.0, 1.1, 1 / 1.1]}
    started = []

    def __init__(self, name, script):
        self.name, self.process, self.before = name, self, self.started.count(name)
        self.started.append(name)

    def tell(self, command):
        self.command = command

    def answer(self, command):
        if (self.name, command) == ("flagos", "load bert_train"):
            raise RuntimeError("the process flagos died")
        times = self.times[self.name]
        time = times[self.before % len(times)]
        return {"units": time, "seconds": time, "allocated": 1, "reserved": 1, "hash": "same"}

    def ask(self, command):
        self.tell(command)
        return self.answer(command)

    def kill(self):
        pass

    quit = kill


def test_pairs_judges_sets_as_their_logs_say(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(ROOT / "bench" / "card")
    pairs = importlib.import_module("pairs")
    monkeypatch.setattr(pairs.processes, "Side", FakeSide)
    monkeypatch.setattr(FakeSide, "started", [])

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["pairs.py", *map(str, arguments)])
        return pairs.main(), capsys.readouterr().out.splitlines()

    log, done = tmp_path / "log", tmp_path / "done"
    options = ("--sides", "cuda,again,flagos", "--log", log)
    code, first = main("unet", *options, "--sets", 3)
    assert code == 0 and first[0] == "set 1 of 3  unet               again 0.826x  flagos 1.100x"
    assert "again    0.826x (0.826 .. 0.826; mean of 3 sets in 0.826 .. 0.826) not judged" in first[3]
    # Around the mean of three logarithms of 1, 1.1 and 1.21: 4.303 of their deviation over sqrt(3).
    assert "flagos   1.100x (1.000 .. 1.210; mean of 3 sets in 0.868 .. 1.394) for 1.0" in first[4]
    code, second = main("bert_train", "unet", *options, "--done", done)
    assert code == 1 and second[0].startswith("set 1 of 1  bert_train         failed")
    assert "median of 7" in second[-2] and second[-2].endswith("met")
    assert second[-1] == "missed: bert_train" and done.read_text() == "bert_train\nunet\n"

    rows = log.read_text().splitlines(keepends=True)
    early, late = tmp_path / "early", tmp_path / "late"
    early.write_text("".join(rows[:21]))
    late.write_text("".join(rows[21:]))
    assert main("--judge", early) == (0, first[3:])
    assert main("--judge", late) == (1, second[2:])
    assert main("--judge", early, late) == main("--judge", log)
    assert "mean of 4 sets" in main("--judge", log)[1][1]

    cut = json.dumps(json.loads(rows[0]) | {"set": "cut"}) + "\n"
    log.write_text("".join(rows[:21]) + cut)
    assert main("--judge", log) == (0, first[3:]), "one round of seven is no set"
