"""Writes a stub for each CUDA function that torch's libraries want: it says its name and aborts.

usage: idle_stubs.py NM FOLDER_OF_TORCH'S_LIBRARIES OUTPUT_FOLDER

Stubs are weak, so what idle_cuda.c and idle_driver.c define takes their place. Functions of the
driver are also looked for among the words of c10's library, which asks for them by name at run
time. The third file gives each function the version that its library gives it, because a loader
prefers a definition of the version that it was asked for.
"""

import pathlib
import re
import subprocess
import sys

RUNTIME = re.compile(r"((__)?cuda|cublas|cudnn|cufft|curand|cusolver|cusparse)[A-Z]\w*$")
DRIVER = re.compile(r"(cu(?!File)|nvrtc)[A-Z]\w*$")
NODE = "libcudart.so.13"
REAL = {"cudnnGetVersion", "cublasLtGetVersion"}  # Answers that need no device.

HEAD = """#include <stdio.h>
#include <stdlib.h>

static _Noreturn void missing(const char *name) {
    fprintf(stderr, "the idle device has no %s\\n", name);
    abort();
}

#define STUB(name)                                                       \\
    __attribute__((weak, visibility("default"))) void name(void);        \\
    void name(void) {                                                    \\
        missing(#name);                                                  \\
    }

"""


def wanted(nm, folder):
    """{name: version or None} of the functions that shared objects in `folder` do not define."""
    found = {}
    for path in sorted(folder.glob("*.so")):
        listed = subprocess.run(
            [nm, "-D", "--undefined-only", path], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            name, _, version = line.split()[-1].partition("@")
            found[name] = version or None
    return found


def stubs(names):
    return HEAD + "".join(f"STUB({name})\n" for name in sorted(names))


def versions(functions):
    nodes = {NODE: ["*"]}
    for name, version in sorted(functions.items()):
        nodes.setdefault(version or NODE, []).append(name)
    return "\n".join(
        f"{node} {{ global: {' '.join(f'{name};' for name in names)} }};"
        for node, names in nodes.items()
    )


def main():
    nm, folder, output = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    functions = wanted(nm, folder)
    runtime = {name: version for name, version in functions.items() if RUNTIME.match(name) and name not in REAL}
    words = re.findall(rb"(?<=\0)cu[A-Z]\w+(?=\0)", (folder / "libc10_cuda.so").read_bytes())
    driver = {name for name in [*functions, *map(bytes.decode, words)] if DRIVER.match(name)}
    (output / "idle_cuda_stubs.c").write_text(stubs(runtime))
    (output / "idle_driver_stubs.c").write_text(stubs(driver))
    (output / "idle_cuda.map").write_text(versions(runtime))


if __name__ == "__main__":
    main()
