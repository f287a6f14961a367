"""The build backend of pyproject.toml: scikit-build-core, with one addition.

The adapter is compiled against the torch that will load it. Where the environment that pip builds
for has a torch, that one is used although pip's isolated build hides it (src/torch/find_torch.py);
only where it has none is torch a build requirement, so that `pip install .` does not fetch several
gigabytes a second time.

An editable install is a path to python/ and nothing more: `make build` puts the shared objects there.
(scikit-build-core's own would put an import hook in front of PYTHONPATH.)
"""

import base64
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403

TORCH = "torch>=2.11,<2.12"
ROOT = pathlib.Path(__file__).resolve().parents[1]


def _has_torch():
    # -I: without PYTHONPATH, through which pip hides the environment.
    question = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([sys.executable, "-I", "-c", question]).returncode == 0


def get_requires_for_build_wheel(config_settings=None):
    requires = _backend.get_requires_for_build_wheel(config_settings)
    return requires if _has_torch() else [*requires, TORCH]


def get_requires_for_build_editable(config_settings=None):
    return []


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    files = {"torch_fl.pth": f"{ROOT / 'python'}\n".encode()}
    with tempfile.TemporaryDirectory() as folder:
        name = _backend.prepare_metadata_for_build_editable(folder, config_settings)
        info = pathlib.Path(folder, name)
        for path in info.rglob("*"):
            if path.is_file() and path.name != "RECORD":
                files[f"{name}/{path.relative_to(info)}"] = path.read_bytes()
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{name}/RECORD"] = f"{record}{name}/RECORD,,\n".encode()
    wheel = name.replace(".dist-info", "-py3-none-any.whl")
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel
