"""Run a piece of code on flagos and on its twin, and compare bit for bit.

A case is a function at the top of a test module that takes a device first and gives back tensors,
in any nesting of tuples, lists and dicts. With the host as the twin both run in this process, for
nothing of ours touches plain CPU tensors. Other twins run in a child that does not load torch_fl
and serves one case after another: in this process PyTorch's accelerator is flagos. So the modules
that hold cases may not import torch_fl while they are imported.
"""

import functools
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent


def on_host(value):
    """The same nesting with every tensor on the host, strides kept; other values as they are."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        return copy.copy_(value)
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [on_host(item) for item in value]
    return value


def differences(ours, twins, where="result"):
    """Sentences about what differs; bits count, so two NaNs of one pattern are equal."""
    if isinstance(twins, torch.Tensor):
        for field in ("dtype", "shape"):
            if getattr(ours, field) != getattr(twins, field):
                return [f"{where}: {field} {getattr(ours, field)}, not {getattr(twins, field)}"]
        if ours.stride() != twins.stride():
            return [f"{where}: strides {ours.stride()}, not {twins.stride()}"]
        ours, twins = ours.contiguous(), twins.contiguous()
        if not torch.equal(ours.view(-1).view(torch.uint8), twins.view(-1).view(torch.uint8)):
            gap = (ours.to(torch.float64) - twins.to(torch.float64)).abs().max().item()
            return [f"{where}: other bits, by {gap} at most"]
        return []
    if isinstance(twins, dict):
        if list(ours) != list(twins):
            return [f"{where}: keys {list(ours)}, not {list(twins)}"]
        pairs = ((f"{where}.{key}", ours[key], twins[key]) for key in twins)
        return [line for place, a, b in pairs for line in differences(a, b, place)]
    if isinstance(twins, list):
        if len(ours) != len(twins):
            return [f"{where}: {len(ours)} items, not {len(twins)}"]
        pairs = enumerate(zip(ours, twins))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    return [] if ours == twins else [f"{where}: {ours!r}, not {twins!r}"]


def run(case, device, arguments):
    torch.manual_seed(0)
    return on_host(case(device, *arguments))


class Twin:
    """The child: it is told the path of a call, and answers in the same file."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "twins.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )

    def run(self, case, device, arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "call.pt")
            torch.save((case.__module__, case.__name__, device, arguments), path)
            print(path, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline().strip()
            assert answer == "done", answer or "the twin's process ended"
            return torch.load(path, weights_only=False)


@functools.cache
def twin_process():
    return Twin()


def run_on_twin(case, arguments):
    import torch_fl

    twin = torch_fl.platform()["twin"]
    if twin == "cpu":
        return run(case, "cpu", arguments)
    return twin_process().run(case, twin, arguments)


def assert_same_as_twin(case, *arguments):
    lines = differences(run(case, "flagos", arguments), run_on_twin(case, arguments))
    assert not lines, "\n".join(lines)


def assert_close_to_twin(case, *arguments, **options):
    """For what the twin itself does not compute alike twice; on the host it is the same. The options
    are those of torch.testing.assert_close."""
    import torch_fl

    if torch_fl.platform()["twin"] == "cpu":
        return assert_same_as_twin(case, *arguments)
    assert_close(run(case, "flagos", arguments), run_on_twin(case, arguments), **options)


def assert_close(ours, twins, **options):
    """torch.testing's, which knows no texts."""
    if isinstance(ours, str):
        assert ours == twins
    elif isinstance(ours, (list, tuple)):
        assert type(ours) is type(twins) and len(ours) == len(twins)
        for one, other in zip(ours, twins):
            assert_close(one, other, **options)
    elif isinstance(ours, dict):
        assert ours.keys() == twins.keys()
        for key, one in ours.items():
            assert_close(one, twins[key], **options)
    else:
        torch.testing.assert_close(ours, twins, **options)


def check_case(case, *arguments):
    """A case on flagos gives the CPU's bits where the CPU's kernels run, and an accelerator's layouts
    and values, but for the order of sums, where those of an accelerator do."""
    from against_cpu import EXACT, check

    if EXACT:
        check(lambda device: case(device, *arguments))
    else:
        assert_close_to_twin(case, *arguments, check_stride=True, equal_nan=True)


def main():
    sys.path.insert(0, str(HERE))
    answers, sys.stdout = sys.stdout, sys.stderr  # What a case prints is no answer.
    for line in sys.stdin:
        path = line.strip()
        module, name, twin, arguments = torch.load(path, weights_only=False)
        try:
            case = getattr(importlib.import_module(module), name)
            assert "torch_fl" not in sys.modules, "the twin's process must not load torch_fl"
            torch.save(run(case, twin, arguments), path)
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
