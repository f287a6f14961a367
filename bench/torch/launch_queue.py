"""What the launch queue gains or costs on platform `cpu`: each workload with the queue and without,
in one process, turn and turn about.

A sample runs the workload on both sides, in alternating order; the figure is the median of the
ratios, time without over time with the queue: above 1 the queue is faster. What each run computed is
compared bit for bit. The raw samples go to bench/results/queue.json, the table to queue.txt. The last
rows are the calling thread alone: what a call costs it while the worker is busy with other work.

usage: python bench/torch/launch_queue.py [--samples N] [NAME ...]
"""

import argparse
import json
import os
import pathlib
import statistics
import time

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
WORKLOADS = {}


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def mlp(torch, batch, width, layers):
    sizes = [width] * (layers + 1)
    parts = []
    for a, b in zip(sizes, sizes[1:]):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*parts).to("flagos").eval()
    x = torch.randn(batch, width).to("flagos")

    def run():
        with torch.inference_mode():
            for _ in range(20):
                out = model(x)
        return [out]

    return run


@workload
def mlp_b1(torch):
    return mlp(torch, 1, 64, 6)


@workload
def mlp_b32(torch):
    return mlp(torch, 32, 256, 6)


@workload
def lstm_b1(torch):
    """Cells written out, as models that need their states do."""
    cell = torch.nn.LSTMCell(32, 64).to("flagos").eval()
    x = torch.randn(16, 1, 32).to("flagos")

    def run():
        with torch.inference_mode():
            state = None
            for step in x:
                state = cell(step, state)
        return list(state)

    return run


@workload
def lstm_module(torch):
    """torch.nn.LSTM, which the host serves by one fused operator."""
    model = torch.nn.LSTM(32, 64).to("flagos").eval()
    x = torch.randn(16, 4, 32).to("flagos")

    def run():
        with torch.inference_mode():
            return [model(x)[0]]

    return run


@workload
def encoder_b1(torch):
    """Two layers of MiniLM's shape."""
    layer = torch.nn.TransformerEncoderLayer(
        384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("flagos")
    x = torch.randn(1, 16, 384).to("flagos")

    def run():
        with torch.no_grad():
            return [model(x)]

    return run


@workload
def decoder_norms(torch):
    """The element-wise part of a decoder: RMS norms, rotary embedding, gates."""
    x, w = torch.randn(1, 1, 512).to("flagos"), torch.randn(512).to("flagos")
    up = torch.randn(512, 512).to("flagos")

    def run():
        y = x
        with torch.inference_mode():
            for _ in range(20):
                y = w * (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6))
                half = torch.cat([-y[..., 256:], y[..., :256]], -1)
                y = y * 0.5 + half * 0.5
                y = torch.nn.functional.silu(y @ up) * y + x
        return [y]

    return run


def training(torch, foreach):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    ).to("flagos")  # fmt: skip
    state = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=foreach)
    x, wanted = torch.randn(16, 64).to("flagos"), torch.randint(0, 10, (16,)).to("flagos")

    def run():
        model.load_state_dict(state)
        optimizer.state.clear()
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), wanted)
            loss.backward()
            optimizer.step()
        return [loss.detach(), *(p.detach() for p in model.parameters())]

    return run


@workload
def train_for_loop(torch):
    return training(torch, False)


@workload
def train_foreach(torch):
    return training(torch, True)


@workload
def gemm(torch):
    """Bound by the kernels."""
    a = torch.randn(512, 512).to("flagos")

    def run():
        out = a
        for _ in range(6):
            out = (out @ a).mul_(0.01)
        return [out]

    return run


@workload
def item_after_each(torch):
    """The worst case: a wait after every operator."""
    x = torch.ones(16).to("flagos")

    def run():
        total = 0.0
        for _ in range(50):
            total += (x * 2).sum().item()
        return [torch.tensor(total)]

    return run


def timed(torch, run):
    start = time.perf_counter_ns()
    outputs = run()
    torch.flagos.synchronize()
    return time.perf_counter_ns() - start, [output.cpu() for output in outputs]


def measure(torch, queue, name, samples):
    torch.manual_seed(0)
    run = WORKLOADS[name](torch)
    raw, bits = {False: [], True: []}, []
    for sample in range(-3, samples):
        for on in (False, True) if sample % 2 else (True, False):
            queue.set(on)
            spent, outputs = timed(torch, run)
            bits.append(outputs)
            if sample >= 0:
                raw[on].append(spent)
    same = all(all(map(torch.equal, outputs, bits[0])) for outputs in bits)
    return {"name": name, "off_ns": raw[False], "on_ns": raw[True], "same": same}


# --- the calling thread alone --------------------------------------------------------------------


def submit(torch, queue, samples, calls=200):
    x, y = torch.randn(4, 4).to("flagos"), torch.randn(4, 4).to("flagos")
    big = torch.randn(600, 600).to("flagos")
    cases = {
        "add": lambda: torch.add(x, y),
        "add_": lambda: x.add_(y),
        "mul by a number": lambda: x * 2.0,
        "add with broadcast": lambda: x + y[0],
        "mm": lambda: torch.mm(x, y),
        "sum": lambda: x.sum(-1),
        "softmax": lambda: torch.softmax(x, -1),
        "cat": lambda: torch.cat([x, y]),
    }
    rows = []
    for name, call in cases.items():
        raw = {False: [], True: []}
        for sample in range(-2, samples):
            for on in (False, True) if sample % 2 else (True, False):
                queue.set(on)
                call()
                queue.drain()
                if on:
                    torch.mm(big, big)  # Keeps the worker from taking part.
                start = time.perf_counter_ns()
                for _ in range(calls):
                    call()
                spent = (time.perf_counter_ns() - start) / calls
                queue.drain()
                if sample >= 0:
                    raw[on].append(spent)
        rows.append({"name": name, "off_ns": raw[False], "on_ns": raw[True]})
    return rows


def line(row, unit, scale):
    off, on = row["off_ns"], row["on_ns"]
    ratios = sorted(a / b for a, b in zip(off, on))
    return (
        f"{row['name']:<20} {statistics.median(off) / scale:>10.2f} "
        f"{statistics.median(on) / scale:>10.2f} {unit}  {statistics.median(ratios):>6.2f} "
        f"({ratios[len(ratios) // 10]:.2f} .. {ratios[len(ratios) * 9 // 10]:.2f})"
        + ("" if row.get("same", True) else "  DIFFERENT")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=60)
    arguments = parser.parse_args()
    import torch

    import torch_fl
    from torch_fl import queue

    assert torch_fl.platform()["name"] == "cpu", "the card has bench/card/pairs.py"
    load = os.getloadavg()[0]
    head = (
        f"torch {torch.__version__}, {os.cpu_count()} processors, {torch.get_num_threads()} threads, "
        f"load {load:.1f} at the start\n"
        f"{'workload':<20} {'off':>10} {'on':>10}      off/on (p10 .. p90)"
    )
    print(head)
    names = arguments.names or list(WORKLOADS)
    rows, lines = [], [head]
    for name in names:
        rows.append(measure(torch, queue, name, arguments.samples))
        lines.append(line(rows[-1], "ms", 1e6))
        print(lines[-1], flush=True)
    if not arguments.names:
        lines.append("the calling thread alone, a call")
        for row in submit(torch, queue, arguments.samples // 2):
            rows.append(row)
            lines.append(line(row, "ns", 1))
        print("\n".join(lines[len(names) + 1 :]))
        (RESULTS / "queue.txt").write_text("\n".join(lines) + "\n")
        (RESULTS / "queue.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
