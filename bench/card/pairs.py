"""Time workloads on native CUDA, on flagos and with the launch queue, turn and turn about.

    python bench/card/pairs.py [decode train_fp32 ...] [--sides cuda,flagos,queue] [--rounds 7]
        [--short SECONDS] [--log FILE] [--done FILE]

Each process loads a workload once and runs it when it is told to. A virtual machine's processor
changes its speed by half from one second to the next, so each run is timed in units of a fixed loop
of Python that the same process runs just before and after it; a run whose two loops differ by more
than a tenth is done again. The figure of a round is native time over the side's time in those units
(in seconds where the GPU is what is waited for): above 1 the side is faster. What each run computed is hashed and compared, bit for bit, and the peaks
of memory are compared. Behind the median and the spread of the rounds stands where the median lies with
95 % confidence. Each row of the log is one round. --short makes short pieces of the workloads of SHORT
in workloads.py, as many rounds as fit into the seconds. With --done, workloads that the file names
are left out and finished ones are added, so that a run that was cut goes on where it stopped. Exits
with 1 where a bar was missed. Needs a CUDA device; workloads are those of workloads.py.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sides as processes  # noqa: E402

# The least median of native time over the side's. What is not named here is shown and not judged.
BARS = {
    "flagos": dict.fromkeys(
        ("decode", "train_fp32", "train_bf16", "gptj", "unet", "resnet_train", "bert_train"), 1.0
    ),
    "queue": {
        "decode": 1.4,
        "decode_b8": 1.3,
        "unet": 1.2,
        "vit_b1": 1.2,
        "bert_b1": 1.2,
        "train_50": 1.2,
        "train_50_for_loop": 1.2,
        "gemm": 0.99,
        "bert_b64": 0.99,
    },
}
# Bound by the GPU, whose time the processor's speed does not change: compared in seconds.
IN_SECONDS = ("gemm", "bert_b64")
MEMORY_MOST = {"flagos": 1.01, "queue": 1.02}  # Of native's peaks.


def reference_seconds():
    """How long this processor takes at present for a fixed piece of work, the unit of a run."""
    start = time.perf_counter()
    total = 0
    for i in range(200_000):
        total += i * i % 7
    return time.perf_counter() - start


def digest(torch, outputs):
    """One hash over the bits of all tensors and numbers among the outputs."""
    sha = hashlib.sha256()
    for output in outputs:
        if isinstance(output, torch.Tensor):
            flat = output.detach().cpu().contiguous().flatten().view(torch.uint8)
            sha.update(flat.numpy().tobytes())
        else:
            sha.update(repr(output).encode())
    return sha.hexdigest()[:16]


def timed(torch, device, run):
    """A run between two loops of one speed."""
    processes.finish(torch, device)
    torch.cuda.reset_peak_memory_stats()
    for attempt in range(3):
        before = reference_seconds()
        start = time.perf_counter()
        outputs = run()
        processes.finish(torch, device)
        seconds = time.perf_counter() - start
        after = reference_seconds()
        if abs(before - after) < 0.1 * max(before, after):
            break
    return outputs, {
        "seconds": seconds,
        "units": 2 * seconds / (before + after),
        "attempts": attempt + 1,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def worker(torch, device):
    import workloads

    loaded = {}

    def respond(line):
        command, _, name = line.partition(" ")
        if command == "load":
            loaded.clear()
            torch.cuda.empty_cache()
            torch.manual_seed(0)
            name, _, length = name.partition(" ")
            short = workloads.SHORT[name] if length == "short" else {}
            loaded["run"] = workloads.ALL[name](device, **short)
            loaded["run"]()
            return {}
        with processes.one_processor():
            outputs, answer = timed(torch, device, loaded["run"])
        return answer | ({"hash": digest(torch, outputs)} if name == "hash" else {})

    return respond


def median_bounds(ratios):
    """Where the median lies with 95 % confidence, of ratios in their order: each is as likely above it
    as below."""
    reach = 0.98 * len(ratios) ** 0.5
    middle = (len(ratios) - 1) / 2
    low, high = math.floor(middle - reach), math.ceil(middle + reach)
    return ratios[max(0, low)], ratios[min(len(ratios) - 1, high)]


def judge(name, side, rounds):
    """A line about one side's rounds against native's, and whether its bars were met."""
    native, ours = ([row[key] for row in rounds] for key in (processes.NATIVE, side))
    time_key = "seconds" if name in IN_SECONDS else "units"
    ratios = sorted(a[time_key] / b[time_key] for a, b in zip(native, ours))
    ratio = statistics.median(ratios)
    low, high = median_bounds(ratios)
    memory = [
        max(row[key] for row in ours) / max(row[key] for row in native)
        for key in ("allocated", "reserved")
    ]
    hashes = {row["hash"] for row in native if "hash" in row}
    same = hashes == {row["hash"] for row in ours if "hash" in row}
    bits = "native differs from itself" if len(hashes) > 1 else "identical" if same else "DIFFERENT"
    bar = BARS[side].get(name)
    met = (bar is None or ratio >= bar) and memory[0] <= MEMORY_MOST[side] and bits != "DIFFERENT"
    return met, (
        f"{name:18s} {side:7s} {ratio:6.3f}x ({ratios[0]:.3f} .. {ratios[-1]:.3f}; median of {len(ratios)} "
        f"in {low:.3f} .. {high:.3f}) for {bar}  "
        f"native {1e3 * statistics.median(row['seconds'] for row in native):8.2f} ms  {bits}  "
        f"memory {memory[0]:.3f} {memory[1]:.3f}  {'met' if met else 'MISSED'}"
    )


def measure(name, sides, count, seconds, log):
    """`count` rounds, or as many as fit into the seconds."""
    processes.ask_all(sides, f"load {name} short" if seconds else f"load {name}")
    for side in sides:
        side.ask("run")
    # A hash takes longer than a short run.
    hashed = 8 if seconds else 1
    rounds, end = [], time.perf_counter() + (seconds or 0)
    for turn in itertools.count():
        if time.perf_counter() > end if seconds else turn == count:
            break
        command = "run hash" if turn % hashed == 0 else "run"
        rounds.append(processes.in_turn(sides, command, turn))
        log.write(json.dumps({"workload": name, "round": turn, **rounds[-1]}) + "\n")
        log.flush()
    verdicts = [judge(name, side.name, rounds) for side in sides if side.name in BARS]
    for _, line in verdicts:
        print(line, flush=True)
    return all(met for met, _ in verdicts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--sides", default=",".join(processes.ALL))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", type=float, metavar="SECONDS")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--done")
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        return processes.serve(arguments.worker, worker)
    wanted = arguments.workloads or list({**BARS["flagos"], **BARS["queue"]})
    if arguments.done and os.path.exists(arguments.done):
        with open(arguments.done) as lines:
            done = set(lines.read().split())
        wanted = [name for name in wanted if name not in done]

    def start():
        return [processes.Side(name, __file__) for name in arguments.sides.split(",")]

    sides, missed = start(), []
    with open(arguments.log, "a") as log:
        for name in wanted:
            try:
                met = measure(name, sides, arguments.rounds, arguments.short, log)
            except (RuntimeError, OSError) as error:
                met = False
                print(f"{name:18s} failed: {error}", flush=True)
                for side in sides:  # What the others would answer is out of step now.
                    side.process.kill()
                sides = start()
            if not met:
                missed.append(name)
            if arguments.done:
                with open(arguments.done, "a") as lines:
                    lines.write(name + "\n")
    for side in sides:
        side.quit()
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
