"""Vendors' platforms on their fakes: libraries with that vendor's symbols over the simulated
device, on which the very driver runs that meets the hardware. `make native` builds them."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, run_python, skip_on_a_card

FAKES = ROOT / "build" / "native" / "fakes"
FAMILY = ["musa", "gcu", "ascend", "tsingmicro", "metax-direct", "ppu-direct", "dcu-direct"]
PROGRAM = "import runpy; runpy.run_path('tests/torch/on_chip.py', run_name='__main__')"
CALL = "import runpy; runpy.run_module('torch_fl', run_name='__main__', alter_sys=True)"


@pytest.fixture(autouse=True)
def fakes():
    if not FAKES.is_dir():
        skip_on_a_card("the fakes are not built here")
    assert FAKES.is_dir(), "the fakes are not built: make native"


def on_fakes(*folders):
    return ":".join(str(FAKES / folder) for folder in folders)


def command(*arguments, **environment):
    return run_python(CALL, *arguments, **environment)


# --- work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", FAMILY)
def test_tensors_streams_a_training_and_minilm(python, platform):
    works = ["tensors", "streams", "timing", "statistics", "mlp"]
    if platform in ("musa", "ascend", "tsingmicro"):  # One of each shape of runtime.
        works.append("minilm")
    text = python(
        PROGRAM, *works, TORCH_FL_PLATFORM=platform, TORCH_FL_VENDOR_PATH=on_fakes("")
    )
    *_, last = text.splitlines()
    assert last.startswith(platform) and last.endswith(" ".join(works))


def test_the_ninth_vendor_by_a_row_and_by_a_file(python):
    """An invented chip, from nothing but a file: as docs/driver.md tells it."""
    works = ("tensors", "mlp")
    rows = ROOT / "tests" / "fakes" / "zephyr.rows"
    text = python(
        PROGRAM,
        *works,
        TORCH_FL_PLATFORM="zephyr",
        TORCH_FL_VENDOR_ROWS=rows,
        TORCH_FL_VENDOR_PATH=on_fakes(""),
    )
    assert text.startswith("zephyr Zephyr Nine")
    # Somebody named the file, so its driver is taken without being asked for by name.
    driver = FAKES / "drivers" / "zephyr_driver.so"
    assert python(PROGRAM, *works, TORCH_FL_DRIVER_PATH=driver).startswith("zephyr-file")


# --- the suite -----------------------------------------------------------------------------------


def test_conformance_says_that_a_fake_serves():
    """The whole suite on every fake is in C; this is the way to it."""
    platform = "ascend"
    done = command("conformance", "--driver", platform, "--cases", "copy", TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert "none of its libraries was found" in lines[0] and lines[0].endswith("its fake is used")
    assert lines[-1].startswith(f"driver '{platform}' conforms, served by the fake {FAKES}")


def test_conformance_does_not_depend_on_the_chosen_platform(tmp_path):
    """Also not where that one cannot be used in this process."""

    def call(platform, **variables):
        environment = {**os.environ, "TORCH_FL_PLATFORM": platform, **variables}
        environment.pop("TORCH_FL_VENDOR_PATH", None)
        words = [sys.executable, "-m", "torch_fl", "conformance", "--driver", platform]
        words += ["--cases", "device"]
        return subprocess.run(words, capture_output=True, text=True, env=environment)

    rows = ROOT / "tests" / "fakes" / "zephyr.rows"
    done = call("zephyr", TORCH_FL_VENDOR_ROWS=str(rows))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "driver 'zephyr' conforms, served by the fake " in done.stdout
    rows = tmp_path / "absent.rows"
    rows.write_text("[absent]\nprefix = p\nlibraries = libabsent.so\n")
    done = call("absent", TORCH_FL_VENDOR_ROWS=str(rows))  # Without a fake that could serve it.
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("torch_fl cannot start: ")


def test_conformance_of_a_broken_runtime_fails():
    done = command(
        *("conformance", "--cases", "memory"),
        TORCH_FL_PLATFORM="musa",
        TORCH_FL_VENDOR_PATH=on_fakes("broken/musa-memory"),
    )
    assert done.returncode == 1
    assert "driver 'musa' does not conform: " in done.stdout.splitlines()[-1]
    assert "musaMalloc: out of memory" in done.stdout


# --- what people are told ------------------------------------------------------------------------


def info(**environment):
    done = command("info", "--json", **environment)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    return facts, {entry["name"]: entry["reason"] for entry in facts["platforms"]}


def test_two_vendors_on_one_machine():
    facts, reasons = info(TORCH_FL_VENDOR_PATH=on_fakes("gcu", "musa"))
    assert reasons["gcu"] is reasons["musa"] is None
    assert facts["platform"]["name"] == "musa"  # The first in probe order, not on the path.
    assert [device["index"] for device in facts["devices"]] == [0, 1]


def test_half_installed_software_is_passed_over_with_the_reason():
    """A defect each; test_platform_choice.c has all of them for all of the three."""
    broken = {
        "musa": ("symbol", "has no symbol musaStreamQuery"),
        "ascend": ("version", "aclInit failed"),
        "tsingmicro": ("no-device", "the TX runtime is there, but it sees no device"),
    }
    folders = [f"broken/{vendor}-{defect}" for vendor, (defect, _) in broken.items()]
    facts, reasons = info(TORCH_FL_VENDOR_PATH=on_fakes(*folders, "gcu"))
    assert facts["platform"]["name"] == "gcu"
    for vendor, (_, words) in broken.items():
        assert words in reasons[vendor], reasons[vendor]


def test_a_row_cannot_take_a_name_that_is_taken(tmp_path):
    rows = tmp_path / "own.rows"
    rows.write_text("\n[cpu]\nprefix = p\nlibraries = libown.so\n")
    done = run_python("import torch_fl", TORCH_FL_VENDOR_ROWS=rows, TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 1 and f"{rows}:2: platform cpu: the name is taken" in done.stderr


def test_not_ready_from_a_copy_is_a_failure_with_its_words():
    """The vendor's own words, where an empty message would be all that is left of an answer."""
    done = run_python(
        "import torch, torch_fl; torch.ones(3, device='flagos').cpu()",
        TORCH_FL_PLATFORM="musa",
        TORCH_FL_VENDOR_PATH=on_fakes(""),
        FL_FAKE_FAIL="musaMemcpyAsync:1:600",
    )
    assert "RuntimeError: musa: copying 12 bytes" in done.stderr
    assert "musaMemcpyAsync: device not ready" in done.stderr and "600" in done.stderr


def test_asked_for_by_name_a_broken_one_is_not_replaced():
    done = command(
        "info",
        TORCH_FL_PLATFORM="musa",
        TORCH_FL_VENDOR_PATH=on_fakes("broken/musa-symbol", "gcu"),
    )
    assert done.returncode == 1
    assert "asked for by TORCH_FL_PLATFORM" in done.stderr and "musaStreamQuery" in done.stderr


def test_a_device_that_cannot_allocate_says_so_at_first_use(python):
    """Looking earlier would make a context: it counts as usable, and its first tensor says more."""
    code = """
import torch, torch_fl
print([entry["reason"] for entry in torch_fl._C.platforms() if entry["name"] == "musa"])
for _ in range(2):
    try:
        torch.ones(3, device="flagos")
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
"""
    path = on_fakes("broken/musa-memory")
    usable, *lines = python(code, TORCH_FL_VENDOR_PATH=path).splitlines()
    assert usable == "[None]" and len(lines) == 2
    assert all("musaMalloc: out of memory" in line for line in lines), lines
