"""What one operator costs the calling thread, on native CUDA and on flagos.

    python bench/card/submit.py [--rounds 9] [--log FILE]

Two processes take turns; each round times a burst of calls of each operator without waiting for the
device in between, and the least of several bursts counts. Figures are nanoseconds a call and flagos
over native: below 1 flagos is faster. Sizes are elements.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def operators(torch, device, elements):
    side = max(1, int(elements**0.5))
    x = torch.randn(side, side, device=device)
    y = torch.randn(side, side, device=device)
    weight = torch.ones(side, device=device)
    index = torch.arange(0, side, 2, device=device)
    query = torch.randn(1, 8, 64, 64, device=device, dtype=torch.float16)
    functional = torch.nn.functional
    return {
        "add": lambda: x + y,
        "add_": lambda: x.add_(y),
        "mul_scalar": lambda: x * 2.0,
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
        "lgamma (boxed)": lambda: torch.lgamma(x),
        "frac (boxed)": lambda: torch.frac(x),
    }


def worker(device):
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    if device == "flagos":
        import torch_fl  # noqa: F401
    tables = {}
    for line in sys.stdin:
        command = line.split()
        if not command or command[0] == "quit":
            return
        elements = int(command[1])
        if elements not in tables:
            tables[elements] = operators(torch, device, elements)
        result = {}
        for name, call in tables[elements].items():
            calls = 200 if elements <= 1 << 20 else 40
            best = float("inf")
            for _ in range(5):
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                for _ in range(calls):
                    call()
                best = min(best, (time.perf_counter_ns() - start) / calls)
            torch.cuda.synchronize()
            result[name] = best
        answers.write(json.dumps({"ok": True, "ns": result}) + "\n")
        answers.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="1024,1048576")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    import pairs

    sides = [pairs.Side("cuda", __file__), pairs.Side("flagos", __file__)]
    with open(arguments.log, "a") as log:
        for elements in map(int, arguments.sizes.split(",")):
            rounds = []
            for turn in range(arguments.rounds + 1):
                order = sides if turn % 2 == 0 else sides[::-1]
                rounds.append({side.device: side.ask(f"time {elements}")["ns"] for side in order})
                log.write(json.dumps({"elements": elements, "round": turn, **rounds[-1]}) + "\n")
            for name in rounds[0]["cuda"]:
                ratios = sorted(r["flagos"][name] / r["cuda"][name] for r in rounds[1:])
                native = statistics.median(r["cuda"][name] for r in rounds[1:])
                ours = statistics.median(r["flagos"][name] for r in rounds[1:])
                print(
                    f"{elements:9d} {name:16s} native {native:8.0f} ns  flagos {ours:8.0f} ns  "
                    f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} .. {ratios[-1]:.3f})",
                    flush=True,
                )
    for side in sides:
        side.quit()


if __name__ == "__main__":
    sys.exit(main())
