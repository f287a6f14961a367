"""The core's allocator against c10's on a card: pairs of allocation and free, and recorded traces.

    python bench/card/alloc.py [--rounds 7] [--pairs 50000] [--passes 16] [--log FILE]

Both run in one process, in turns, over the same CUDA runtime: the core on platform cuda-direct, out
of the library that is installed, and c10's through c10_alloc.cpp, which is built here against
PyTorch's headers (a few seconds). Figures are nanoseconds, and medians of the ratio of neighbours,
ours over c10's, with the least and the largest. Bars: a pair costs no more than c10's, and no trace
has more reserved for what it allocated (peaks from an empty cache). The time of an event of a trace
is shown beside it. Exits with 1 where a bar is missed; --log takes each round. With --platform and
--source (a C file as bench/c/malloc_source.c) it runs without a card.
"""

import argparse
import collections
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIRS_BAR = 1.00


def folder_of(package):
    spec = importlib.util.find_spec(package)  # Found, not imported: nothing of it is needed here.
    if spec is None:
        raise SystemExit(f"{package} is not installed; PYTHONPATH can name where it lies")
    return pathlib.Path(spec.origin).parent


def compiler(language):
    named = os.environ.get("CXX" if language == "c++" else "CC")
    for name in (named, *(("g++", "clang++") if language == "c++" else ("gcc", "cc", "clang"))):
        if name and shutil.which(name):
            return name
    raise SystemExit(f"no compiler for {language} was found")


