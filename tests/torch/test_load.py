"""Loading: what `import torch` and `import torch_fl` do, leave alone, and say when they cannot."""

import glob
import json
import os
import pathlib
import shutil
import sys

import pytest
import torch
from conftest import ROOT, run_python

import torch_fl

PACKAGE = pathlib.Path(torch_fl.__file__).parent


def last_line(done):
    """The message of the exception that ended a child."""
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    return [line for line in done.stderr.splitlines() if line and not line[0].isspace()][-1]


# A machine without CUDA devices, whatever it really has, and one that has some.
NO_CUDA = {"CUDA_VISIBLE_DEVICES": ""}
ANY_CUDA = "import _torch_fl_autoload as a; a.CUDA_DEVICES = ('/dev/null',); "


# --- who loads -----------------------------------------------------------------------------------


def test_import_torch_is_enough_without_a_cuda_device(python):
    code = "import torch; print(torch.ones(2, device='flagos').sum().item(), torch.flagos.is_available())"
    assert python(code, **NO_CUDA) == "2.0 True\n"


@pytest.mark.parametrize("variable", ["TORCH_FL_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_autoload_can_be_switched_off(python, variable):
    code = "import sys, torch; print('torch_fl' in sys.modules, hasattr(torch, 'flagos'))"
    assert python(code, **{variable: 0}, **NO_CUDA) == "False False\n"
    # An explicit import loads all the same.
    assert python(f"{code}; import torch_fl; print(torch.flagos.device_count() > 0)", **{variable: 0})


@pytest.mark.parametrize("autoload, loaded", [(None, False), ("1", True), ("0", False)])
def test_a_cuda_device_keeps_autoload_away_unless_asked_for(python, autoload, loaded):
    code = (
        "import os, sys; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch; "
        "torch.backends.cuda.is_built = lambda: True; "
        f"{ANY_CUDA} a.autoload(); print('torch_fl' in sys.modules)"
    )
    environment = {"CUDA_VISIBLE_DEVICES": None, "TORCH_FL_AUTOLOAD": autoload}
    if loaded:
        environment["TORCH_FL_PLATFORM"] = "cpu"
    assert python(code, **environment) == f"{loaded}\n"


@pytest.mark.parametrize("order", ["import torch, torch_fl", "import torch_fl, torch"])
def test_order_of_imports_does_not_matter(python, order):
    assert python(f"{order}; print(torch.zeros(3, device='flagos').device)") == "flagos:0\n"


def test_importing_twice_is_importing_once(python):
    code = (
        "import importlib, torch_fl; importlib.reload(torch_fl); import torch; "
        "print(torch.ones(2, device='flagos').sum().item())"
    )
    assert python(code) == "2.0\n"


# --- what loading leaves alone -------------------------------------------------------------------


def test_loading_prints_nothing():
    done = run_python("import torch, torch_fl", **NO_CUDA)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_loading_makes_no_context(python):
    code = (
        "import torch, torch_fl; "
        "print(torch.flagos.is_available(), torch.flagos.device_count() > 0, "
        "torch.flagos.is_initialized(), torch.cuda.is_initialized())"
    )
    assert python(code) == "True True False False\n"


def test_loading_replaces_nothing_in_torch_but_the_table(python):
    """Names are added (torch.flagos, Tensor.flagos, is_flagos, ...), and only those are exchanged
    that docs/wrapped.md gives reasons for."""
    code = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import sys, types, torch, torch.utils.data, torch.optim, torch.amp, torch.profiler

def owners():
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            yield name, module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__.startswith("torch"):
                    yield f"{name}.{key}", value

def snapshot():
    return {
        (owner, key): value
        for owner, thing in owners() if hasattr(thing, "__dict__")
        for key, value in list(vars(thing).items())
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, property,
                              classmethod, staticmethod, types.MethodDescriptorType))
    }

before = snapshot()
import torch_fl
after = snapshot()
changed = {(o, k) for (o, k), v in before.items() if after.get((o, k)) is not v}
from torch_fl import _wrapped
print(sorted(f"{o}.{k}" for o, k in changed if k not in {row.name for row in _wrapped.TABLE}))
print(len(before) > 10000)
"""
    assert python(code) == "[]\nTrue\n"


# --- bad input -----------------------------------------------------------------------------------

FAILING = """
import torch
print("torch is there")
def said(action):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
    else:
        print("no error")
said(lambda: torch.zeros(2, device="flagos"))
said(lambda: torch.zeros(2).to("flagos"))
said(lambda: torch.flagos.current_device())
said(lambda: __import__("torch_fl"))
# The rest of torch goes on working.
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
torch.manual_seed(0)
print(x.grad.tolist(), torch.flagos.is_available(), torch.flagos.device_count(),
      torch.accelerator.is_available())
