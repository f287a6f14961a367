"""Where each undefined symbol of the adapter comes from: PyTorch's two libraries, libflagos, and the
C and C++ runtimes. Whatever else it needed would be a library that some machine does not have.

usage: symbols.py libtorch_fl.so libflagos.so folder-of-torch-libraries
"""

import glob
import os
import re
import subprocess
import sys

ALLOWED = {
    "libc10.so",
    "libtorch_cpu.so",
    "libflagos.so",
    "libc.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


def symbols(path, *options):
    """Names in the dynamic table, without versions."""
    text = subprocess.run(["nm", "-D", *options, path], capture_output=True, text=True, check=True)
    for line in text.stdout.splitlines():
        kind, name = line.split()[-2:]
        yield kind, name.split("@")[0]


def needed(path):
    text = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def loaded(name, torch_folder, flagos):
    """The file that the name stands for."""
    if name == "libflagos.so":
        return flagos
    inside = os.path.join(torch_folder, name)
    if os.path.exists(inside):
        return inside
    text = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    found = re.search(rf"\b{re.escape(name)} .*=> (\S+)", text)
    if found:
        return found.group(1)
    candidates = glob.glob(f"/lib*/{name}") + glob.glob(f"/lib/*/{name}")
    return candidates[0] if candidates else None


def main(adapter, flagos, torch_folder):
    strangers = needed(adapter) - ALLOWED
    assert not strangers, f"{adapter} needs {sorted(strangers)}"
    defined = set()
    for name in sorted(ALLOWED):
        path = loaded(name, torch_folder, flagos)
        if path is not None:
            defined.update(name for _, name in symbols(path, "--defined-only"))
    wanted = {name for kind, name in symbols(adapter, "--undefined-only") if kind == "U"}
    assert len(wanted) > 100, "no symbols were read"
    missing = sorted(wanted - defined)
    assert not missing, f"{len(missing)} symbols come from nowhere allowed: {missing[:10]}"
    own = {name for name in wanted if name.startswith("fl_")}
    assert own, "the adapter does not use libflagos"
    print(f"{len(wanted)} undefined symbols, {len(own)} of them of libflagos, all accounted for")


if __name__ == "__main__":
    main(*sys.argv[1:])
