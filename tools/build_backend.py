"""The build backend of pyproject.toml: scikit-build-core, with one addition.

The adapter is compiled against the torch that will load it. Where the environment that pip builds
for has a torch, that one is used although pip's isolated build hides it (src/torch/find_torch.py);
only where it has none is torch a build requirement, so that `pip install .` does not fetch several
gigabytes a second time.
"""

import subprocess
import sys

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403

TORCH = "torch>=2.11,<2.12"


def _has_torch():
    # -I: without PYTHONPATH, through which pip hides the environment.
    question = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([sys.executable, "-I", "-c", question]).returncode == 0


def get_requires_for_build_wheel(config_settings=None):
    requires = _backend.get_requires_for_build_wheel(config_settings)
    return requires if _has_torch() else [*requires, TORCH]
