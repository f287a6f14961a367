"""What native CUDA and flagos on CUDA cost the host, in instructions and without a card.

    python bench/torch/idle_cuda.py LIBRARIES [ROW ...] [--calls] [--keep FOLDER]

Each side is a process of its own under callgrind, on a device whose kernels do nothing
(bench/cpp/idle_cuda.c); LIBRARIES is the folder with it, which target cpp_benches builds. A row is an
operator of bench/card/submit.py, without gradients, recorded for them or with its backward pass, or a
model of bench/card/workloads.py with fewer layers and an eighth of the width. Counted is what all
threads of the process execute, Python included, three times. The first time is left out, since what is
kept for later is made then. Of the others the lesser is shown, and `spread` is by how much they differ,
on the side where they differ more. A call of CUDA costs more than one of this device, so calls are counted
too: the last columns are how many the call or model made natively, and by how many flagos made more or
fewer of which.

--calls counts calls alone, without callgrind; --keep leaves what callgrind wrote in a folder. cuDNN is
off on both sides. The table goes to bench/results/idle-cuda.txt unless rows are named.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "card")]
from callgrind import instructions  # noqa: E402

SIDES = {"native": "cuda", "flagos": "flagos"}
ELEMENTS, CALLS, TURNS = 1024, 200, ("first", "second", "third")
TRAINED = ("add", "mul_scalar", "silu", "mm", "cat", "softmax", "layer_norm", "view", "index", "sdpa")
NARROWER = 8
# Arguments that make a model short.
MODELS = {
    "decode": dict(layers=4, tokens=8),  # And `short` of it.
    "train_fp32": dict(steps=2),
    "train_bf16": dict(steps=2),
    "train_for_loop": dict(steps=2),
    "bert_train": dict(layers=4, steps=2),
    "gptj": dict(times=2),
}


# --- one side ------------------------------------------------------------------------------------


def operators(torch, device):
    """{name: call}, each with the gradients' mode that it wants as attribute."""
    import submit

    functional = torch.nn.functional
    plain = submit.operators(torch, device, ELEMENTS)
    one, x = torch.ones(1, device=device), torch.ones(8, 32, device=device)
    layer = torch.nn.Linear(32, 32).to(device)
    plain["item"] = one.item
    plain["linear"] = lambda: functional.linear(x, layer.weight, layer.bias)
    recorded = submit.operators(torch, device, ELEMENTS, gradients=True)
    recorded["linear"] = plain["linear"]
    rows = {name: (False, call) for name, call in plain.items()}
    for name in (*TRAINED, "linear"):
        rows[name + ", recorded"] = True, recorded[name]
        rows[name + ", backward"] = True, backward(torch, recorded[name])
    return rows


def backward(torch, call):
    gradient = torch.ones_like(call()).detach()
    return lambda: torch.autograd.backward(call(), gradient)


def rows_of(torch, device, wanted):
    """Name, whether gradients are recorded, how often it is called and what, row by row."""
    import workloads

    for name, (gradients, call) in operators(torch, device).items():
        if not wanted or name in wanted:
            yield name, gradients, CALLS, call
    workloads.NARROWER = NARROWER
    for name, arguments in MODELS.items():
        if not wanted or name in wanted:
            torch.manual_seed(0)
            make = short if name == "decode" else lambda make, *given, **named: make(*given, **named)
            yield name, True, 1, make(workloads.ALL[name], device, **arguments)


def short(make, device, tokens, **arguments):
    """Generation ends by an exception: that all tokens are there is computed on the device."""

    class Enough(Exception):
        pass

    seen = []

    def count(ids, scores, **_):
        seen.append(None)
        if len(seen) == tokens:
            raise Enough
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    import torch

    run = make(device, tokens=tokens, stopping_criteria=[count], **arguments)

    def call():
        seen.clear()
        try:
            run()
        except Enough:
            pass

    return call


