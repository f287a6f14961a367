"""What the CPU fallback costs on platform `sim`, beside the copies that it must make and the host's
operator, written out by hand.

Both sides are one process and take turns within each sample: `ours` calls the operator on flagos
tensors, `by hand` copies each operand to the host once, calls the operator there and copies what
it gives or changes back. The figures are the medians of the pairs' ratios, of elapsed time and of
the time that all threads of the process computed, which other programs on the machine disturb less;
the bar is 1.15. The table goes to bench/results/fallback.txt, the raw samples to fallback.json.

usage: python bench/torch/fallback.py [--samples N]
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import time

os.environ["TORCH_FL_PLATFORM"] = "sim"

import torch  # noqa: E402

import torch_fl  # noqa: E402
from torch_fl import routes  # noqa: E402

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
BAR = 1.15
D = "flagos"
SIZES = (8, 256, 1024)


def new(call):
    """The result is new: copy all operands there, and the results back."""

    def by_hand(tensors):
        result = call([tensor.cpu() for tensor in tensors])
        if isinstance(result, torch.Tensor):
            return result.to(D)
        return [one.to(D) for one in result]

    return call, by_hand


def in_place(call):
    """The first operand is written."""

    def by_hand(tensors):
        host = [tensor.cpu() for tensor in tensors]
        call(host)
        return tensors[0].copy_(host[0])

    return call, by_hand


def each_in_place(call):
    """All operands are written."""

    def by_hand(tensors):
        host = [tensor.cpu() for tensor in tensors]
        call(host)
        for tensor, one in zip(tensors, host):
            tensor.copy_(one)

    return call, by_hand


def squares(n, count):
    return [torch.rand(n, n) for _ in range(count)]


def halves(n):
    x = torch.rand(2 * n, n).to(D)
    return [x[:n], x[n:]]


def scale(tensors):
    torch._foreach_mul_(tensors, 1.0)


# name, operands for a size, (the call on flagos, the same by hand)
CASES = [
    ("add", lambda n: squares(n, 2), new(lambda t: torch.add(t[0], t[1]))),
    ("add_", lambda n: squares(n, 2), in_place(lambda t: t[0].add_(t[1]))),
    ("exp", lambda n: squares(n, 1), new(lambda t: torch.exp(t[0]))),
    ("mm", lambda n: squares(n, 2), new(lambda t: torch.mm(t[0], t[1]))),
    ("sum", lambda n: squares(n, 1), new(lambda t: torch.sum(t[0], 1))),
    ("softmax", lambda n: squares(n, 1), new(lambda t: torch.softmax(t[0], -1))),
    ("sort", lambda n: squares(n, 1), new(lambda t: torch.sort(t[0], -1))),
    ("cat of 8", lambda n: squares(n, 8), new(torch.cat)),
    ("transposed mm", lambda n: [squares(n, 1)[0].t(), torch.rand(n, n)],
     new(lambda t: torch.mm(t[0], t[1]))),
    ("exp of a slice", lambda n: [torch.rand(n, 2 * n).to(D)[:, ::2]],
     new(lambda t: torch.exp(t[0]))),
    ("add_ of halves", halves, in_place(lambda t: t[0].add_(t[1]))),
    ("_foreach_mul_ of 8", lambda n: squares(n, 8), each_in_place(scale)),
    ("_foreach_mul_ of 300", lambda n: squares(n, 300) if n < 100 else [], each_in_place(scale)),
]  # fmt: skip


def seconds(call, operands, rounds):
    """Elapsed, and computed by all threads."""
    start, computed = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        call(operands)
    torch.flagos.synchronize()
    return (time.perf_counter() - start) / rounds, (time.process_time() - computed) / rounds


def rounds_for(call, operands):
    """As many as take some 4 ms."""
    seconds(call, operands, 2)
    return max(1, min(200, round(4e-3 / seconds(call, operands, 2)[0])))


def measure(samples):
    rows = []
    for name, make, (ours, by_hand) in CASES:
        for size in SIZES:
            torch.manual_seed(0)
            operands = [tensor.to(D) for tensor in make(size)]
            if not operands:
                continue
            routes.reset_counts()
            ours(operands)
            assert routes.report().calls.get("cpu"), f"{name} has a kernel of its own here"
            rounds = rounds_for(by_hand, operands)
            pairs = []
            for sample in range(samples):
                order = [("ours", ours), ("by_hand", by_hand)]
                pair = {
                    side: seconds(call, operands, rounds)
                    for side, call in (order if sample % 2 else reversed(order))
                }
                pairs.append((pair["ours"], pair["by_hand"]))
            rows.append({"name": name, "size": size, "rounds": rounds, "seconds": pairs})
    return rows


def table(rows):
    lines = [f"{'operator':<20} {'size':>10} {'ours us':>10} {'by hand us':>11} {'elapsed':>8} "
             f"{'p10':>6} {'p90':>6} {'computed':>9}"]  # fmt: skip
    worst = [0.0, 0.0]
    for row in rows:
        ratios = sorted(ours[0] / by_hand[0] for ours, by_hand in row["seconds"])
        computed = statistics.median(ours[1] / by_hand[1] for ours, by_hand in row["seconds"])
        ours, by_hand = (
            statistics.median(elapsed for elapsed, _ in side) * 1e6
            for side in zip(*row["seconds"])
        )
        worst = [max(worst[0], statistics.median(ratios)), max(worst[1], computed)]
        shape = f"{row['size']}x{row['size']}"
        lines.append(
            f"{row['name']:<20} {shape:>10} {ours:>10.1f} {by_hand:>11.1f} "
            f"{statistics.median(ratios):>8.2f} {ratios[len(ratios) // 10]:>6.2f} "
            f"{ratios[len(ratios) * 9 // 10]:>6.2f} {computed:>9.2f}"
        )
    lines.append(f"worst medians: elapsed {worst[0]:.2f}, computed {worst[1]:.2f}; bar {BAR}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = measure(arguments.samples)
    text = (
        f"{datetime.date.today()}, torch {torch.__version__}, torch_fl {torch_fl.__version__}, "
        f"platform sim, {arguments.samples} pairs a row, one thread, load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n{table(rows)}"
    )
    print(text, end="")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fallback.txt").write_text(text)
    (RESULTS / "fallback.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