def call(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        words = " ".join(str(word) for word in command)
        raise SystemExit(f"{words}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_programs(folder):
    """The programs of bench/c over the installed library."""
    library = folder_of("torch_fl") / "lib"
    for name in ("alloc", "replay"):
        call(
            [compiler("c"), "-O2", "-std=gnu11", f"-I{ROOT}/include", "-o", folder / name]
            + [ROOT / "bench/c" / f"{name}.c", ROOT / "bench/c/source.c"]
            + [f"-L{library}", "-lflagos", f"-Wl,-rpath,{library}", "-lpthread", "-ldl"]
        )


def cuda_headers(torch):
    """The folder with CUDA's headers: a toolkit's, or those that pip put beside PyTorch."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    tops = [pathlib.Path(name) for name in (*named, "/usr/local/cuda")]
    if shutil.which("nvcc"):
        tops.append(pathlib.Path(shutil.which("nvcc")).resolve().parents[1])
    tops += torch.parent.glob("nvidia/*")
    for top in tops:
        for place in (top / "include", *top.glob("targets/*/include")):
            # A package of the runtime alone has the first without the second.
            if all((place / name).is_file() for name in ("cuda_runtime.h", "crt/host_config.h")):
                return place
    raise SystemExit("no folder with CUDA's headers was found; CUDA_HOME can name a toolkit")


def build_source(folder, file):
    """The other source as a library."""
    library = folder / "source.so"
    command = ["-O2", "-shared", "-fPIC", "-w", f"-I{ROOT}/bench/c", "-o", library, file]
    if file.suffix == ".c":
        call([compiler("c"), "-std=gnu11", *command])
    else:
        torch = folder_of("torch")
        call(
            [compiler("c++"), "-std=c++17", f"-I{torch}/include", f"-I{cuda_headers(torch)}"]
            + [*command, f"-L{torch}/lib", "-lc10_cuda", "-lc10", f"-Wl,-rpath,{torch}/lib"]
        )
    return library


def where_libraries_lie():
    """For the programs' loader: Python finds CUDA's runtime by itself where PyTorch's own paths do
    not name it, and a program in C does not."""
    torch = folder_of("torch")
    places = [os.environ.get("LD_LIBRARY_PATH"), torch / "lib", *torch.parent.glob("nvidia/*/lib")]
    return ":".join(str(place) for place in (*places, "/usr/local/cuda/lib64") if place)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ratios(rows, key):
    """By case or trace: (ours, other's, their ratio) of each round, whose two figures are
    neighbours in time."""
    rounds = collections.defaultdict(dict)
    for row in rows:
        turn = row.get("round", row.get("pass"))
        if turn is not None:
            ours = row["source"] == "device cache"
            rounds[row[key], turn]["ours" if ours else "other"] = row["ns"]
    result = collections.defaultdict(list)
    for (name, turn), pair in rounds.items():
        if key == "case" or turn > 0:  # The first pass of a trace fills the caches.
            result[name].append((pair["ours"], pair["other"], pair["ours"] / pair["other"]))
    return result


def spread(figures):
    ours, other, ratio = (sorted(column) for column in zip(*figures))
    middle = [statistics.median(column) for column in (ours, other, ratio)]
    return *middle, ratio[0], ratio[-1]


def show_pairs(rows):
    """Prints the table; answers the cases that miss the bar."""
    print(f"{'pair of alloc and free':24s} {'ours':>8s} {'other':>8s}  ratio (least .. largest)")
    missed = []
    for name, figures in ratios(rows, "case").items():
        ours, other, ratio, least, largest = spread(figures)
        over = ratio > PAIRS_BAR
        missed += [name] if over else []
        print(
            f"{name:24s} {ours:8.1f} {other:8.1f}  {ratio:.3f} ({least:.3f} .. {largest:.3f})"
            f"  {'MISSED' if over else 'ok'}"
        )
    return missed


def show_traces(rows):
    print(
        f"\n{'trace':18s} {'peak MiB, reserved/allocated: ours':>36s} {'other':>24s}"
        f"  ns an event: ours, other, ratio (least .. largest)"
    )
    peaks = collections.defaultdict(dict)
    for row in rows:
        if "reserved" in row:
            peaks[row["trace"]]["ours" if row["source"] == "device cache" else "other"] = row
    missed = []
    for path, figures in ratios(rows, "trace").items():
        name = pathlib.Path(path).stem
        shares, words = [], []
        for side in ("ours", "other"):
            row = peaks[path][side]
            shares.append(row["reserved"] / max(1, row["allocated"]))
            words.append(
                f"{row['reserved'] / 2**20:.1f}/{row['allocated'] / 2**20:.1f} = {shares[-1]:.4f}"
            )
        over = shares[0] > shares[1] + 1e-9
        missed += [name] if over else []
        ours, other, ratio, least, largest = spread(figures)
        print(
            f"{name:18s} {words[0]:>36s} {words[1]:>24s}  {ours:.1f}, {other:.1f}, "
            f"{ratio:.3f} ({least:.3f} .. {largest:.3f})  {'MISSED' if over else 'ok'}"
        )
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--passes", type=int, default=16, help="of each trace; the first fills")
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--platform", default="cuda-direct")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT / "bench/card/c10_alloc.cpp")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.pairs) < 1 or arguments.passes < 2:
        parser.error("there must be a round and a pair, and two passes")
    # Both with the settings that they have by themselves.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.pop(name, None)
    os.environ["LD_LIBRARY_PATH"] = where_libraries_lie()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        build_programs(folder)
        library = build_source(folder, arguments.source.resolve())
        traces = sorted((ROOT / "bench/c/traces").glob("*.trace"))
        missed = []
        for program, show, *words in (
            ("alloc", show_pairs, "-n", arguments.pairs, "-r", arguments.rounds),
            ("replay", show_traces, "-n", arguments.passes, *traces),
        ):
            rows = folder / f"{program}.jsonl"
            call([folder / program, "-p", arguments.platform, "-s", library, "-l", rows, *words])
            if arguments.log:
                with open(arguments.log, "a") as log:
                    log.write(rows.read_text().replace(f"{ROOT}/", ""))
            missed += show(rows_of(rows))
            sys.stdout.flush()  # What is measured is seen, should the rest be cut off.
    print("missed: " + ", ".join(missed) if missed else "no bar is missed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
