"""python -m torch_fl conformance: the suite that every driver must pass, on one driver.

The suite is a library of its own that speaks to a driver's table and knows nothing of torch; it is
loaded here, when it is asked for, so that `_C` does not carry it into every process.
"""

import ctypes
import os
import subprocess
import sys

import torch_fl
from torch_fl import _lib

REPORT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


def _load():
    core = ctypes.CDLL(str(_lib.FOLDER / "libflagos.so"))
    core.fl_platform_driver.restype = ctypes.c_void_p
    suite = ctypes.CDLL(str(_lib.FOLDER / "libfl_conformance.so"))
    suite.fl_conformance_word.restype = ctypes.c_char_p
    suite.fl_conformance_run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, REPORT, ctypes.c_void_p]
    return core, suite


def run(arguments):
    chosen = torch_fl.platform()["name"]
    if arguments.driver not in (None, chosen):
        # A process has one platform; the other one needs a process of its own.
        command = [sys.executable, "-m", "torch_fl", "conformance", "--driver", arguments.driver]
        command += ["--cases", arguments.cases]
        return subprocess.call(command, env=dict(os.environ, TORCH_FL_PLATFORM=arguments.driver))

    core, suite = _load()

    def report(user, name, result, text):
        word = suite.fl_conformance_word(result).decode()
        reason = f": {text.decode()}" if text else ""
        print(f"{word:<10} {name.decode()}{reason}", flush=True)

    driver = core.fl_platform_driver()
    failed = suite.fl_conformance_run(driver, arguments.cases.encode(), REPORT(report), None)
    if failed:
        print(f"driver '{chosen}' does not conform" + (f": {failed} failed" if failed > 0 else ""))
        return 1
    print(f"driver '{chosen}' conforms")
    return 0
