"""Tell CMake where torch lies: version, C++11 ABI flag, library folder, include folders.

Prints them joined by ';', a CMake list. An isolated build (pip) hides the packages of the
environment it builds for, although that environment's torch is the one that the adapter will meet;
the same interpreter in isolated mode (-I) sees it, so that one is asked first.
"""

import os
import subprocess
import sys

QUESTION = """
import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit("no torch in " + sys.executable + "; install it with: pip install torch==2.11.0")
import torch, torch.utils.cpp_extension as cpp
print(";".join([torch.__version__, str(int(torch._C._GLIBCXX_USE_CXX11_ABI)),
                cpp.library_paths()[0], *cpp.include_paths()]))
"""


def main():
    # An adapter that was built earlier must not take part in building the next one.
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    for flags in (["-I"], []):
        answer = subprocess.run(
            [sys.executable, *flags, "-W", "ignore", "-c", QUESTION],
            env=environment,
            capture_output=True,
            text=True,
        )
        if answer.returncode == 0:
            print(answer.stdout.strip().splitlines()[-1])
            return
    sys.exit(answer.stderr.strip().splitlines()[-1])


main()
