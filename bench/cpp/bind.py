"""The cost of a shadow: nanoseconds on this machine, and instructions by callgrind, which do not
depend on what else the machine does. The raw log goes to bench/results/.

usage: python bench/cpp/bind.py [build folder, by default build/native] [--instructions]
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from callgrind import instructions  # noqa: E402

ROUNDS = 10000


def main(arguments):
    folders = [argument for argument in arguments if not argument.startswith("-")]
    build = pathlib.Path(folders[0] if folders else ROOT / "build" / "native")
    cmake = shutil.which("cmake") or str(pathlib.Path(sys.executable).parent / "cmake")
    subprocess.run([cmake, "--build", str(build), "--target", "cpp_benches"], check=True, stdout=2)
    program = str(build / "bench" / "cpp" / "bench_bind")
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    if "--instructions" in arguments and shutil.which("valgrind"):
        text += f"\n{'case':<28} {'instructions':>12}\n"
        for name, total in sorted(instructions([program, str(ROUNDS)]).items()):
            text += f"{name:<28} {total / ROUNDS:>12.1f}\n"
    print(text, end="")
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    (results / "bind.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
