"""What an operator says when one of its tensors lies on the host and the rest on the device.

CUDA's answers are recorded on a card (`python -m opinfo.mixed FILE`, where torch has CUDA and torch_fl is
not loaded) into mixed_cuda.json; flagos must give the same ones on every platform. An answer is "ok" or the
class of the exception. Every tensor of a sample is tried on the host, as it is and as a 0-dim tensor.
"""

import itertools
import json
import pathlib
import subprocess
import sys
import warnings

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .sides import Side
from .suite import database

RECORD = pathlib.Path(__file__).with_name("mixed_cuda.json")
SAMPLES = 3
LEAVES = 6


def dtype_of(op, device_type):
    supported = op.supported_dtypes(device_type)
    wanted = (torch.float32, torch.int64, torch.complex64, torch.bool)
    return next((dtype for dtype in wanted if dtype in supported), None)


def answer(call):
    try:
        call()
    except Exception as error:
        if "CUDA error" in str(error):
            raise SystemExit(3) from error  # The context is lost with it.
        return type(error).__name__
    return "ok"


def scalar(tensor):
    return tensor.detach().reshape(-1)[:1].clone().reshape(())


def answers(op, side, dtype):
    """{"sample/leaf/form": answer} of one operator; forms are "full", "scalar", "inplace", "out"."""
    given = {}
    torch.manual_seed(10)
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for number, sample in enumerate(itertools.islice(samples, SAMPLES)):
        leaves, spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(tensors) > LEAVES:
            continue

        def call(function, host=(), scalars=(), **more):
            place = side.placement()
            placed = [
                (scalar(leaf) if i in scalars else leaf.clone())
                if i in host
                else place(scalar(leaf) if i in scalars else leaf)
                for i, leaf in enumerate(leaves)
            ]
            value, args, kwargs = tree_unflatten(placed, spec)
            return function(value, *args, **kwargs, **more)

        if answer(lambda: call(op)) != "ok":
            continue
        for leaf in tensors if len(tensors) > 1 else ():
            key = f"{number}/{leaf}"
            given[key + "/full"] = answer(lambda: call(op, host=(leaf,)))
            if op.get_inplace() is not None and leaf == tensors[0]:
                if answer(lambda: call(op.get_inplace())) == "ok":
                    for one in tensors:
                        given[f"{number}/{one}/inplace"] = answer(
                            lambda: call(op.get_inplace(), host=(one,))
                        )
            if leaves[leaf].numel() > 0 and answer(lambda: call(op, scalars=(leaf,))) == "ok":
                given[key + "/scalar"] = answer(lambda: call(op, host=(leaf,), scalars=(leaf,)))
        if op.supports_out and tensors:
            expected = call(op)
            if isinstance(expected, torch.Tensor):
                on_host = torch.empty(expected.shape, dtype=expected.dtype)
                given[f"{number}/out/out"] = answer(lambda: call(op, out=on_host))
    return given


# --- recording ----------------------------------------------------------------------------------


def record_some(path, start):
    side = Side("cuda")
    with open(path, "a") as lines:
        for index, (key, op) in enumerate(database("operators").items()):
            if index < start:
                continue
            dtype = dtype_of(op, "cuda")
            print(index, file=lines, flush=True)
            try:
                given = answers(op, side, dtype) if dtype is not None else {}
            except Exception as error:
                given = {"failed": str(error)[:200]}
            print(json.dumps([key, given]), file=lines, flush=True)


def record(path):
    """Each operator that loses the context, or the process, is left out and the next one tried."""
    work = pathlib.Path(path + ".lines")
    work.write_text("")
    start = 0
    while True:
        done = subprocess.run([sys.executable, "-m", "opinfo.mixed", str(work), str(start)])
        if done.returncode == 0:
            break
        start = 1 + max(int(s) for s in work.read_text().splitlines() if not s.startswith("["))
    found = {}
    for line in work.read_text().splitlines():
        if line.startswith("["):
            key, given = json.loads(line)
            found.setdefault(key, given)
    rows = [f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found) if found[key]]
    pathlib.Path(path).write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) > 2:
        record_some(sys.argv[1], int(sys.argv[2]))
    else:
        record(sys.argv[1])
