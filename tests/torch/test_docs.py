"""What the documents say is so: programs run, commands exist, lists are complete, links lead there."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys

import pytest
from conftest import ROOT, run_python

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    """(page and line, text) of each fenced block of a language."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match[1], id=f"{page.name}:{line}"))
    return found


@pytest.mark.parametrize("program", blocks("python"))
def test_python_programs_run(program):
    # What the README says to set where the machine has a CUDA device.
    done = run_python(program, TORCH_FL_AUTOLOAD=1)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def commands():
    """Each `make X` and `python -m torch_fl X` that a page names."""
    found = set()
    for page in PAGES:
        in_code = r"(?:`|^)(make [a-z][a-z-]+|python -m torch_fl [a-z]+)"
        found |= set(re.findall(in_code, page.read_text(), re.MULTILINE))
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command):
    if command.startswith("make "):
        make = ["make", "-C", ROOT, "--dry-run", command.split()[1]]
        done = subprocess.run(make, capture_output=True, text=True)
    else:
        arguments = [sys.executable, "-m", "torch_fl", command.split()[-1], "--help"]
        done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    # Files named in passing, as in `src/torch/shadow.h`.
    names = re.findall(r"`((?:src|include|tests|docs|tools|bench|examples|python)/[\w./-]+)`", text)
    missing += [name for name in names if not (ROOT / name).exists()]
    assert not missing


def test_the_page_of_options_is_the_table():
    path = ROOT / "tools" / "gen_options_md"
    loader = importlib.machinery.SourceFileLoader("gen_options_md", str(path))
    spec = importlib.util.spec_from_loader("gen_options_md", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    # Otherwise run: tools/gen_options_md > docs/options.md
    assert (ROOT / "docs" / "options.md").read_text() == module.page()


def test_every_pinned_package_has_its_reason():
    page = (ROOT / "docs" / "dependencies.md").read_text()
    pinned = set()
    for name in ("requirements.txt", "requirements-dev.txt"):
        pinned |= set(re.findall(r"^([\w-]+)==", (ROOT / name).read_text(), re.MULTILINE))
    assert pinned == set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
