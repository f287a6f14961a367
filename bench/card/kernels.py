"""Which GPU kernels each sample of PyTorch's databases runs, on native CUDA and on flagos.

    python bench/card/kernels.py [--dtypes float32,...] [--variants forward,...] [--samples 3]
        [--suites operators,...] [--jobs 8] [--only NAME,...] [--log FILE]

Samples and variants are those of the tests (tests/torch/opinfo): operators, foreach, modules and
optimisers; forward, backward, in-place, out= and so on. A process a side and shard records, for each
sample, the profiler's sequence of kernels and copies, and a hash of all that the tests compare. The
sides are then compared, and every operator that differs is printed with the first kernel that does.
What native CUDA does not repeat itself, within a process or in a second one, is set aside. Needs a CUDA device.
"""

import argparse
import collections
import fnmatch
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "torch"

# What the profiler lists beside kernels and copies: calls of the runtime and its own notes.
NO_KERNELS = ("Activity", "Lazy", "Buffer", "Resource", "Runtime", "Command", "cuda", "cu")

# Differences that are right: operator, verdict, reason. All else makes the check fail.
REASONS = (
    ("jiterator_*", "flagos raises", "torch.cuda.jiterator compiles for plain CUDA tensors alone"),
    ("Rprop", "other kernels", "for x[mask] = 1.0 PyTorch makes the number on the host for CUDA alone"),
)


# --- one side -------------------------------------------------------------------------------------


