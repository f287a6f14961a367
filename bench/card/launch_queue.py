"""The launch queue against native CUDA on a card: the rows of the table in docs/queue.md.

    python bench/card/launch_queue.py [ROW ...] [--pairs 7] [--log FILE] [--done FILE]

Without rows all of them. Each row is a shard of at most eight minutes: two processes, native and
flagos with TORCH_FL_QUEUE=1, which load the row's work once and take turns; the figure is the median
of the ratios, with the least and the largest, and what both computed is compared bit for bit
(bench/card/pairs.py does it). `submit` is the calling thread's cost of one queued operator and `item`
the latency of a value right after one operator. With --done, rows that the file names are left out,
and each finished row is added: a run that was cut goes on where it stopped. Exits with 1 where a bar
was missed. Needs a CUDA device; none has run it yet.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# row: least median of native time over flagos time.
PAIRS = {
    "decode": 1.4,
    "decode_b8": 1.3,
    "unet": 1.2,
    "vit_b1": 1.2,
    "bert_b1": 1.2,
    "train_50": 1.2,
    "train_50_for_loop": 1.2,
    "gemm": 0.99,
    "bert_b64": 0.99,
}
SUBMIT_MOST = 0.35  # Of native's cost.
ITEM_MOST_NS = 3000  # More than native.
MEMORY_MOST = 1.02  # Of native's peak.


def worker(device):
    """Serve 'submit' and 'item' from stdin; answers a JSON line each, in nanoseconds."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    if device == "flagos":
        import torch_fl  # noqa: F401
    x, y = torch.randn(32, 32, device=device), torch.randn(32, 32, device=device)
    calls = {
        "add": lambda: torch.add(x, y),
        "mul": lambda: torch.mul(x, y),
        "add_": lambda: x.add_(y),
        "mul by a number": lambda: x * 2.0,
        "silu": lambda: torch.nn.functional.silu(x),
        "mm": lambda: torch.mm(x, y),
    }

    def submit(call, count=200):
        best = float("inf")
        for _ in range(9):
            torch.cuda.synchronize()
            if device == "flagos":
                torch.flagos.synchronize()
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            best = min(best, (time.perf_counter_ns() - start) / count)
        return best

    def item(count=200):
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            torch.add(x, y)[0, 0].item()
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times)

    def nothing(count=2000):
        start = time.perf_counter_ns()
        for _ in range(count):
            (lambda: None)()
        return (time.perf_counter_ns() - start) / count

    for line in sys.stdin:
        word = line.strip()
        if word == "quit":
            return
        for call in calls.values():
            call()
        if word == "submit":
            empty = nothing()
            answer = {name: submit(call) - empty for name, call in calls.items()}
        else:
            answer = {"item": item()}
        answers.write(json.dumps({"ok": True, "ns": answer}) + "\n")
        answers.flush()


def turns(word, sides, rounds, log):
    rows = []
    for turn in range(rounds + 1):
        order = sides if turn % 2 else sides[::-1]
        row = {side.device: side.ask(word)["ns"] for side in order}
        log.write(json.dumps({"row": word, "turn": turn, **row}) + "\n")
        log.flush()
        if turn:  # The first one warms up.
            rows.append(row)
    return rows


def small_row(word, pairs, arguments, log):
    """Whether the bar of `submit` or `item` was met."""
    sides = [pairs.Side("cuda", __file__), pairs.Side("flagos", __file__)]
    rows = turns(word, sides, arguments.pairs, log)
    met = True
    for name in rows[0]["cuda"]:
        native = statistics.median(row["cuda"][name] for row in rows)
        ours = statistics.median(row["flagos"][name] for row in rows)
        ratios = sorted(row["flagos"][name] / row["cuda"][name] for row in rows)
        ratio = statistics.median(ratios)
        good = ratio <= SUBMIT_MOST if word == "submit" else ours - native <= ITEM_MOST_NS
        met &= good or name == "mm"  # The bar is that of an element-wise operator.
        print(
            f"{word} {name:16s} native {native:8.0f} ns  flagos {ours:8.0f} ns  {ratio:.3f} "
            f"({ratios[0]:.3f} .. {ratios[-1]:.3f})  {'met' if good else 'MISSED'}",
            flush=True,
        )
    for side in sides:
        side.quit()
    return met


def pair_row(name, pairs, arguments, log_path):
    """Whether the bars of a row of workloads.py were met: speed, bits, memory."""
    with open(log_path, "a") as log:
        sides = [pairs.Side("cuda"), pairs.Side("flagos")]
        pairs.measure(name, sides, arguments.pairs, log)
        for side in sides:
            side.quit()
    with open(log_path) as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row.get("workload") == name][-arguments.pairs :]
    ratio = statistics.median(row["cuda"]["units"] / row["flagos"]["units"] for row in rows)
    memory = max(row["flagos"]["allocated"] / row["cuda"]["allocated"] for row in rows)
    same = len({row[side]["hash"] for row in rows for side in ("cuda", "flagos")}) == 1
    met = ratio >= PAIRS[name] and memory <= MEMORY_MOST and same
    print(
        f"{name}: {ratio:.3f} for {PAIRS[name]}, memory {memory:.3f} for {MEMORY_MOST}, "
        f"{'identical' if same else 'DIFFERENT'}: {'met' if met else 'MISSED'}",
        flush=True,
    )
    return met


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--log", default="queue.jsonl")
    parser.add_argument("--done")
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    os.environ["TORCH_FL_QUEUE"] = "1"  # The native process does not load torch_fl.
    import pairs

    done = set()
    if arguments.done and os.path.exists(arguments.done):
        with open(arguments.done) as lines:
            done = set(lines.read().split())
    missed = []
    for row in arguments.rows or [*PAIRS, "submit", "item"]:
        if row in done:
            continue
        try:
            if row in PAIRS:
                met = pair_row(row, pairs, arguments, arguments.log)
            else:
                with open(arguments.log, "a") as log:
                    met = small_row(row, pairs, arguments, log)
        except RuntimeError as error:
            met = False
            print(f"{row} failed: {error}", flush=True)
        if not met:
            missed.append(row)
        if arguments.done:
            with open(arguments.done, "a") as lines:
                lines.write(row + "\n")
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
