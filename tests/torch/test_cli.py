"""The command line: python -m torch_fl."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import run_python

import torch_fl

CALL = "import runpy, sys; runpy.run_module('torch_fl', run_name='__main__', alter_sys=True)"


def command(*arguments, **environment):
    return run_python(CALL, *arguments, **environment)


def test_info_as_text():
    done = command("info", TORCH_FL_PLATFORM="cpu", TORCH_FL_MISSPELLED="1")
    assert done.returncode == 0, done.stderr
    assert f"torch      {torch.__version__}" in done.stdout
    assert "platform   cpu, twin cpu" in done.stdout
    assert "flagos:0" in done.stdout
    assert "TORCH_FL_PLATFORM=cpu" in done.stdout
    assert "TORCH_FL_MISSPELLED is set and is no option" in done.stdout


def test_info_says_why_a_platform_is_not_usable():
    done = command("info", "--json", TORCH_FL_PLATFORM="cpu")
    platforms = {entry["name"]: entry for entry in json.loads(done.stdout)["platforms"]}
    assert platforms["cpu"]["reason"] is None
    # The simulated device works everywhere and is never picked unless it is asked for.
    assert platforms["sim"]["reason"] is None and platforms["sim"]["probe_order"] < 0
    unusable = [entry for entry in platforms.values() if entry["reason"]]
    assert unusable and all(len(entry["reason"]) > 10 for entry in unusable)
    text = command("info", TORCH_FL_PLATFORM="cpu").stdout
    for entry in unusable:
        assert f"not usable: {entry['reason']}" in text


def test_info_as_json_has_true_figures():
    done = command("info", "--json", TORCH_FL_PLATFORM="cpu")
    facts = json.loads(done.stdout)
    assert facts["torch"] == torch.__version__
    assert facts["torch_fl"] == torch_fl.__version__
    assert facts["built_for_torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert facts["platform"] == {"name": "cpu", "twin": "cpu", **facts["platform"]}
    (device,) = facts["devices"]
    with open("/proc/meminfo") as lines:
        kib = int(lines.readline().split()[1])
    assert device["total_memory"] == kib * 1024
    assert 0 < device["free_memory"] < device["total_memory"]
    assert facts["operators"] > 1000
    assert facts["unknown_variables"] == []


def test_info_on_the_simulated_device():
    done = command("info", "--json", TORCH_FL_PLATFORM="sim", TORCH_FL_SIM_DEVICES="3")
    facts = json.loads(done.stdout)
    assert facts["platform"]["twin"] is None
    assert [device["index"] for device in facts["devices"]] == [0, 1, 2]


def test_env_holds_what_a_report_needs():
    done = command("env", TORCH_FL_PLATFORM="cpu", PYTORCH_ALLOC_CONF="", HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert f"torch      {torch.__version__} ({torch.version.git_version})" in done.stdout
    assert "platform   cpu, twin cpu" in done.stdout and "TORCH_FL_PLATFORM cpu" in done.stdout
    assert "secret" not in done.stdout
    done = command("env", "--json", TORCH_FL_PLATFORM="cpu", TORCH_KEY="secret")
    facts = json.loads(done.stdout)
    assert facts["info"]["platform"]["name"] == "cpu"
    assert facts["packages"]["numpy"] and facts["python"].startswith(sys.version.split()[0])
    assert facts["variables"]["TORCH_KEY"] == "(not shown)"


def test_a_command_where_torch_fl_cannot_start():
    """One sentence and exit status 1; `env` is for exactly this case."""
    environment = {**os.environ, "TORCH_FL_PLATFORM": "nosuch"}

    def call(*arguments):
        words = [sys.executable, "-m", "torch_fl", *arguments]
        return subprocess.run(words, capture_output=True, text=True, env=environment)

    done = call("info")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("torch_fl cannot start: ") and done.stderr.count("\n") == 1
    done = call("info", "--json")
    assert done.returncode == 1 and '"nosuch" is no platform' in json.loads(done.stdout)["error"]
    done = call("env")
    assert done.returncode == 0, done.stderr
    assert '"nosuch" is no platform' in done.stdout and "variables" in done.stdout


@pytest.mark.parametrize("driver", ["cpu", "sim"])
def test_conformance(driver):
    done = command("conformance", "--driver", driver, TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    skipped = sum(line.startswith("skipped") for line in lines)
    count = f"; {skipped} of {len(lines) - 1} cases skipped" if skipped else ""
    assert lines[-1] == f"driver '{driver}' conforms{count}"
    assert sum(line.startswith("passed") for line in lines) > 20
    part = command("conformance", "--cases", "event", TORCH_FL_PLATFORM=driver).stdout.splitlines()
    assert 1 < len(part) < len(lines) and all("event" in line for line in part[:-1])


def test_conformance_of_an_unknown_driver():
    done = command("conformance", "--driver", "nosuch", TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 2 and "there is no platform 'nosuch'; there are " in done.stderr


def test_conformance_without_a_case_shows_nothing():
    done = command("conformance", "--cases", "nosuch", TORCH_FL_PLATFORM="cpu")
    assert done.returncode == 2 and "nosuch" in done.stderr and "conforms" not in done.stdout


@pytest.mark.parametrize("arguments", [[], ["nosuch"], ["info", "--nosuch"], ["demo", "--rounds", "0"]])
def test_wrong_usage_names_what_there_is(arguments):
    done = command(*arguments)
    assert done.returncode == 2
    assert "usage: python -m torch_fl" in done.stderr


def test_run_asks_for_the_script_alone():
    done = command("run")
    assert done.returncode == 2 and done.stderr.endswith("arguments are required: script\n")


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "torch_fl", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "info" in done.stdout and "demo" in done.stdout


def in_shell(line):
    words = line.replace("torch_fl", f"{sys.executable} -m torch_fl", 1)
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True)


@pytest.mark.parametrize("words", ["info", "env", "conformance --cases device.count"])
def test_closed_output_is_no_error(words):
    done = in_shell(f"torch_fl {words} >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["info", "conformance --cases device.count"])
def test_a_full_disk_is_said_in_one_line(words):
    done = in_shell(f"torch_fl {words} > /dev/full")
    assert done.returncode == 1
    assert "the output cannot be written: " in done.stderr and done.stderr.count("\n") == 1


def test_the_suite_survives_its_reader():
    done = in_shell("torch_fl conformance --cases device | head -1; exit ${PIPESTATUS[0]}")
    assert done.stdout.count("\n") == 1 and done.stderr == ""
    assert done.returncode in (0, 141)  # The reader may be as slow as the suite.


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m torch_fl info | true"], capture_output=True, text=True
    )
    assert done.stderr == ""
