"""The shared objects and the wheel: what they need, what they show, how large they are."""

import fcntl
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from conftest import ROOT, run_python, skip_on_a_card

import torch_fl

PACKAGE = pathlib.Path(torch_fl.__file__).parent
CORE = PACKAGE / "lib" / "libflagos.so"
ADAPTER = PACKAGE / "lib" / "libtorch_fl.so"
BINDINGS = PACKAGE / "_C.abi3.so"
TORCH_LIBRARIES = pathlib.Path(torch.__file__).parent / "lib"

# The C and C++ run-time libraries; ld-linux serves thread-local storage.
SYSTEM = {"libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0"}
SYSTEM |= {"libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic(path, tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", tool("readelf", "-d", str(path)))


def symbols(path, *flags):
    """Names with their versions ("malloc@GLIBC_2.2.5"), as nm prints them; weak references, which
    may stay open, are left out."""
    lines = [line.split() for line in tool("nm", "-D", "-P", *flags, str(path)).splitlines()]
    return [name for name, kind, *_ in lines if kind not in "wv"]


# --- the shared objects --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, allowed",
    [
        (CORE, set()),
        (ADAPTER, {"libc10.so", "libtorch_cpu.so", "libflagos.so"}),
        (BINDINGS, {"libflagos.so"}),
    ],
    ids=["core", "adapter", "bindings"],
)
def test_needed_libraries(path, allowed):
    needed = set(dynamic(path, "NEEDED"))
    assert needed <= allowed | SYSTEM
    assert allowed <= needed


def test_the_core_exports_its_functions_alone():
    exported = symbols(CORE, "--defined-only")
    assert "fl_platform_choose" in exported
    assert not [name for name in exported if not name.startswith("fl_")]


def test_the_adapter_exports_nothing_of_torchs_templates():
    assert not [name for name in symbols(ADAPTER, "--defined-only") if not name.startswith("fl_")]


def test_the_bindings_export_their_entry_alone():
    assert symbols(BINDINGS, "--defined-only") == ["PyInit__C"]


def test_libraries_are_found_beside_each_other():
    """Whatever LD_LIBRARY_PATH says or does not say."""
    assert dynamic(ADAPTER, "RUNPATH") == ["$ORIGIN"]
    assert dynamic(BINDINGS, "RUNPATH") == ["$ORIGIN/lib"]


def test_each_undefined_symbol_of_the_adapter_is_in_a_library_it_may_need():
    providers = [TORCH_LIBRARIES / "libc10.so", TORCH_LIBRARIES / "libtorch_cpu.so", CORE]
    provided = {name.split("@")[0] for path in providers for name in symbols(path, "--defined-only")}
    unresolved = [
        name
        for name in symbols(ADAPTER, "--undefined-only")
        # Versioned names belong to the C and C++ run-time libraries, which are needed anyway.
        if name not in provided and not re.search(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_", name)
    ]
    assert not unresolved


def test_the_adapter_loads_in_a_program_without_python(tmp_path):
    source = tmp_path / "load.c"
    source.write_text(
        """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **paths) {
    for (int i = 1; i < count; i++) {
        if (!dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL)) {
            printf("%s\\n", dlerror());
            return 1;
        }
    }
    return dlsym(RTLD_DEFAULT, "Py_Initialize") ? 2 : 0;
}
"""
    )
    program = tmp_path / "load"
    tool("cc", str(source), "-o", str(program), "-ldl")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [program, TORCH_LIBRARIES / "libtorch_cpu.so", ADAPTER],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_adapter_names_its_torch():
    built = json.loads((PACKAGE / "lib" / "adapter.json").read_text())
    assert built["torch"].split(".")[:2] == torch.__version__.split(".")[:2]


def other_pythons():
    """Interpreters of other minor versions on this machine."""
    return [
        path
        for minor in range(10, 15)
        if minor != sys.version_info.minor and (path := shutil.which(f"python3.{minor}"))
        # Shims of version managers exist for versions that are not installed.
        and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
    ]


@pytest.mark.parametrize("interpreter", other_pythons() or [sys.executable])
def test_the_bindings_load_in_every_python(interpreter):
    code = (
        "import importlib.util as u, sys; "
        "spec = u.spec_from_file_location('torch_fl._C', sys.argv[1]); "
        "module = u.module_from_spec(spec); spec.loader.exec_module(module); "
        "print(module.version, module.platform_choose('cpu')['twin'])"
    )
    assert tool(interpreter, "-c", code, str(BINDINGS)) == f"{torch_fl.__version__} cpu\n"


def test_the_bindings_use_the_limited_api_only():
    """Underscored names of CPython are not part of it, but for a few that its macros use."""
    private = {
        name
        for name in symbols(BINDINGS, "--undefined-only")
        if name.startswith("_Py")
        and name
        not in (
            "_Py_NoneStruct",
            "_Py_TrueStruct",
            "_Py_FalseStruct",
            "_Py_Dealloc",
            "_PyArg_ParseTuple_SizeT",
            "_Py_BuildValue_SizeT",
        )
    }
    assert not private


# --- the wheel -----------------------------------------------------------------------------------


# Tests may run in several processes; these share one build, so the same process should have them.
one_build = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this source. Its build folder is kept, so that a second run is quick. Two compilers
    at work in it would spoil each other's files, so a process waits for another one's build."""
    needed = re.search(r"scikit-build-core==([\d.]+)", (ROOT / "pyproject.toml").read_text())[1]
    if importlib.metadata.version("scikit-build-core") != needed:
        skip_on_a_card(f"scikit-build-core {needed} is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--config-settings", f"build-dir={ROOT / 'build' / 'wheel'}"]
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [*command, "-w", str(folder), str(ROOT)], capture_output=True, text=True
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (path,) = folder.glob("*.whl")
    return path


@one_build
def test_wheel_name_size_and_contents(wheel):
    assert re.fullmatch(
        rf"torch_fl-{re.escape(torch_fl.__version__)}-cp310-abi3-linux_\w+\.whl", wheel.name
    )
    assert wheel.stat().st_size < 3_000_000
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"torch_fl/__init__.py", "torch_fl/_C.abi3.so", "_torch_fl_autoload.py"}
    expected |= {f"torch_fl/lib/{name}" for name in ("libflagos.so", "libtorch_fl.so", "adapter.json")}
    assert expected <= names
    foreign = [
        name
        for name in names
        if not name.startswith(("torch_fl/", f"torch_fl-{torch_fl.__version__}.dist-info/"))
        and name != "_torch_fl_autoload.py"
    ]
    assert not foreign and not [name for name in names if "__pycache__" in name]


@one_build
def test_wheel_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    info = f"torch_fl-{torch_fl.__version__}.dist-info"
    entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert "[torch.backends]\nflagos = _torch_fl_autoload:autoload" in entry_points
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.10" in metadata
    assert re.search(r"Requires-Dist: torch[<>=,.0-9]*2\.11", metadata)
    assert f"{info}/licenses/LICENSE" in archive.namelist()


@one_build
def test_installed_wheel_works(wheel, tmp_path):
    target = tmp_path / "installed"
    tool(
        sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps",
        "--target", str(target), str(wheel),
    )  # fmt: skip
    code = "import torch_fl, torch; print(torch_fl.__file__, torch.ones(2, device='flagos').sum().item())"
    done = run_python(code, PYTHONPATH=target, LD_LIBRARY_PATH=None)
    assert done.stdout == f"{target / 'torch_fl' / '__init__.py'} 2.0\n", done.stderr
