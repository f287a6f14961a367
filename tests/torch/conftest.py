"""What the tests of this folder share.

A process has one platform. The tests run on the one that TORCH_FL_PLATFORM names, or the best one
that the machine has; a test that is about another platform, or about loading itself, starts a child
process with the fixture `python`. Large tests are sampled unless --full is given.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from opinfo.counts import count_cases, pytest_terminal_summary  # noqa: F401 (found by pytest)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run large tests whole, not sampled")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: only with --full")
    config.addinivalue_line(
        "markers",
        "platforms(*names): skipped unless the chosen platform is one of them; `sim` stands for "
        "every platform without a twin",
    )


def pytest_collection_modifyitems(config, items):
    import torch_fl

    chosen = torch_fl.platform()["name"]
    alike = {chosen} if torch_fl.platform()["twin"] else {chosen, "sim"}
    for item in items:
        if item.get_closest_marker("full") and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="only with --full"))
        wanted = item.get_closest_marker("platforms")
        if wanted and alike.isdisjoint(wanted.args):
            item.add_marker(
                pytest.mark.skip(reason=f"is about {', '.join(wanted.args)}; this is {chosen}")
            )


def pytest_report_header():
    import torch
    import torch_fl

    return f"torch_fl {torch_fl.__version__} on {torch_fl.platform()}, torch {torch.__version__}"


@pytest.fixture(scope="session")
def full(request):
    """Whether large tests should run whole."""
    return request.config.getoption("--full")


def run_python(code, *arguments, timeout=240, **environment):
    """Run `code` in a new interpreter whose options are only those given here, and where the
    platform's runtime lies; None removes a variable. Answers a CompletedProcess with text."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name == "TORCH_FL_VENDOR_PATH"
        or not name.startswith(("TORCH_FL_", "FLAGOS_", "TORCH_DEVICE_BACKEND_AUTOLOAD"))
    }
    for name, value in environment.items():
        clean.pop(name, None)
        if value is not None:
            clean[name] = str(value)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )


@pytest.fixture
def python():
    """Run code that must succeed in a child; answers what it printed."""

    def run(code, *arguments, **environment):
        done = run_python(code, *arguments, **environment)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
