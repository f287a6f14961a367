"""What the tests of this folder share.

A process has one platform. The tests run on the one that TORCH_FL_PLATFORM names, or the best one
that the machine has; a test that is about another platform, or about loading itself, starts a child
process with the fixture `python`. Large tests are sampled unless --full is given.
"""

import atexit
import functools
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from opinfo.counts import count_cases, pytest_terminal_summary  # noqa: F401 (found by pytest)

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Most tests look at each result, after which a thread would call its operators itself.
os.environ.setdefault("TORCH_FL_QUEUE_ALWAYS", "1")
KEPT_OPTIONS = ("TORCH_FL_VENDOR_PATH", "TORCH_FL_QUEUE_ALWAYS")


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


# Where the operators run after their call has returned. What a kernel finds wrong there, such as an
# index out of range, ends the process's use of the device: it belongs in a child.
ON_A_CARD = os.environ.get("TORCH_FL_PLATFORM") == "cuda"


def skip_on_a_card(reason):
    """For what a machine with a card may lack and every other one that runs the tests must have."""
    if ON_A_CARD:
        pytest.skip(reason)


@functools.cache
def entry_point():
    """A folder with what an installation adds to a checkout: the entry point that `import torch`
    looks for. None where it is installed, as everywhere but on a card."""
    points = importlib.metadata.entry_points(group="torch.backends")
    if not ON_A_CARD or any(point.name == "flagos" for point in points):
        return None
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    about = folder / f"torch_fl-{project['version']}.dist-info"
    about.mkdir()
    fields = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
    (about / "METADATA").write_text("".join(f"{name}: {fields[name]}\n" for name in fields))
    lines = ["[torch.backends]"]
    lines += [f"{k} = {v}" for k, v in project["entry-points"]["torch.backends"].items()]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    shutil.copy(ROOT / "python" / "_torch_fl_autoload.py", folder)
    return folder


@pytest.fixture(scope="session")
def full(request):
    """Whether large tests should run whole."""
    return request.config.getoption("--full")


def run_python(code, *arguments, timeout=240, **environment):
    """Run `code` in a new interpreter whose options are only those given here, and KEPT_OPTIONS; None
    removes a variable. Answers a CompletedProcess with text."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_OPTIONS
        or not name.startswith(("TORCH_FL_", "FLAGOS_", "TORCH_DEVICE_BACKEND_AUTOLOAD"))
    }
    for name, value in environment.items():
        clean.pop(name, None)
        if value is not None:
            clean[name] = str(value)
    if entry_point() is not None:
        paths = clean.get("PYTHONPATH"), str(entry_point())
        clean["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )


ASSERTED = """
import importlib, os, sys, torch
sys.path.insert(0, "tests/torch")
module = importlib.import_module(sys.argv[1])
x = torch.ones(2, device="flagos")
def wrong():
    eval(sys.argv[2], vars(module))("flagos")
    torch.flagos.synchronize()
for action in (wrong, lambda: (x + 1).tolist(), torch.flagos.synchronize):
    try:
        action()
    except torch.AcceleratorError as error:
        print("device-side assert triggered" in str(error))
    else:
        print("nothing was raised")
sys.stdout.flush()
os._exit(0)  # What a process without its device does while it ends is not asked here.
"""


def assert_device_is_lost(module, program):
    """What only a kernel sees is said when somebody waits next, and ends the process's use of the
    device, as with torch.cuda. `program` is an expression in the module: a function of a device."""
    done = run_python(ASSERTED, module, program, TORCH_FL_PLATFORM="cuda")
    assert done.returncode == 0 and done.stdout == "True\n" * 3, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
def python():
    """Run code that must succeed in a child; answers what it printed."""

    def run(code, *arguments, **environment):
        done = run_python(code, *arguments, **environment)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
