"""What one operator costs the calling thread on native CUDA, on flagos and with the launch queue.

    python bench/card/submit.py [--rounds 9] [--sizes 1024,...] [--item-turns 400]
                                [--library FILE] [--log FILE]

Processes take turns; each round times a burst of calls of each operator without waiting for the
device in between, and the least of several bursts counts. Figures are nanoseconds a call and the
side over native: below 1 the side is faster. Sizes are elements. Bursts are short, so that neither
the device's nor the launch queue's room runs out. With the library that bench/cpp/submit.cpp makes
(libsubmit.so) the same calls are made from C++ too (`cpp.add` and so on).

`item` is the time until a value is there, right after an operator. The machine's mood changes it by
more than its bar within seconds, so there the processes take turns every few calls, and what counts
is the median over some hundred turns of how much longer a side took than native beside it.

No sizes (`--sizes ""`) leave `item` alone. Exits with 1 where a bar was missed.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sides as processes  # noqa: E402

VIEWS = ("view", "slice", "transpose")
BOXED = ("lgamma", "frac")
QUEUED = ("add", "add_", "mul", "mul_scalar", "silu")  # Element-wise, the launch queue's bar.
TYPED_MOST, VIEWS_MOST, QUEUED_MOST = 1.03, 1.0, 0.35  # Of native's cost.
LIBRARY = "FL_BENCH_LIBRARY"  # Tells the processes of the sides where it is.
BOXED_MORE_NS, ITEM_MORE_NS = 500, 3000  # More than native.


def operators(torch, device, elements, gradients=False):
    side = max(1, int(elements**0.5))
    x = torch.randn(side, side, device=device, requires_grad=gradients)
    y = torch.randn(side, side, device=device, requires_grad=gradients)
    weight = torch.ones(side, device=device)
    index = torch.arange(0, side, 2, device=device)
    query = torch.randn(1, 8, 64, 64, device=device, dtype=torch.float16, requires_grad=gradients)
    functional = torch.nn.functional
    from_cpp = {}
    if os.environ.get(LIBRARY):
        operands = [x, y, weight, index, query]
        for name in torch.ops.fl_bench.operators():
            from_cpp["cpp." + name] = functools.partial(
                torch.ops.fl_bench.submit.default, name, operands
            )
    return from_cpp | {
        "add": lambda: x + y,
        "add_": lambda: x.add_(y),
        "mul": lambda: x * y,
        "mul_scalar": lambda: x * 2.0,
        "silu": lambda: functional.silu(x),
        "mm": lambda: x @ y,
        "cat": lambda: torch.cat((x, y)),
        "softmax": lambda: x.softmax(-1),
        "layer_norm": lambda: functional.layer_norm(x, (side,), weight, weight),
        "view": lambda: x.view(-1),
        "slice": lambda: x[1:],
        "transpose": lambda: x.t(),
        "empty": lambda: torch.empty(side, side, device=device),
        "copy_": lambda: x.copy_(y),
        "to_half": lambda: x.to(torch.float16),
        "index": lambda: x[index],
        "sdpa": lambda: functional.scaled_dot_product_attention(query, query, query),
        "lgamma": lambda: torch.lgamma(x),
        "frac": lambda: torch.frac(x),
    }


def worker(torch, device):
    tables = {}
    if os.environ.get(LIBRARY):
        torch.ops.load_library(os.environ[LIBRARY])

    def finish():
        processes.finish(torch, device)

    def burst(name, call, calls):
        best = float("inf")
        for _ in range(5):
            finish()
            if name.startswith("cpp."):
                best = min(best, call(calls) / 1000)
                continue
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            best = min(best, (time.perf_counter_ns() - start) / calls)
        finish()
        return best

    def item(calls=12):
        times = []
        for _ in range(calls):
            finish()
            start = time.perf_counter_ns()
            (of_item + of_item)[0, 0].item()
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times[2:])  # The first ones wake up after the other sides' turns.

    def respond(line):
        if line == "item":
            with processes.one_processor():
                return {"ns": item()}
        elements = int(line)
        if elements not in tables:
            tables[elements] = operators(torch, device, elements)
        calls = 200 if elements <= 1 << 20 else 40
        with processes.one_processor():
            return {"ns": {name: burst(name, call, calls) for name, call in tables[elements].items()}}

    of_item = torch.ones(32, 32, device=device)
    return respond


def judge(side, name, native, ours, ratio):
    """Whether the bar of an operator was met; None where there is none."""
    name = name.removeprefix("cpp.")
    if side == "queue":
        return ratio <= QUEUED_MOST if name in QUEUED else None
    if name in BOXED:
        return ours - native <= BOXED_MORE_NS
    return ratio <= (VIEWS_MOST if name in VIEWS else TYPED_MOST)


def say_met(met):
    return {True: " met", False: " MISSED", None: ""}[met]


def compare_item(sides, turns, log):
    """The names of the sides that missed the bar of `item`."""
    rows = []
    for turn in range(turns):
        answers = processes.in_turn(sides, "item", turn)
        rows.append({name: answer["ns"] for name, answer in answers.items()})
        log.write(json.dumps({"item": turn, **rows[-1]}) + "\n")
    rows = rows[turns // 10 :]  # The first ones warm up.
    native = statistics.median(row[processes.NATIVE] for row in rows)
    line = f"{'':9s} {'item':15s} native {native:7.0f} ns"
    missed = []
    for side in processes.ALL[1:]:
        more = [row[side] - row[processes.NATIVE] for row in rows]
        low, middle, high = statistics.quantiles(more, n=4)
        if middle > ITEM_MORE_NS:
            missed.append(side)
        line += f"  {side} {middle:+.0f} ns (quartiles {low:+.0f} .. {high:+.0f})"
        line += say_met(middle <= ITEM_MORE_NS)
    print(line, flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="1024,65536,1048576,16777216")
    parser.add_argument("--item-turns", type=int, default=400)
    parser.add_argument("--library")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.library:
        os.environ[LIBRARY] = os.path.abspath(arguments.library)
    if arguments.worker:
        return processes.serve(arguments.worker, worker)
    sides = [processes.Side(name, __file__) for name in processes.ALL]
    missed = []
    with open(arguments.log, "a") as log:
        for elements in map(int, filter(None, arguments.sizes.split(","))):
            rounds = []
            for turn in range(arguments.rounds + 1):
                answers = processes.in_turn(sides, str(elements), turn)
                row = {name: answer["ns"] for name, answer in answers.items()}
                log.write(json.dumps({"elements": elements, "round": turn, **row}) + "\n")
                rounds.append(row)
            rounds = rounds[1:]  # The first one warms up.
            for name in rounds[0][processes.NATIVE]:
                native = statistics.median(row[processes.NATIVE][name] for row in rounds)
                line = f"{elements:9d} {name:15s} native {native:7.0f} ns"
                for side in processes.ALL[1:]:
                    ratios = sorted(row[side][name] / row[processes.NATIVE][name] for row in rounds)
                    ours, ratio = native * statistics.median(ratios), statistics.median(ratios)
                    met = judge(side, name, native, ours, ratio)
                    line += f"  {side} {ratio:.3f} ({ratios[0]:.3f} .. {ratios[-1]:.3f})"
                    line += say_met(met)
                    if met is False:
                        missed.append(f"{name}/{side}/{elements}")
                print(line, flush=True)
        missed += [f"item/{side}" for side in compare_item(sides, arguments.item_turns, log)]
    for side in sides:
        side.quit()
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
