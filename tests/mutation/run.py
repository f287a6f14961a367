"""Breaks each rule of boxing once and shows which tests notice.

Works on a copy of the tracked files in build/mutation, so that the tree and its build stay as they
are. Exit status 1 where a broken rule went unnoticed.

usage: python tests/mutation/run.py [--only TEXT] [--jobs N]
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

import rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build/mutation"


def sh(*command, **options):
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def make_copy():
    """The tracked files as they are now; unchanged ones keep their times, so builds are short."""
    names = sh("git", "ls-files", cwd=ROOT, check=True).stdout.split("\n")
    for name in filter(None, names):
        source, target = ROOT / name, COPY / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def build(jobs):
    native = COPY / "build/native"
    cmake = pathlib.Path(sys.executable).with_name("cmake")
    ninja = pathlib.Path(sys.executable).with_name("ninja")
    if not (native / "build.ninja").exists():
        configure = (cmake, "-S", COPY, "-B", native, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}")
        options = (f"-DPython_EXECUTABLE={sys.executable}", "-DFL_BUILD_TESTS=OFF")
        sh(*configure, *options, check=True)
    done = sh(cmake, "--build", native, "-j", str(jobs))
    if done.returncode == 0:
        done = sh(cmake, "--install", native, "--prefix", COPY / "python")
    if done.returncode != 0:
        sys.exit(f"the mutated source does not compile\n{done.stdout[-4000:]}")


def run_tests(names):
    """(tests that failed, the run's last line)."""
    environment = dict(os.environ, PYTHONPATH=str(COPY / "python"), TORCH_FL_PLATFORM="cpu")
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no")
    files = [f"tests/torch/{name}" for name in names]
    done = sh(*pytest, *files, cwd=COPY, env=environment, timeout=1800)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed, done.returncode, (done.stdout.strip().split("\n") or [""])[-1]


def try_one(mutation, jobs):
    path = COPY / mutation.file
    text = path.read_text()
    if text.count(mutation.before) != 1:
        sys.exit(f"{mutation.file} has no single '{mutation.before}': mend rules.py")
    path.write_text(text.replace(mutation.before, mutation.after))
    try:
        build(jobs)
        failed, status, closing = run_tests(mutation.tests)
    finally:
        path.write_text(text)
    crashed = status not in (0, 1)
    noticed = bool(failed) or (crashed and mutation.threads)
    print(f"{'noticed' if noticed else 'MISSED'}: {mutation.rule}")
    if crashed:
        print(f"    the run ended with status {status}: {closing}")
    for name in failed[:5]:
        print(f"    {name}")
    if len(failed) > 5:
        print(f"    and {len(failed) - 5} more")
    sys.stdout.flush()
    return noticed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="rules whose sentence holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    make_copy()
    build(arguments.jobs)
    chosen = [m for m in rules.MUTATIONS if arguments.only in m.rule]
    files = sorted({name for mutation in chosen for name in mutation.tests})
    failed, status, closing = run_tests(files)
    print(f"unbroken: {closing}")
    if status != 0:
        sys.exit(f"the tests fail before anything is broken: {failed}")
    noticed = sum(try_one(mutation, arguments.jobs) for mutation in chosen)
    print(f"{noticed} of {len(chosen)} broken rules were noticed")
    return noticed != len(chosen)


if __name__ == "__main__":
    sys.exit(main())
