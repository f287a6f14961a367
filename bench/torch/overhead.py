"""What one operator call costs on flagos beside the same call on its twin, on platform `cpu`.

Tensors are tiny, so that the time is the way to the kernel and not the kernel. Both sides run the
same kernel in the same process and take turns within each sample; the figure is the median of the
ratios. The raw samples go to bench/results/overhead.json, the table to overhead.txt.

usage: python bench/torch/overhead.py [--samples N] [--instructions]

--instructions counts instructions by callgrind instead (minutes): the whole process is counted at
two numbers of calls, and the difference is what the calls took.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


def tensors(torch, device):
    torch.manual_seed(0)
    x = torch.rand(4, 4).to(device)
    return {
        "x": x,
        "y": torch.rand(4, 4).to(device),
        "v": torch.rand(4).to(device),
        "out": torch.empty(4, 4, device=device),
        "index": torch.tensor([1, 2], device=device),
        "many": [torch.rand(4).to(device) for _ in range(20)],
    }


# kind, name, call. `typed` operators are those of hot_ops.def; `boxed` ones go through the router.
CASES = [
    ("typed", "add", lambda torch, t: torch.add(t["x"], t["y"])),
    ("typed", "mul_", lambda torch, t: t["out"].mul_(t["y"])),
    ("typed", "mm", lambda torch, t: torch.mm(t["x"], t["y"])),
    ("typed", "relu", lambda torch, t: torch.relu(t["x"])),
    ("typed", "sum", lambda torch, t: t["x"].sum()),
    ("typed", "softmax", lambda torch, t: torch.softmax(t["x"], -1)),
    ("typed", "cat of 2", lambda torch, t: torch.cat([t["x"], t["y"]])),
    ("typed", "index_select", lambda torch, t: torch.index_select(t["x"], 0, t["index"])),
    ("boxed", "addmv", lambda torch, t: torch.addmv(t["v"], t["x"], t["v"])),
    ("boxed", "add.out", lambda torch, t: torch.add(t["x"], t["y"], out=t["out"])),
    ("boxed", "asinh", lambda torch, t: torch.asinh(t["x"])),
    ("boxed", "index", lambda torch, t: t["x"][t["index"]]),
    ("boxed", "sort", lambda torch, t: torch.sort(t["v"])),
    ("boxed", "_foreach_add of 20", lambda torch, t: torch._foreach_add(t["many"], 1.0)),
    ("view", "view", lambda torch, t: t["x"].view(2, 8)),
    ("view", "transpose", lambda torch, t: t["x"].transpose(0, 1)),
    ("view", "select", lambda torch, t: t["x"][1]),
    ("view", "unfold", lambda torch, t: t["x"].unfold(0, 2, 1)),
    ("own", "empty", lambda torch, t: torch.empty(4, device=t["x"].device)),
    ("own", "copy_", lambda torch, t: t["out"].copy_(t["x"])),
    ("own", "to a dtype", lambda torch, t: t["x"].to(torch.float64)),
]


def seconds(torch, call, operands, rounds):
    start = time.perf_counter()
    for _ in range(rounds):
        call(torch, operands)
    return (time.perf_counter() - start) / rounds


def measure(samples, rounds=300):
    import torch

    import torch_fl

    assert torch_fl.platform()["name"] == "cpu", "the twin of this comparison is the CPU"
    torch.set_num_threads(1)
    sides = {device: tensors(torch, device) for device in ("cpu", "flagos")}
    rows = []
    with torch.inference_mode(False), torch.no_grad():
        for kind, name, call in CASES:
            raw = {device: [] for device in sides}
            for device, operands in sides.items():
                seconds(torch, call, operands, rounds)
            for sample in range(samples):
                order = list(sides.items())
                for device, operands in order if sample % 2 else reversed(order):
                    raw[device].append(seconds(torch, call, operands, rounds))
            rows.append({"kind": kind, "name": name, "seconds": raw})
    return rows


def table(rows):
    lines = [f"{'kind':<6} {'operator':<20} {'twin ns':>9} {'flagos ns':>10} {'ratio':>7} "
             f"{'p10':>6} {'p90':>6} {'extra ns':>9}"]  # fmt: skip
    for row in rows:
        twin, flagos = row["seconds"]["cpu"], row["seconds"]["flagos"]
        ratios = sorted(b / a for a, b in zip(twin, flagos))
        extra = statistics.median(b - a for a, b in zip(twin, flagos)) * 1e9
        lines.append(
            f"{row['kind']:<6} {row['name']:<20} {statistics.median(twin) * 1e9:>9.0f} "
            f"{statistics.median(flagos) * 1e9:>10.0f} {statistics.median(ratios):>7.2f} "
            f"{ratios[len(ratios) // 10]:>6.2f} {ratios[len(ratios) * 9 // 10]:>6.2f} {extra:>9.0f}"
        )
    return "\n".join(lines) + "\n"


# --- instructions --------------------------------------------------------------------------------


def run_case(number, device, rounds):
    """In a child under callgrind: one case, nothing else."""
    import torch

    import torch_fl  # noqa: F401

    torch.set_num_threads(1)
    operands = tensors(torch, device)
    call = CASES[number][2]
    with torch.no_grad():
        for _ in range(rounds):
            call(torch, operands)


def instructions(number, device, rounds):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
            + [sys.executable, __file__, "--run", str(number), device, str(rounds)],
            capture_output=True,
            text=True,
            # Python's hashing decides how dictionaries of modules are walked.
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr[-2000:]
    return int(found.group(1))


def count(few=200, many=2200):
    lines = [f"{'kind':<6} {'operator':<20} {'twin':>9} {'flagos':>9} {'extra':>8}"]
    print(lines[0], flush=True)
    for number, (kind, name, _) in enumerate(CASES):
        spent = {
            device: (instructions(number, device, many) - instructions(number, device, few))
            / (many - few)
            for device in ("cpu", "flagos")
        }
        lines.append(
            f"{kind:<6} {name:<20} {spent['cpu']:>9.0f} {spent['flagos']:>9.0f} "
            f"{spent['flagos'] - spent['cpu']:>8.0f}"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        return run_case(int(arguments.run[0]), arguments.run[1], int(arguments.run[2]))
    RESULTS.mkdir(exist_ok=True)
    if arguments.instructions:
        (RESULTS / "overhead-instructions.txt").write_text(count())
        return None
    rows = measure(arguments.samples)
    text = table(rows)
    print(text, end="")
    (RESULTS / "overhead.txt").write_text(text)
    (RESULTS / "overhead.json").write_text(json.dumps(rows))
    return None


if __name__ == "__main__":
    main()
