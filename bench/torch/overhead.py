"""What one operator call costs on flagos beside the same call on its twin, on platform `cpu`.

Tensors are tiny, so that the time is the way to the kernel and not the kernel. Both sides run the
same kernel in the same process and take turns within each sample; the figure is the median of the
ratios. The raw samples go to bench/results/overhead.json, the table to overhead.txt.

usage: python bench/torch/overhead.py [--samples N] [--instructions COUNTER]

--instructions counts instructions by callgrind instead (minutes). COUNTER is libcount_calls.so,
which target cpp_benches builds.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parents[1]
RESULTS = BENCH / "results"
sys.path.insert(0, str(BENCH))
from callgrind import instructions  # noqa: E402


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
        "batch": torch.rand(2, 3, 4).to(device),
        "decoder": decoder(torch, device),
    }


def decoder(torch, device):
    """A step of a decoder so small that all of it is the way to the kernels."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).to(device).eval()
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return lambda: model(token, use_cache=False)


# kind, name, call. `typed` operators are those of hot_ops.def; `boxed` ones go through the router. A
# `model` is called a tenth as often.
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
    ("own", "linear", lambda torch, t: torch.nn.functional.linear(t["batch"], t["y"])),
    ("model", "decoder, 2 layers", lambda torch, t: t["decoder"]()),
]


def nanoseconds(torch, call, operands, rounds):
    start = time.perf_counter_ns()
    for _ in range(rounds):
        call(torch, operands)
    return round((time.perf_counter_ns() - start) / rounds)


def calls_of(kind, rounds):
    return rounds // 10 if kind == "model" else rounds


def measure(samples, rounds_wanted=100):
    import torch

    import torch_fl

    assert torch_fl.platform()["name"] == "cpu", "the twin of this comparison is the CPU"
    torch.set_num_threads(1)
    sides = {device: tensors(torch, device) for device in ("cpu", "flagos")}
    rows = []
    with torch.inference_mode(False), torch.no_grad():
        for kind, name, call in CASES:
            raw = {device: [] for device in sides}
            rounds = calls_of(kind, rounds_wanted)
            for device, operands in sides.items():
                nanoseconds(torch, call, operands, rounds)
            for sample in range(samples):
                order = list(sides.items())
                for device, operands in order if sample % 2 else reversed(order):
                    raw[device].append(nanoseconds(torch, call, operands, rounds))
            rows.append({"kind": kind, "name": name, "nanoseconds": raw})
    return rows


def table(rows):
    lines = [f"{'kind':<6} {'operator':<20} {'twin ns':>9} {'flagos ns':>10} {'ratio':>7} "
             f"{'p10':>6} {'p90':>6} {'extra ns':>9}"]  # fmt: skip
    for row in rows:
        twin, flagos = row["nanoseconds"]["cpu"], row["nanoseconds"]["flagos"]
        ratios = sorted(b / a for a, b in zip(twin, flagos))
        extra = statistics.median(b - a for a, b in zip(twin, flagos))
        lines.append(
            f"{row['kind']:<6} {row['name']:<20} {statistics.median(twin):>9.0f} "
            f"{statistics.median(flagos):>10.0f} {statistics.median(ratios):>7.2f} "
            f"{ratios[len(ratios) // 10]:>6.2f} {ratios[len(ratios) * 9 // 10]:>6.2f} {extra:>9.0f}"
        )
    return "\n".join(lines) + "\n"


# --- instructions --------------------------------------------------------------------------------


def run_cases(counter, rounds):
    """In a child under callgrind: every case on both sides, each counted by itself."""
    import ctypes

    import torch

    import torch_fl  # noqa: F401

    library = ctypes.CDLL(counter)
    torch.set_num_threads(1)
    sides = {device: tensors(torch, device) for device in ("cpu", "flagos")}
    with torch.no_grad():
        for number, (kind, _, call) in enumerate(CASES):
            for device, operands in sides.items():
                nanoseconds(torch, call, operands, 20)
                library.count_begin()
                nanoseconds(torch, call, operands, calls_of(kind, rounds))
                library.count_end(f"{number} {device}".encode())


def count(counter, rounds=200):
    found = instructions(
        [sys.executable, __file__, "--run", counter, str(rounds)],
        env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    )
    lines = [f"{'kind':<6} {'operator':<20} {'twin':>9} {'flagos':>9} {'extra':>8}"]
    for number, (kind, name, _) in enumerate(CASES):
        calls = calls_of(kind, rounds)
        twin, flagos = (found[f"{number} {device}"] / calls for device in ("cpu", "flagos"))
        lines.append(f"{kind:<6} {name:<20} {twin:>9.0f} {flagos:>9.0f} {flagos - twin:>8.0f}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=150)
    parser.add_argument("--instructions", metavar="COUNTER")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_cases(arguments.run[0], int(arguments.run[1]))
        return
    RESULTS.mkdir(exist_ok=True)
    if arguments.instructions:
        text = count(arguments.instructions)
        print(text, end="")
        (RESULTS / "overhead-instructions.txt").write_text(text)
        return
    rows = measure(arguments.samples)
    text = table(rows)
    print(text, end="")
    (RESULTS / "overhead.txt").write_text(text)
    (RESULTS / "overhead.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