"""


def check_failure(wanted, package_path=None, **environment):
    """`import torch` works; each first use of the device, and `import torch_fl`, say `wanted`."""
    if package_path:
        environment["PYTHONPATH"] = package_path
    done = run_python(FAILING, **environment, **NO_CUDA)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, *said, last = done.stdout.splitlines()
    assert first == "torch is there"
    assert [line.split()[0] for line in said] == ["RuntimeError"] * 3 + ["ImportError"]
    for line in said:
        assert all(words in line for words in wanted), line
    assert last == "[2.0, 2.0, 2.0] False 0 False"


def test_unknown_platform():
    check_failure(["nosuch", "cpu", "sim"], TORCH_FL_PLATFORM="nosuch")


def test_bad_value_of_an_option():
    check_failure(["TORCH_FL_STRICT", "banana", "0 or 1"], TORCH_FL_STRICT="banana")


@pytest.fixture
def copied(tmp_path):
    """A copy of the installed package that a test may damage; answers its folder."""
    shutil.copytree(PACKAGE, tmp_path / "torch_fl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "_torch_fl_autoload.py", tmp_path)
    return tmp_path / "torch_fl"


def test_a_copy_works_where_it_lies(copied, python):
    code = "import torch_fl, torch; print(torch_fl.__file__, torch.ones(1, device='flagos').item())"
    assert python(code, PYTHONPATH=copied.parent) == f"{copied / '__init__.py'} 1.0\n"


def test_wrong_torch(copied):
    path = copied / "lib" / "adapter.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "torch": "2.3.1+cu121"}))
    check_failure(["2.3", torch.__version__, "pip install", "make build"], copied.parent)


@pytest.mark.parametrize(
    "missing", ["lib/libflagos.so", "lib/libtorch_fl.so", "lib/adapter.json", "_C.abi3.so"]
)
def test_missing_file(copied, missing):
    (copied / missing).unlink()
    name = "_C" if missing.startswith("_C") else os.path.basename(missing)
    check_failure([name, "install torch_fl again"], copied.parent)


def test_damaged_library(copied):
    (copied / "lib" / "libtorch_fl.so").write_bytes(b"this is no library")
    check_failure(["libtorch_fl.so", "install torch_fl again"], copied.parent)


@pytest.mark.parametrize("cut", ["lib/libflagos.so", "lib/libtorch_fl.so", "_C.abi3.so"])
def test_library_cut_short(copied, cut):
    """As an interrupted copy leaves it; mapping it would end the process."""
    path = copied / cut
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    check_failure([path.name, "cut short", "install torch_fl again"], copied.parent)


@pytest.mark.parametrize("text", ["{}", "[]", '{"torch": 5}', '"torch"', ""])
def test_damaged_facts(copied, text):
    (copied / "lib" / "adapter.json").write_text(text)
    check_failure(["adapter.json", "install torch_fl again"], copied.parent)


def test_the_loaders_own_words_are_kept(copied):
    shutil.copy(copied / "lib" / "libflagos.so", copied / "lib" / "libtorch_fl.so")
    (copied / "lib" / "libtorch_fl.so").chmod(0o644)
    (copied / "lib" / "libflagos.so").unlink()
    (copied / "_C.abi3.so").write_bytes(b"")
    check_failure(["_C", "file too short", "install torch_fl again"], copied.parent)


def test_a_platform_without_its_device_says_so_at_first_use(python):
    code = (
        "import torch, torch_fl\n"
        "try: torch.ones(1, device='flagos')\n"
        "except RuntimeError as error: print(error)"
    )
    said = python(code, TORCH_FL_PLATFORM="cuda", **NO_CUDA)
    assert "platform cuda has no device: CUDA_VISIBLE_DEVICES hides every device" in said
    assert "TORCH_FL_PLATFORM" in said
    if not glob.glob("/dev/nvidia[0-9]*"):
        said = python(code, TORCH_FL_PLATFORM="cuda", CUDA_VISIBLE_DEVICES=None)
        assert "platform cuda has no device: there is no device file /dev/nvidia" in said


def test_another_device_owns_the_key():
    done = run_python(
        "import torch; torch.utils.rename_privateuse1_backend('other'); import torch_fl",
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
    )
    assert "other" in last_line(done) and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in last_line(done)


def test_a_failure_on_a_machine_with_cuda_leaves_cuda_alone(python):
    code = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch; "
        "torch.backends.cuda.is_built = lambda: True; "
        f"{ANY_CUDA} a.autoload(); print(torch._C._get_privateuse1_backend_name())\n"
        "try: torch.flagos.current_device()\n"
        "except RuntimeError as error: print('nosuch' in str(error))"
    )
    environment = {"TORCH_FL_AUTOLOAD": 1, "TORCH_FL_PLATFORM": "nosuch", "CUDA_VISIBLE_DEVICES": None}
    assert python(code, **environment) == "privateuseone\nTrue\n"


SECOND_INTERPRETER = """
import _xxsubinterpreters as interpreters, os, sys, tempfile
said = os.path.join(tempfile.mkdtemp(), "said")
interpreters.run_string(interpreters.create(isolated=False), f'''
import importlib.util
spec = importlib.util.spec_from_file_location("torch_fl._C", {sys.argv[1]!r})
module = importlib.util.module_from_spec(spec)
try:
    spec.loader.exec_module(module)
except ImportError as error:
    open({said!r}, "w").write(str(error))
''')
print(open(said).read())
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module for it has another name there")
def test_a_second_interpreter_is_refused(python):
    assert "main Python interpreter" in python(SECOND_INTERPRETER, str(PACKAGE / "_C.abi3.so"))


# --- processes -----------------------------------------------------------------------------------


def test_a_forked_child_of_an_initialised_parent_gets_a_clear_error(python):
    code = """
import os, torch, torch_fl
x = torch.ones(2, device="flagos")
child = os.fork()
if child == 0:
    assert torch.flagos._is_in_bad_fork()
    try:
        torch.ones(2, device="flagos")
    except RuntimeError as error:
        os._exit(0 if "forked" in str(error) and "spawn" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.sum().item())
"""
    assert python(code) == "0 2.0\n"


def test_a_child_forked_before_the_first_use_may_use_the_device(python):
    code = """
import os, torch, torch_fl
child = os.fork()
if child == 0:
    os._exit(0 if torch.ones(2, device="flagos").sum().item() == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code) == "0\n"


def test_the_package_lies_in_this_checkout():
    """Otherwise everything above would be about another build."""
    assert PACKAGE.parent.parent == ROOT
