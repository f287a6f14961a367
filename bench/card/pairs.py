"""Time workloads on native CUDA and on flagos, in two processes, turn and turn about.

    python bench/card/pairs.py decode train_fp32 ... [--pairs 7] [--log FILE]

Both processes load a workload once and run it when they are told, so that only one works at a time.
A virtual machine's processor changes its speed by half from one second to the next, so each run is
timed in units of a fixed loop of Python that the same process runs just before and after it; a run
whose two loops differ by more than a tenth is done again. The figure of a pair is native time over
flagos time in those units: above 1 flagos is faster. What each run computed is hashed and compared, bit for bit. Each row of the
log is one run. Needs a CUDA device; workloads are those of workloads.py.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def reference_seconds():
    """How long this processor takes at present for a fixed piece of work, the unit of a run."""
    start = time.perf_counter()
    total = 0
    for i in range(200_000):
        total += i * i % 7
    return time.perf_counter() - start


def worker(device):
    """Serve commands from stdin: 'load NAME', 'run', 'quit'. Answers a JSON line each."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever libraries print does not belong into the answers.
    import torch

    if device == "flagos":
        import torch_fl  # noqa: F401
    sys.path.insert(0, HERE)
    import workloads

    run = None
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        try:
            if command == "load":
                run = None
                torch.cuda.empty_cache()
                torch.manual_seed(0)
                run = workloads.ALL[name](device)
                answer = {"ok": True}
            elif command == "run":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                for attempt in range(6):
                    before = reference_seconds()
                    start = time.perf_counter()
                    outputs = run()
                    torch.cuda.synchronize()
                    seconds = time.perf_counter() - start
                    after = reference_seconds()
                    if abs(before - after) < 0.1 * max(before, after):
                        break
                answer = {
                    "ok": True,
                    "seconds": seconds,
                    "units": 2 * seconds / (before + after),
                    "attempts": attempt + 1,
                    "hash": digest(outputs),
                    "allocated": torch.cuda.max_memory_allocated(),
                    "reserved": torch.cuda.max_memory_reserved(),
                }
            else:
                return
        except Exception as error:  # The other side must learn of it rather than wait.
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def digest(outputs):
    """One hash over the bits of all tensors and numbers among the outputs."""
    import torch

    sha = hashlib.sha256()
    for output in outputs:
        if isinstance(output, torch.Tensor):
            flat = output.detach().cpu().contiguous().flatten().view(torch.uint8)
            sha.update(flat.numpy().tobytes())
        else:
            sha.update(repr(output).encode())
    return sha.hexdigest()[:16]


class Side:
    """One of the two processes: `script --worker device`."""

    def __init__(self, device, script=__file__):
        self.device = device
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(script), "--worker", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.device} process died during '{command}'")
        answer = json.loads(line)
        if not answer["ok"]:
            raise RuntimeError(f"{self.device}: {answer['error']}")
        return answer

    def quit(self):
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait()


def measure(name, sides, pairs, log):
    for side in sides:
        side.ask(f"load {name}")
        for _ in range(2):
            side.ask("run")
    rows = []
    for pair in range(pairs):
        order = sides if pair % 2 == 0 else sides[::-1]
        row = {side.device: side.ask("run") for side in order}
        rows.append(row)
        log.write(json.dumps({"workload": name, "pair": pair, **row}) + "\n")
        log.flush()
    ratios = sorted(row["cuda"]["units"] / row["flagos"]["units"] for row in rows)
    native = {row["cuda"]["hash"] for row in rows}
    ours = {row["flagos"]["hash"] for row in rows}
    last = rows[-1]
    if len(native) > 1:
        same = "native differs from itself"
    else:
        same = "identical" if native == ours else "DIFFERENT"
    print(
        f"{name:24s} {statistics.median(ratios):6.3f}x  ({ratios[0]:.3f} .. {ratios[-1]:.3f})  "
        f"native {1e3 * statistics.median(row['cuda']['seconds'] for row in rows):8.2f} ms  "
        f"{same}  memory {last['flagos']['allocated'] / last['cuda']['allocated']:.3f} "
        f"{last['flagos']['reserved'] / last['cuda']['reserved']:.3f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--worker")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    sides = [Side("cuda"), Side("flagos")]
    failed = False
    with open(arguments.log, "a") as log:
        for name in arguments.workloads:
            try:
                measure(name, sides, arguments.pairs, log)
            except RuntimeError as error:
                failed = True
                print(f"{name:24s} failed: {error}", flush=True)
                if any(side.process.poll() is not None for side in sides):
                    for side in sides:
                        side.process.kill()
                    sides = [Side("cuda"), Side("flagos")]
    for side in sides:
        side.quit()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
