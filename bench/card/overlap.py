"""Do copies from and to pinned memory run beside the kernels of another stream? Shown by events.

    python bench/card/overlap.py [--mib 256] [--rounds 5] [--log FILE] [SIDE ...]

A side is a process of its own: `native` is PyTorch's CUDA, `cuda` and `cuda-direct` (or any other
name of a platform) are flagos. A non-blocking copy runs on a side stream while strided copies on
the device, and on the sides that have them matrix products, run on the current one; events on both
streams, read against one event before both, give two intervals. Printed are their lengths, how long
the call that copies kept the host, and the share of the shorter interval that lies inside the other
one. A row holds if that share is at least 0.8, or at least 0.9 of native's where that is less; if
the call returned before half of the copy was done; and if what was copied is right. Exits with 1
where one does not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SIDES = ("native", "cuda", "cuda-direct")
SHARE_BAR = 0.8
OF_NATIVE = 0.9
TIMEOUT_S = 60


def strided(torch, device, width):
    """A kernel that every platform with device code has: a transposed copy."""
    source = torch.ones(width, width).to(device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source.t())


def products(torch, device, width):
    a = torch.ones(width, width).to(device)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def one_round(module, side, copy, kernel, kernels):
    """Intervals of the copy and the kernels in milliseconds, and how long the call to copy took."""
    module.synchronize()
    event = lambda: module.Event(enable_timing=True)  # noqa: E731
    origin, copy_begin, copy_end, begin, end = (event() for _ in range(5))
    origin.record()
    side.wait_event(origin)
    with module.stream(side):
        copy_begin.record()
        start = time.perf_counter()
        copy()
        host = 1e3 * (time.perf_counter() - start)
        copy_end.record()
    begin.record()
    for _ in range(kernels):
        kernel()
    end.record()
    module.synchronize()
    times = [origin.elapsed_time(each) for each in (copy_begin, copy_end, begin, end)]
    inside = min(times[1], times[3]) - max(times[0], times[2])
    shorter = min(times[1] - times[0], times[3] - times[2])
    return {
        "copy": times[1] - times[0],
        "kernels": times[3] - times[2],
        "all": max(times[1], times[3]),
        "host": host,
        "share": max(0.0, inside) / shorter if shorter > 0 else 0.0,
    }


def time_of(module, call, count):
    begin, end = (module.Event(enable_timing=True) for _ in range(2))
    module.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    module.synchronize()
    return begin.elapsed_time(end) / count


def worker(name, mib, rounds, width):
    """Prints a line of JSON a direction and kind of kernel."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if name != "native":
        os.environ["TORCH_FL_PLATFORM"] = name
    import torch

    if name == "native":
        module, device, has_products = torch.cuda, "cuda", True
    else:
        import torch_fl

        module, device = torch.flagos, "flagos"
        has_products = torch_fl.platform()["twin"] is not None
    elements = mib << 18
    pinned = torch.arange(elements, dtype=torch.int32).pin_memory()
    back = torch.zeros(elements, dtype=torch.int32).pin_memory()
    on_device = torch.empty(elements, dtype=torch.int32, device=device)
    side = module.Stream()
    copies = {
        "to the device": lambda: on_device.copy_(pinned, non_blocking=True),
        "to the host": lambda: back.copy_(on_device, non_blocking=True),
    }
    kinds = {"strided copy": strided}
    if has_products:
        kinds["matrix product"] = products
    for kind, make in kinds.items():
        kernel = make(torch, device, width)
        kernel()
        for direction, copy in copies.items():
            copy()
            copy_ms = min(time_of(module, copy, 1) for _ in range(3))
            kernel_ms = time_of(module, kernel, 5)
            # As long as the copy takes, or nearly so; fewer than fill a launch queue.
            kernels = max(1, min(400, round(copy_ms / max(kernel_ms, 1e-4))))
            one_round(module, side, copy, kernel, kernels)
            rows = [one_round(module, side, copy, kernel, kernels) for _ in range(rounds)]
            middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            right = bool(torch.equal(back, pinned)) if direction == "to the host" else True
            print(
                json.dumps(
                    {
                        "side": name,
                        "direction": direction,
                        "kind": kind,
                        "mib": mib,
                        "count": kernels,
                        "copy_alone": copy_ms,
                        "kernels_alone": kernels * kernel_ms,
                        "right": right,
                        **middle,
                        "rounds": rows,
                    }
                ),
                flush=True,
            )


def ask(name, arguments):
    """The rows of one side; None where its process failed, which is printed."""
    command = [sys.executable, os.path.abspath(__file__), "--worker", name]
    for option in ("mib", "rounds", "width"):
        command += [f"--{option}", str(getattr(arguments, option))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"{name:12s} failed: no end within {TIMEOUT_S} s")
        return None
    if done.returncode:
        print(f"{name:12s} failed:\n{done.stderr[-3000:]}")
        return None
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def verdict(row, native):
    """None, or what does not hold."""
    bar = SHARE_BAR
    if native is not None:
        bar = min(bar, OF_NATIVE * native["share"])
    if not row["right"]:
        return "WRONG VALUES"
    if row["share"] < bar:
        return f"NO OVERLAP (bar {bar:.2f})"
    if row["host"] > row["copy"] / 2:
        return "THE CALL WAITED"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="*", metavar="SIDE", default=list(SIDES))
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=4096, help="of the kernels' matrices")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.mib, arguments.rounds, arguments.width)
    print(
        f"{'side':12s} {'copy':14s} {'kernels':18s} {'copy ms (GB/s)':>16s} {'kernels ms':>10s} "
        f"{'both ms':>8s} {'alone, sum':>10s} {'call ms':>8s} {'share':>6s}"
    )
    native, failed = {}, False
    with open(arguments.log, "a") as log:
        for name in arguments.sides:
            rows = ask(name, arguments)
            failed |= not rows
            for row in rows or []:
                log.write(json.dumps(row) + "\n")
                key = row["direction"], row["kind"]
                if name == "native":
                    native[key] = row
                    wrong = None if row["share"] >= SHARE_BAR else "native does not overlap"
                else:
                    wrong = verdict(row, native.get(key))
                    failed |= wrong is not None
                rate = row["mib"] * 1048576 / 1e6 / max(row["copy"], 1e-6)
                print(
                    f"{name:12s} {row['direction']:14s} {row['count']:3d} {row['kind']:14s} "
                    f"{row['copy']:8.2f} ({rate:5.1f}) {row['kernels']:10.2f} {row['all']:8.2f} "
                    f"{row['copy_alone'] + row['kernels_alone']:10.2f} {row['host']:8.3f} "
                    f"{row['share']:6.2f}  {wrong or 'overlaps'}",
                    flush=True,
                )
    print("some do not hold" if failed else "copies and kernels overlap on every side")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
