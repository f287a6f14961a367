"""The cost of a shadow: nanoseconds on this machine, and instructions by callgrind, which do not
depend on what else the machine does. The raw log goes to bench/results/.

usage: python bench/cpp/bind.py [build folder, by default build/native] [--instructions]
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = [
    "empty_frame",
    "one_shadow",
    "two_shadows",
    "three_shadows",
    "three_shadows_one_written",
    "same_tensor_twice",
    "two_on_one_storage",
    "eight_dimensions",
    "handle",
    "three_handles",
]


def instructions(program, case, rounds):
    """Instructions of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", program, case]
            + [str(rounds)],
            capture_output=True,
            text=True,
            check=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def main(arguments):
    count = "--instructions" in arguments
    folders = [argument for argument in arguments if not argument.startswith("-")]
    build = pathlib.Path(folders[0] if folders else ROOT / "build" / "native")
    cmake = shutil.which("cmake") or str(pathlib.Path(sys.executable).parent / "cmake")
    subprocess.run([cmake, "--build", str(build), "--target", "bench_bind"], check=True, stdout=2)
    program = str(build / "bench" / "cpp" / "bench_bind")
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    if count:
        few, many = 1000, 11000
        lines += ["", f"{'case':<28} {'instructions':>12}"]
        for case in CASES:
            spent = instructions(program, case, many) - instructions(program, case, few)
            lines.append(f"{case:<28} {spent / (many - few):>12.1f}")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    (results / "bind.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