def digest_of(outcome):
    """A hash of all that the tests would compare of an outcome."""
    import torch
    from opinfo.outcome import Seen, flat

    sha = hashlib.sha256(outcome.raised.encode())
    for seen in outcome.operands + outcome.results:
        if not isinstance(seen, Seen):
            sha.update(repr(seen).encode())
            continue
        described = {k: v for k, v in vars(seen).items() if k not in ("value", "version")}
        sha.update(repr(described).encode())
        for part in seen.value:
            if part.numel():
                sha.update(flat(part).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def watch(observe):
    """The tests' `observe`, which also notes the kernels of the call in the outcome."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def observe_kernels(side, call, operands):
        trace = profile(activities=[ProfilerActivity.CUDA])

        def profiled():
            torch.cuda.synchronize()
            with trace:
                try:
                    return call()
                finally:
                    torch.cuda.synchronize()

        outcome = observe(side, profiled, operands)
        events = sorted(trace.events(), key=lambda event: event.time_range.start)
        outcome.kernels = [e.name for e in events if not e.name.startswith(NO_KERNELS)]
        return outcome

    return observe_kernels


def cases_of(suite, dtypes):
    """(name, dtype or way) of each case of a suite."""
    import torch
    from opinfo import suite as operators
    from opinfo import training

    if suite == "modules":
        return [(name, dtypes[0]) for name in training.module_infos()]
    if suite == "optimisers":
        infos = training.optimizer_infos()
        return [(n, way) for n in infos for way in training.implementations(infos[n], "cuda")]
    database = operators.database(suite).items()
    kinds = {dtype: getattr(torch, dtype) for dtype in dtypes}
    return [
        (name, dtype)
        for name, op in database
        for dtype, kind in kinds.items()
        if kind in op.supported_dtypes("cuda")
    ]


def outcomes_of(side, suite, name, dtype, variants, samples):
    """{variant: outcomes} of one case."""
    import torch
    from opinfo import suite as operators
    from opinfo import training

    if suite == "modules":
        kind = getattr(torch, dtype)
        return {"training": training.module_outcomes(side, name, kind, True, samples)}
    if suite == "optimisers":
        return {"steps": training.optimizer_outcomes(side, name, dtype, "cuda")}
    return operators.outcomes(side, name, dtype, "cuda", dict.fromkeys(variants, samples), "strided")


def described(outcomes):
    return {
        f"{variant}#{index}": (getattr(outcome, "kernels", []), digest_of(outcome), outcome.raised)
        for variant, list_of in outcomes.items()
        for index, outcome in enumerate(list_of)
        if outcome is not None
    }


def record(device, shard, arguments, path):
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(TESTS))
    import torch

    if device == "flagos":
        import torch_fl  # noqa: F401
    from opinfo import training, variants
    from opinfo.sides import Side

    for module in (training, variants):
        module.observe = watch(module.observe)
    side = Side(device)
    torch.zeros(1, device=device) + 1
    cases = [
        (suite, *case)
        for suite in arguments.suites.split(",")
        for case in cases_of(suite, arguments.dtypes.split(","))
        if not arguments.only or case[0] in arguments.only.split(",")
    ]
    with open(path, "w") as out:
        for suite, name, dtype in cases[shard :: arguments.jobs]:
            case = (side, suite, name, dtype, arguments.variants.split(","), arguments.samples)
            try:
                # What a library does once, such as making a handle, is no part of an operator.
                runs = [described(outcomes_of(*case)) for _ in range(2)]
                if runs[0] != runs[1]:
                    runs = [runs[1], described(outcomes_of(*case))]
            except Exception as error:
                runs = [{"all": ([], "", f"{type(error).__name__}: {error}"[:300])}] * 2
            for key, (kernels, digest, raised) in runs[1].items():
                row = {"key": f"{name}:{dtype}:{key}", "raised": raised, "digest": digest}
                row |= {"kernels": kernels, "repeats": runs[0].get(key) == runs[1][key]}
                out.write(json.dumps(row) + "\n")
            out.flush()


# --- both sides -----------------------------------------------------------------------------------


def verdict_of(native, ours):
    """What the difference of one sample is called, and a few words about it."""
    if ours is None:
        return "not recorded", ""
    if not native["repeats"]:
        return "native does not repeat itself", ""
    if native["raised"] != ours["raised"]:
        side = "flagos raises" if ours["raised"] else "flagos accepts"
        return side, f"{ours['raised']} against {native['raised']}"
    if native["kernels"] != ours["kernels"]:
        a, b = native["kernels"], ours["kernels"]
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        names = [(kernels[first:] or ["-"])[0][:90] for kernels in (a, b)]
        return "other kernels", f"{len(a)} {len(b)} @{first} {names[0]} | {names[1]}"
    if native["digest"] != ours["digest"]:
        return "other results", ""
    return ("both raise" if native["raised"] else "same"), ""


def reason_for(name, verdict):
    for pattern, of, reason in REASONS:
        if of == verdict and fnmatch.fnmatchcase(name, pattern):
            return reason
    return None


FINE = ("same", "both raise", "native does not repeat itself")


def compare(native, ours):
    """Counts of verdicts, and lines about what differs; True where a difference has no reason."""
    counts, worst = collections.Counter(), {}
    for key, row in native.items():
        verdict, detail = verdict_of(row, ours.get(key))
        name, _, rest = key.partition(":")
        reason = reason_for(name, verdict)
        counts["explained" if reason else verdict] += 1
        if verdict not in FINE:
            variant = rest.partition(":")[2].partition("#")[0]
            entry = worst.setdefault((name, variant, verdict), [key, reason or detail, 0, reason])
            entry[2] += 1
    lines = [f"{verdict}: {count}" for verdict, count in sorted(counts.items())]
    for (name, variant, verdict), (key, detail, count, _) in sorted(worst.items()):
        lines.append(f"{name} {variant} [{verdict}, {count}] {key} {detail}")
    return lines, any(not entry[3] for entry in worst.values())


def run_side(device, arguments, folder):
    paths = [os.path.join(folder, f"{device}.{i}") for i in range(arguments.jobs)]
    options = ["dtypes", "variants", "samples", "suites", "jobs", "only"]
    passed = [f"--{name}={getattr(arguments, name)}" for name in options]
    script = os.path.abspath(__file__)
    # PyTorch's generators of samples iterate over sets of strings. While a profiler records nothing
    # is queued; without the queue the samples are also prepared as on native CUDA.
    environment = dict(os.environ, PYTHONHASHSEED="0", TORCH_FL_QUEUE="0")
    running = [
        subprocess.Popen(
            [sys.executable, script, *passed, "--record", device, str(i), path], env=environment
        )
        for i, path in enumerate(paths)
    ]
    died = [process.args[-2] for process in running if process.wait()]
    if died:
        print(f"{device}: the processes of shards {', '.join(died)} died", file=sys.stderr)
    rows = [json.loads(line) for path in paths if os.path.exists(path) for line in open(path)]
    return {row["key"]: row for row in rows}, bool(died)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--variants", default="forward,backward")
    parser.add_argument("--suites", default="operators")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--log")
    parser.add_argument("--record", nargs=3, metavar=("DEVICE", "SHARD", "FILE"))
    arguments = parser.parse_args()
    if arguments.record:
        device, shard, path = arguments.record
        return record(device, int(shard), arguments, path)
    with tempfile.TemporaryDirectory() as folder:
        native, native_died = run_side("cuda", arguments, folder)
        again, again_died = run_side("cuda", arguments, folder)
        ours, ours_died = run_side("flagos", arguments, folder)
    for key, row in native.items():
        row["repeats"] &= again.get(key) == row
    lines, differs = compare(native, ours)
    print("\n".join(lines))
    if arguments.log:
        with open(arguments.log, "w") as out:
            out.write("\n".join(lines) + "\n")
    return int(differs or native_died or again_died or ours_died or not native)


if __name__ == "__main__":
    sys.exit(main())
