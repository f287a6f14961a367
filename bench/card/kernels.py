"""Which GPU kernels each OpInfo sample runs, on native CUDA and on flagos, and what it computes.

    python bench/card/kernels.py [--dtypes float32,...] [--samples 3] [--jobs 8] [--log FILE] [--ops a,b]

Records, in a process a side and shard, the profiler's sequence of kernels and copies of each sample,
forward and backward, and the bits, strides, dtypes and devices of all results and gradients; then
compares the sides and prints every operator that differs, with the first kernel that does. Samples
that native CUDA does not repeat itself (it is run twice) are set aside. Needs a CUDA device.
"""

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings

KEY = ("Activity", "Lazy", "Buffer", "Resource", "Runtime", "Command", "cuda", "cu")


def record(device, shard, shards, dtypes, samples, only, path):
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    warnings.filterwarnings("ignore")
    import torch

    if device == "flagos":
        import torch_fl  # noqa: F401
    from torch.profiler import ProfilerActivity, profile
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_flatten, tree_map

    def place(value):
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return value
            return value.detach().to(device).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device(device)
        return value

    def describe(value):
        if not isinstance(value, torch.Tensor):
            return repr(value).replace("flagos", "cuda")
        where = value.device.type.replace("flagos", "cuda")
        meta = [tuple(value.shape), str(value.dtype), where, str(value.layout)]
        if value.layout == torch.strided:
            meta.append(value.stride())
            host = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        else:
            host = value.detach().cpu().to_dense()
        bits = host.flatten().view(torch.uint8).numpy().tobytes() if host.numel() else b""
        return [*map(repr, meta), hashlib.sha256(bits).hexdigest()[:16]]

    def once(op, sample):
        a, b, c = tree_map(place, (sample.input, sample.args, sample.kwargs))
        torch.manual_seed(1)
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            out = op(a, *b, **c)
            leaves = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
            roots = [t for t in leaves if t.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            torch.cuda.synchronize()
        events = sorted(trace.events(), key=lambda event: event.time_range.start)
        names = [event.name for event in events if not event.name.startswith(KEY)]
        inputs = [t for t in tree_flatten((a, b, c))[0] if isinstance(t, torch.Tensor)]
        grads = [t.grad for t in inputs if t.requires_grad and t.is_leaf]
        return names, [describe(t) for t in leaves], [describe(t) for t in grads]

    torch.zeros(1, device=device) + 1
    with open(path, "w") as out:
        for op in op_db[shard::shards]:
            full = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
            if only and full not in only:
                continue
            for dtype in dtypes:
                kind = getattr(torch, dtype)
                if kind not in op.supported_dtypes("cuda"):
                    continue
                grad = kind in op.supported_backward_dtypes("cuda")
                try:
                    torch.manual_seed(0)
                    inputs = list(op.sample_inputs("cpu", kind, requires_grad=grad))[:samples]
                except Exception:
                    continue
                for index, sample in enumerate(inputs):
                    row = {"key": f"{full}:{dtype}#{index}"}
                    try:
                        row["kernels"], row["results"], row["grads"] = once(op, sample)
                        if device == "cuda":
                            again = once(op, sample)
                            row["repeats"] = again == (row["kernels"], row["results"], row["grads"])
                    except Exception as error:
                        row["error"] = f"{type(error).__name__}: {error}"[:300]
                    out.write(json.dumps(row) + "\n")
                    out.flush()


def compare(native, ours):
    counts = collections.Counter()
    worst = {}
    for key, row in native.items():
        if "error" in row:
            counts["native raises"] += 1
            continue
        other = ours.get(key, {"error": "not recorded"})
        if "error" in other:
            verdict, detail = "flagos raises", other["error"]
        elif row["kernels"] != other["kernels"] and row["repeats"]:
            a, b = row["kernels"], other["kernels"]
            first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            verdict = "other kernels"
            detail = f"{len(a)} {len(b)} @{first} {(a[first:] or ['-'])[0][:70]} | {(b[first:] or ['-'])[0][:70]}"
        elif row["repeats"] and (row["results"], row["grads"]) != (other["results"], other["grads"]):
            pairs = zip(row["results"] + row["grads"], other["results"] + other["grads"])
            verdict, detail = "other results", str(next((p for p in pairs if p[0] != p[1]), "count"))
        elif not row["repeats"]:
            verdict, detail = "native does not repeat itself", ""
        else:
            verdict, detail = "same", ""
        counts[verdict] += 1
        if verdict not in ("same", "native does not repeat itself"):
            worst.setdefault((key.split(":")[0], verdict), [key, detail, 0])[2] += 1
    return counts, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--ops", default="")
    parser.add_argument("--log")
    parser.add_argument("--record", nargs=4, metavar=("DEVICE", "SHARD", "SHARDS", "FILE"))
    arguments = parser.parse_args()
    dtypes = arguments.dtypes.split(",")
    only = set(filter(None, arguments.ops.split(",")))
    if arguments.record:
        device, shard, shards, path = arguments.record
        return record(device, int(shard), int(shards), dtypes, arguments.samples, only, path)
    sides = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in ("cuda", "flagos"):
            paths = [os.path.join(folder, f"{device}.{i}") for i in range(arguments.jobs)]
            running = [
                subprocess.Popen([sys.executable, os.path.abspath(__file__), "--dtypes", arguments.dtypes,
                                  "--samples", str(arguments.samples), "--ops", arguments.ops,
                                  "--record", device, str(i), str(arguments.jobs), path])
                for i, path in enumerate(paths)
            ]
            for process in running:
                process.wait()
            rows = [json.loads(line) for path in paths for line in open(path)]
            sides[device] = {row["key"]: row for row in rows}
    counts, worst = compare(sides["cuda"], sides["flagos"])
    lines = [f"{verdict}: {count}" for verdict, count in sorted(counts.items())]
    lines += [f"{op} [{verdict}, {n}] {key} {detail}" for (op, verdict), (key, detail, n) in sorted(worst.items())]
    print("\n".join(lines))
    if arguments.log:
        with open(arguments.log, "w") as out:
            out.write("\n".join(lines) + "\n")
    return int(bool(worst))


if __name__ == "__main__":
    sys.exit(main())
