"""Time workloads on native CUDA, on flagos and with the launch queue, turn and turn about.

    python bench/card/pairs.py [decode train_fp32 ...] [--sides cuda,again,flagos,queue] [--sets 1]
        [--rounds 7] [--short SECONDS] [--log FILE] [--done FILE]
    python bench/card/pairs.py --judge LOG ...

Each process loads a workload once and runs it when it is told to. A virtual machine's processor
changes its speed by half from one second to the next, so each run is timed in units of a fixed loop
of Python that the same process runs just before and after it; a run whose two loops differ by more
than a tenth is done again. The ratio of a round is native's time over the side's time in those units
(in seconds where the GPU is what is waited for): above 1 the side is faster. What each run computed
is hashed and compared, bit for bit, and the peaks of memory are compared.

Two processes differ by some per cent for as long as they live, by where their memory and their
threads happen to lie, and more rounds do not take that away. So --sets starts new processes that many
times and measures every workload in each. The figure of a workload is the geometric mean of the sets'
medians; behind it stand the lowest and the highest of these medians, and where the mean lies with 95 %
confidence by Student's t over the sets. Of a single set the figure is the median of its rounds, behind
which stand the lowest and the highest round, and where the median lies with 95 % confidence.

The side `again` is native CUDA in one more process. Its line shows by how much two processes of the
same differ, and no bar judges it. For the other sides native's time of a round is then the geometric
mean of both native processes' times, so that the bias of neither counts in full.

Each row of the log is a round, or a set's failure in a workload. --judge measures nothing and prints
what all rows of the logs together say; a log without keys of sets counts as one set. A set that was
cut before it had a quarter of the rounds of the fullest has no part in the figure. --short makes short
pieces of the workloads of SHORT in workloads.py, in each set as many rounds as fit into the seconds.
With --done, workloads that the file names are left out and those that all sets have measured are added,
so that a run that was cut goes on where it stopped. Exits with 1 where a bar was missed or a side
failed. Needs a CUDA device, but for --judge; workloads are those of workloads.py.
"""

import argparse
import functools
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
COMPARED = (processes.AGAIN, *BARS)  # With native; each has a line in the verdict.


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
    torch.cuda.reset_peak_memory_stats()
    prepare = getattr(run, "prepare", lambda: None)
    for attempt in range(3):
        prepare()
        processes.finish(torch, device)
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


def natives(side, row):
    """The native processes of a round that this side is compared with."""
    return [name for name in (processes.NATIVE, processes.AGAIN) if name in row and name != side]


def ratio(name, side, row):
    """Native's time of a round over the side's."""
    key = "seconds" if name in IN_SECONDS else "units"
    native = statistics.geometric_mean(row[one][key] for one in natives(side, row))
    return native / row[side][key]


def median_bounds(ratios):
    """Where the median lies with 95 % confidence, of ratios in their order: each is as likely above it
    as below."""
    reach = 0.98 * len(ratios) ** 0.5
    middle = (len(ratios) - 1) / 2
    low, high = math.floor(middle - reach), math.ceil(middle + reach)
    return ratios[max(0, low)], ratios[min(len(ratios) - 1, high)]


def figure(sets):
    """From each set's ratios: the figure, what it is, the least and the most of what it is made from,
    and its bounds."""
    if len(sets) == 1:
        ratios = sorted(sets[0])
        bounds = median_bounds(ratios)
        return statistics.median(ratios), f"median of {len(ratios)}", ratios[0], ratios[-1], *bounds
    from scipy.special import stdtrit  # Here, for the processes of the sides do not need it.

    logs = sorted(math.log(statistics.median(ratios)) for ratios in sets)
    mean = statistics.mean(logs)
    reach = stdtrit(len(logs) - 1, 0.975) * statistics.stdev(logs) / len(logs) ** 0.5
    values = map(math.exp, (logs[0], logs[-1], mean - reach, mean + reach))
    return math.exp(mean), f"mean of {len(logs)} sets", *values


