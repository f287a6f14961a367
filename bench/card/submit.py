"""What one operator costs the calling thread on native CUDA, on flagos and with the launch queue.

    python bench/card/submit.py [--turns 61] [--sizes 1024,...] [--operators add,...]
                                [--library FILE] [--log FILE]

A turn times a burst of calls of one operator in each of the processes, one after the other, without
waiting for the device in between. The machine's mood changes within seconds by more than what is
looked for, so turns are short and many: what counts is the median over the turns of what a side took
over what native took beside it. Below 1 the side is faster; the quartiles follow in brackets. Figures
are nanoseconds a call, sizes are elements. Bursts are short also so that neither the device's nor the
launch queue's room runs out.

With the library that bench/cpp/submit.cpp makes (libsubmit.so) the same calls are made from C++ too
(`cpp.add` and so on). `item` is the time until a value is there, right after an operator; more than
native, in nanoseconds, is what counts there. Exits with 1 where a bar was missed.
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
    # As an image model in half precision calls; of one size, for what is measured is the call.
    image = torch.randn(1, 32, 16, 16, device=device, dtype=torch.float16, requires_grad=gradients)
    image = image.to(memory_format=torch.channels_last)
    window = torch.randn(32, 32, 3, 3, device=device, dtype=torch.float16)
    window = window.to(memory_format=torch.channels_last)
    channel = torch.ones(32, device=device, dtype=torch.float16)
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
        "linear": lambda: functional.linear(x, y, weight),
        "conv2d": lambda: functional.conv2d(image, window, channel, padding=1),
        "batch_norm": lambda: functional.batch_norm(image, None, None, channel, channel, True),
        "group_norm": lambda: functional.group_norm(image, 8, channel, channel),
        "upsample": lambda: functional.interpolate(image, scale_factor=2.0),
        "lgamma": lambda: torch.lgamma(x),
        "frac": lambda: torch.frac(x),
        "item": lambda: (query + query)[0, 0, 0, 0].item(),
    }


def worker(torch, device):
    tables = {}
    if os.environ.get(LIBRARY):
        torch.ops.load_library(os.environ[LIBRARY])

    def finish():
        processes.finish(torch, device)

    def burst(name, call, calls):
        finish()
        if name.startswith("cpp."):
            return call(calls) / 1000
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - start) / calls

    def latency(call, calls=8):
        times = []
        for _ in range(calls):
            finish()
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times)

    def respond(line):
        elements, name = line.split()
        table = tables.get(elements)
        if table is None:
            table = tables[elements] = operators(torch, device, int(elements))
        if name == "names":
            return {"names": list(table)}
        with processes.one_processor():
            if name == "item":
                latency(table[name], calls=2)  # Wakes up after the other sides' turns.
                return {"ns": latency(table[name])}
            burst(name, table[name], calls=8)
            return {"ns": burst(name, table[name], 150 if int(elements) <= 1 << 20 else 40)}

    return respond


def met(side, name, more, ratio):
    """Whether the bar of an operator was met; None where there is none."""
    name = name.removeprefix("cpp.")
    if name == "item":
        return more <= ITEM_MORE_NS
    if side == "queue":
        return ratio <= QUEUED_MOST if name in QUEUED else None
    if name in BOXED:
        return more <= BOXED_MORE_NS
    return ratio <= (VIEWS_MOST if name in VIEWS else TYPED_MOST)


def compare(sides, elements, name, turns, log):
    """Prints the operator's line and returns the names of the bars that it missed."""
    rows = []
    for turn in range(turns):
        answers = processes.in_turn(sides, f"{elements} {name}", turn)
        rows.append({side: answer["ns"] for side, answer in answers.items()})
        log.write(json.dumps({"elements": elements, "operator": name, "turn": turn, **rows[-1]}) + "\n")
    rows = rows[turns // 10 :]  # The first ones warm up.
    native = statistics.median(row[processes.NATIVE] for row in rows)
    line = f"{elements:9d} {name:15s} native {native:7.0f} ns"
    missed = []
    for side in processes.ALL[1:]:
        more = statistics.median(row[side] - row[processes.NATIVE] for row in rows)
        low, ratio, high = statistics.quantiles([row[side] / row[processes.NATIVE] for row in rows], n=4)
        line += f"  {side} {ratio:.3f} ({low:.3f} .. {high:.3f}) {more:+6.0f} ns"
        bar = met(side, name, more, ratio)
        line += {True: " met", False: " MISSED", None: ""}[bar]
        if bar is False:
            missed.append(f"{name}/{side}/{elements}")
    print(line, flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=61)
    parser.add_argument("--sizes", default="1024,65536,1048576,16777216")
    parser.add_argument("--operators", help="only these, by comma")
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
        for elements in map(int, arguments.sizes.split(",")):
            names = processes.ask_all(sides, f"{elements} names")[0]["names"]
            if arguments.operators:
                names = arguments.operators.split(",")
            for name in names:
                turns = arguments.turns * (5 if name == "item" else 1)
                missed += compare(sides, elements, name, turns, log)
    for side in sides:
        side.quit()
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
