"""python -m torch_fl conformance: the suite that every driver must pass, on one driver.

The suite is a library of its own that speaks to a driver's table and knows nothing of torch; it is
loaded here, when it is asked for, so that `_C` does not carry it into every process.

In a working copy of the source, a chip that is not there is served by its fake, and the report
says so.
"""

import ctypes
import os
import pathlib
import subprocess
import sys

import torch_fl
from torch_fl import _C, _lib

# Built by target `fakes`; nothing of the kind is installed.
FAKES = pathlib.Path(__file__).resolve().parents[2] / "build" / "native" / "fakes"
REPORT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


def _load():
    core = ctypes.CDLL(str(_lib.FOLDER / "libflagos.so"))
    core.fl_platform_driver.restype = ctypes.c_void_p
    suite = ctypes.CDLL(str(_lib.FOLDER / "libfl_conformance.so"))
    suite.fl_conformance_word.restype = ctypes.c_char_p
    suite.fl_conformance_run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, REPORT, ctypes.c_void_p]
    return core, suite


def _loaded_fake():
    """The path of a fake runtime in this process; None where the runtime is the vendor's."""
    with open("/proc/self/maps") as lines:
        paths = {line.split(maxsplit=5)[5].strip() for line in lines if ".so" in line}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        if hasattr(library, "fl_fake_calls"):
            return path
    return None


def _environment(name, reason):
    """For the process whose platform this is: as here, unless `reason` says why it cannot be used."""
    environment = dict(os.environ, TORCH_FL_PLATFORM=name)
    if reason and (FAKES / name).is_dir() and "TORCH_FL_VENDOR_PATH" not in environment:
        print(f"{reason}: its fake is used", flush=True)
        environment["TORCH_FL_VENDOR_PATH"] = str(FAKES / name)
    return environment


class _Report:
    """Prints a line a case. It is called from C, which cannot pass an exception on: the first one is
    kept, and nothing is printed after it."""

    def __init__(self, word):
        self.word, self.cases, self.skipped, self.error = word, 0, 0, None

    def __call__(self, user, name, result, text):
        word = self.word(result).decode()
        self.cases += 1
        self.skipped += word == "skipped"
        reason = f": {text.decode(errors='replace')}" if text else ""
        try:
            if self.error is None:
                print(f"{word:<10} {name.decode()}{reason}", flush=True)
        except BaseException as error:
            self.error = error


def run(arguments):
    failure = torch_fl._failure
    chosen = torch_fl.platform()["name"] if failure is None else None
    if arguments.driver not in (None, chosen):
        reasons = {entry["name"]: entry["reason"] for entry in _C.platforms()}
        if arguments.driver not in reasons:
            names = ", ".join(sorted(reasons))
            print(f"there is no platform '{arguments.driver}'; there are {names}", file=sys.stderr)
            return 2
        # A process has one platform; the other one needs a process of its own.
        command = [sys.executable, "-m", "torch_fl", "conformance", "--driver", arguments.driver]
        command += ["--cases", arguments.cases]
        environment = _environment(arguments.driver, reasons[arguments.driver])
        if environment == dict(os.environ):
            print(failure, file=sys.stderr)  # It is this platform that could not be taken.
            return 1
        return subprocess.call(command, env=environment)

    core, suite = _load()

    report = _Report(suite.fl_conformance_word)
    driver = core.fl_platform_driver()
    fake = _loaded_fake()
    served = f", served by the fake {fake}" if fake else ""
    failed = suite.fl_conformance_run(driver, arguments.cases.encode(), REPORT(report), None)
    if report.error is not None:
        raise report.error
    if not report.cases:
        print(f"no case's name begins like '{arguments.cases}'", file=sys.stderr)
        return 2
    if failed:
        count = f": {failed} failed" if failed > 0 else ""
        print(f"driver '{chosen}' does not conform{count}{served}")
        return 1
    skipped = f"; {report.skipped} of {report.cases} cases skipped" if report.skipped else ""
    print(f"driver '{chosen}' conforms{served}{skipped}")
    return 0