def verdict(name, side, rounds):
    """Whether one side's rounds met its bars against native's, and a line about them."""
    sets = {}
    for row in rounds:
        sets.setdefault(row["set"], []).append(ratio(name, side, row))
    fullest = max(map(len, sets.values()))
    whole = [ratios for ratios in sets.values() if 4 * len(ratios) >= fullest]
    value, made, least, most, low, high = figure(whole)
    ours = [row[side] for row in rounds]
    native = [row[one] for row in rounds for one in natives(side, row)]
    memory = [
        max(row[key] for row in ours) / max(row[key] for row in native)
        for key in ("allocated", "reserved")
    ]
    hashes = {row["hash"] for row in native if "hash" in row}
    same = hashes == {row["hash"] for row in ours if "hash" in row}
    bits = "native differs from itself" if len(hashes) > 1 else "identical" if same else "DIFFERENT"
    line = (
        f"{name:18s} {side:7s} {value:6.3f}x ({least:.3f} .. {most:.3f}; {made} "
        f"in {low:.3f} .. {high:.3f})"
    )
    about = (
        f"native {1e3 * statistics.median(row['seconds'] for row in native):8.2f} ms  {bits}  "
        f"memory {memory[0]:.3f} {memory[1]:.3f}"
    )
    if side not in BARS:
        return True, f"{line} not judged  {about}"
    bar = BARS[side].get(name)
    met = (bar is None or value >= bar) and memory[0] <= MEMORY_MOST[side] and bits != "DIFFERENT"
    return met, f"{line} for {bar}  {about}  {'met' if met else 'MISSED'}"


def judge(rows):
    """Prints the verdict over the rows of a log; the exit code that it means."""
    missed = []
    for name in dict.fromkeys(row["workload"] for row in rows):
        ours = [row for row in rows if row["workload"] == name]
        by_side = {side: [row for row in ours if side in row] for side in COMPARED}
        verdicts = [verdict(name, side, rounds) for side, rounds in by_side.items() if rounds]
        failures = [row["failed"] for row in ours if "failed" in row]
        if failures:
            of = len({row["set"] for row in ours})
            verdicts.append((False, f"{name:18s} failed in {len(failures)} of {of} sets: {failures[-1]}"))
        for _, line in verdicts:
            print(line, flush=True)
        if not all(met for met, _ in verdicts):
            missed.append(name)
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


def read(logs):
    """The rows of logs, each with the key of its set."""
    for log in logs:
        with open(log) as lines:
            for line in lines:
                yield {"set": log, **json.loads(line)}


def measure(name, sides, count, seconds, record):
    """`count` rounds, or as many as fit into the seconds; what their medians are, in words."""
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
        record(round=turn, **rounds[-1])
    medians = {
        side: statistics.median(ratio(name, side, row) for row in rounds)
        for side in COMPARED
        if side in rounds[0]
    }
    return "  ".join(f"{side} {median:.3f}x" for side, median in medians.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--sides", default=",".join(processes.ALL))
    parser.add_argument("--sets", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", type=float, metavar="SECONDS")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--done")
    parser.add_argument("--judge", nargs="+", metavar="LOG")
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if min(arguments.sets, arguments.rounds) < 1:
        parser.error("at least one set and one round are measured")
    if arguments.worker:
        return processes.serve(arguments.worker, worker)
    if arguments.judge:
        rows = list(read(arguments.judge))
        if not rows:
            parser.error("the logs have no rows")
        return judge(rows)
    wanted = arguments.workloads or list({**BARS["flagos"], **BARS["queue"]})
    if arguments.done and os.path.exists(arguments.done):
        with open(arguments.done) as lines:
            done = set(lines.read().split())
        wanted = [name for name in wanted if name not in done]

    def start():
        return [processes.Side(name, __file__) for name in arguments.sides.split(",")]

    def record(**row):
        rows.append(row)
        log.write(json.dumps(row) + "\n")
        log.flush()

    rows, started = [], time.time_ns()
    with open(arguments.log, "a") as log:
        for number in range(1, arguments.sets + 1):
            sides = start()
            for name in wanted:
                # Runs share a log, so the key is no other run's.
                ours = functools.partial(record, workload=name, set=f"{started}.{number}")
                try:
                    shown = measure(name, sides, arguments.rounds, arguments.short, ours)
                except (RuntimeError, OSError, json.JSONDecodeError) as error:
                    shown = f"failed: {error}"
                    ours(failed=str(error))
                    for side in sides:  # What the others would answer is out of step now.
                        side.process.kill()
                    sides = start()
                print(f"set {number} of {arguments.sets}  {name:18s} {shown}", flush=True)
                if arguments.done and number == arguments.sets:
                    with open(arguments.done, "a") as lines:
                        lines.write(name + "\n")
            for side in sides:
                side.quit()
    return judge(rows)


if __name__ == "__main__":
    sys.exit(main())
