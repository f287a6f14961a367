"""Find and load the shared objects, and choose the platform.

Every failure is an ImportError that says what is wrong and what to do about it. Loading again after
a failure is allowed and fails in the same way.
"""

import importlib
import json
import pathlib
import struct
import sys

import torch

FOLDER = pathlib.Path(__file__).resolve().parent / "lib"
ADAPTER = FOLDER / "libtorch_fl.so"
TWIN_MEMORY = FOLDER / "libtorch_fl_cuda.so"  # Built where PyTorch's build has CUDA.
REINSTALL = "install torch_fl again (in its source folder: make build, or pip install .)"


def built_for():
    """What the adapter was built with, as written beside it by the build."""
    try:
        facts = json.loads((FOLDER / "adapter.json").read_text())
        str.split(facts["torch"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ImportError(
            f"torch_fl's installation is incomplete (adapter.json: {error}); {REINSTALL}"
        ) from None
    return facts


def is_command():
    """Whether this process is `python -m torch_fl ...`."""
    words = sys.orig_argv
    return "-m" in words and words[words.index("-m") + 1 :][:1] == ["torch_fl"]


def _check_torch():
    wanted = built_for()["torch"].split("+")[0].split(".")
    found = torch.__version__.split("+")[0].split(".")
    if found[:2] != wanted[:2]:
        minor = ".".join(wanted[:2])
        raise ImportError(
            f"torch_fl was built for torch {minor}, and this is torch {torch.__version__} "
            f"({pathlib.Path(torch.__file__).parent}). Install torch {minor} with: "
            f"pip install 'torch=={minor}.*', or build torch_fl for this torch (in its source folder: "
            f"make build, or pip install .)"
        )


def _check_whole(library):
    """Refuse a file that was cut short, which would end the process when it is mapped. One without a
    whole header the loader refuses itself."""
    with open(library, "rb") as file:
        header = file.read(64)
    if len(header) < 64:
        return
    # ELF for 64 bits: the table of sections ends the file; its offset, entry size and entries.
    (offset,) = struct.unpack_from("<Q", header, 40)
    entry_size, entries = struct.unpack_from("<HH", header, 58)
    if library.stat().st_size < offset + entry_size * entries:
        raise ImportError(
            f"torch_fl's installation is incomplete ({library} is cut short); {REINSTALL}"
        )


def _check_owner():
    owner = torch._C._get_privateuse1_backend_name()
    if owner not in ("privateuseone", "flagos"):
        raise ImportError(
            f"torch_fl cannot load beside the device '{owner}': PyTorch has room for one device of "
            f"this kind in a process. Start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import "
            f"torch_fl before anything that loads '{owner}'."
        )


def load():
    """Load the core and the adapter, choose the platform; answers the module `_C`."""
    _check_torch()
    _check_owner()
    for library in (*FOLDER.glob("*.so"), *FOLDER.parent.glob("_C.*.so")):
        _check_whole(library)
    try:
        _C = importlib.import_module("torch_fl._C")
    except ImportError as error:
        raise ImportError(f"torch_fl's core cannot be loaded: {error}; {REINSTALL}") from None
    try:
        torch.ops.load_library(ADAPTER)
    except OSError as error:
        # PyTorch says which file, and keeps the loader's words as the cause.
        words = error.__cause__ or error
        raise ImportError(f"torch_fl's adapter cannot be loaded: {words}; {REINSTALL}") from None
    try:
        _C.options_check()
        # The adapter has registered the platforms that PyTorch itself drives by now.
        _C.platform_choose(None)
        torch.ops.flagos._load()
    except (RuntimeError, ValueError, LookupError) as error:
        raise ImportError(f"torch_fl cannot start: {error}") from error
    return _C


def put_fastbins():
    """Keep freed blocks of CUDA's allocator, once CUDA has started; see docs/allocator.md. Where the
    library is not there, or is of another CUDA, the allocator stays as it is."""
    try:
        torch.ops.load_library(TWIN_MEMORY)
    except OSError:
        return
    if torch.ops.flagos._put_fastbins():
        torch.ops.flagos._watch_twin_memory()