class Device:
    """The counters of the idle device in this process."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.library.idle_name.restype = ctypes.c_char_p
        self.library.idle_calls.restype = ctypes.c_uint64
        self.names = [
            self.library.idle_name(i).decode() for i in range(self.library.idle_functions())
        ]

    def calls(self):
        return {name: self.library.idle_calls(i) for i, name in enumerate(self.names)}


def run_side(side, libraries, answer, counting, wanted):
    """In a child, perhaps under callgrind: counts instructions and CUDA's calls of each row."""
    import torch

    if side == "flagos":
        import torch_fl

        assert torch_fl.platform()["name"] == "cuda"
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    counter = ctypes.CDLL(f"{libraries}/libcount_calls.so") if counting else None
    device = Device(f"{libraries}/libidle_cuda.so")
    found = {}
    for name, gradients, calls, call in rows_of(torch, SIDES[side], wanted):
        with torch.set_grad_enabled(gradients):
            for _ in range(2 if calls == 1 else 30):
                call()
            gc.collect()
            gc.disable()
            for turn in TURNS:
                before = device.calls()
                if counter:
                    counter.count_begin()
                for _ in range(calls):
                    call()
                if counter:
                    counter.count_end(f"{turn} {name}".encode())
                after = device.calls()
            gc.enable()
        made = {key: (after[key] - before[key]) / calls for key in after}
        found[name] = {"times": calls, "calls": {key: n for key, n in made.items() if n}}
        print(side, name, file=sys.stderr, flush=True)
    pathlib.Path(answer).write_text(json.dumps(found))


# --- both ----------------------------------------------------------------------------------------


def measure(side, libraries, counting, keep, wanted):
    """{row: {"times", "calls", "counts"}} of a side."""
    preload = [f"{libraries}/libidle_{name}.so" for name in ("cuda", "driver", "nvrtc")]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(preload),
        "TORCH_FL_PLATFORM": "cuda",
        "TORCH_FL_QUEUE": "0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "USE_PYTORCH_KERNEL_CACHE": "0",  # What this device's compiler makes is of no use to another.
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = f"{folder}/answer"
        command = [sys.executable, __file__, libraries, *wanted, "--side", side, "--answer", answer]
        if keep:
            keep = pathlib.Path(keep) / side
            keep.mkdir(parents=True, exist_ok=True)
        counts = {}
        if counting:
            counts = instructions(command, keep=keep, env=environment)
        else:
            subprocess.run([*command, "--calls"], env=environment, check=True)
        found = json.loads(pathlib.Path(answer).read_text())
    for name, row in found.items():
        row["counts"] = sorted(counts.get(f"{turn} {name}", 0) / row["times"] for turn in TURNS[1:])
    return found


def spread(counts):
    return (counts[1] - counts[0]) / max(counts[0], 1)


def difference(native, flagos):
    """Which calls flagos makes more or fewer of."""
    more = {
        key: flagos.get(key, 0) - native.get(key, 0) for key in sorted({*native, *flagos})
    }
    return "  ".join(f"{n:+g} {key}" for key, n in more.items() if abs(n) > 0.02)


def table(native, flagos):
    lines = [f"{'row':<22} {'native':>10} {'flagos':>10} {'ratio':>6} {'more':>9} {'spread':>7} calls"]
    for name, row in native.items():
        ours = flagos[name]
        a, b = row["counts"][0], ours["counts"][0]
        lines.append(
            f"{name:<22} {a:>10.0f} {b:>10.0f} {b / a if a else 0:>6.3f} {b - a:>+9.0f} "
            f"{max(spread(row['counts']), spread(ours['counts'])):>7.2%} "
            f"{sum(row['calls'].values()):.6g}  {difference(row['calls'], ours['calls'])}".rstrip()
        )
    return "\n".join(lines) + "\n"


def heading():
    import importlib.metadata

    commit = subprocess.run(
        ["git", "-C", BENCH, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    return (
        f"torch {importlib.metadata.version('torch')}, commit {commit}: instructions of the host for a "
        f"call, models for a run;\nwhat the columns mean is in bench/torch/idle_cuda.py\n\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("libraries")
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--keep")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    libraries = os.path.abspath(arguments.libraries)
    if arguments.side:
        return run_side(
            arguments.side, libraries, arguments.answer, not arguments.calls, arguments.rows
        )
    native, flagos = (
        measure(side, libraries, not arguments.calls, arguments.keep, arguments.rows)
        for side in SIDES
    )
    text = heading() + table(native, flagos)
    print(text, end="")
    if not arguments.rows and not arguments.calls:
        (BENCH / "results" / "idle-cuda.txt").write_text(text)


if __name__ == "__main__":
    main()
