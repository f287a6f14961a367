"""python -m torch_fl env: what a bug report should hold.

Looks at versions and settings only: it runs no operator, so that it works where nothing else does.
"""

import importlib.metadata
import os
import re
import sys

# Packages that a report about a device is about, beside torch itself.
PACKAGES = (
    "accelerate",
    "diffusers",
    "flag_gems",
    "lightning",
    "numpy",
    "safetensors",
    "sentence-transformers",
    "torchaudio",
    "torchmetrics",
    "torchvision",
    "transformers",
    "triton",
)
# Variables that change what happens; nothing else of the environment is shown.
VARIABLES = re.compile(
    r"(TORCH_|PYTORCH_|FLAGOS_|CUDA_|OMP_|MKL_|ASCEND_|MUSA_|NCCL_)\w+|LD_(PRELOAD|LIBRARY_PATH)"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY")


def _processor():
    try:
        with open("/proc/cpuinfo") as lines:
            models = [line for line in lines if line.startswith("model name")]
        names = [line.split(":", 1)[1].strip() for line in models]
    except OSError:
        names = []
    return f"{os.cpu_count()} x {names[0]}" if names else f"{os.cpu_count()} processors"


def _system():
    try:
        with open("/etc/os-release") as lines:
            release = dict(line.rstrip().split("=", 1) for line in lines if "=" in line)
        return release.get("PRETTY_NAME", "").strip('"')
    except OSError:
        return ""


def _versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def collect():
    """Everything as plain values; "error" stands for "info" where torch_fl cannot be used."""
    facts = {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "system": _system(),
        "processor": _processor(),
        "packages": _versions(),
        "variables": {
            name: "(not shown)" if SECRET.search(name) else value
            for name, value in sorted(os.environ.items())
            if VARIABLES.fullmatch(name)
        },
    }
    import torch

    facts["torch"] = {
        "version": torch.__version__,
        "revision": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
    }
    try:
        import torch_fl

        if torch_fl._failure is not None:
            raise torch_fl._failure
        from torch_fl import _info

        facts["info"] = _info.collect()
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def text(facts):
    """The page to paste into a report."""
    torch = facts["torch"]
    lines = [
        f"python     {facts['python']} ({facts['executable']})",
        f"system     {facts['system']}, {facts['processor']}",
        f"torch      {torch['version']} ({torch['revision']}), CUDA {torch['cuda']}, "
        f"HIP {torch['hip']}, {torch['threads']} threads",
    ]
    for title, names in (("packages", facts["packages"]), ("variables", facts["variables"])):
        lines += ["", title, *(f"  {name} {value}" for name, value in names.items())]
        if not names:
            lines.append("  none")
    lines.append("")
    if "info" in facts:
        from torch_fl import _info

        lines += [_info.text(facts["info"])]
    else:
        lines.append(f"torch_fl cannot be used: {facts['error']}")
    return "\n".join(lines)
