"""python -m torch_fl demo: the same model on flagos and on its twin, compared and timed.

The twin runs in a child process that does not load torch_fl, because a process has one accelerator.
Rounds of timing alternate between the two, so that both see the same machine.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import torch_fl
from torch_fl import _minilm, routes

RUNS_A_ROUND = 5
OPERATORS_SHOWN = 12
# On a machine that is busy or slow fewer rounds have to do.
PATIENCE_S = 20


class Twin:
    """The child process; one command at a time."""

    def __init__(self, device):
        script = str(pathlib.Path(_minilm.__file__))
        run = f"import runpy, sys; sys.argv = ['-', {device!r}]; runpy.run_path({script!r}, run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-c", run],
            env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command, argument):
        try:
            self.process.stdin.write(f"{command} {argument}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The missing answer says it.
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the twin's process ended with status {self.process.wait()}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(ours, twins):
    """None where both tensors are the same bits, else a sentence about the difference."""
    if ours.shape != twins.shape or ours.dtype != twins.dtype:
        return f"{ours.dtype} {tuple(ours.shape)} against {twins.dtype} {tuple(twins.shape)}"
    different = ours.view(torch.int32) != twins.view(torch.int32)
    if not different.any():
        return None
    largest = (ours - twins).abs().max().item()
    return f"{int(different.sum())} of {ours.numel()} values differ, by at most {largest:.3g}"


def similarity(embeddings):
    """The matrix of cosines as text, with the sentences that it is about."""
    cosines = embeddings @ embeddings.T
    lines = []
    for row, sentence in zip(cosines.tolist(), _minilm.SENTENCES):
        # Adding 0 makes "0.00" of a small negative number.
        lines.append(" ".join(f"{round(value, 2) + 0:5.2f}" for value in row) + f"  {sentence}")
    return "\n".join(lines)


def run(arguments):
    chosen = torch_fl.platform()
    twin_device = chosen["twin"] or "cpu"
    twin = Twin(twin_device)
    try:
        ours = _minilm.Embedder("flagos", torch_fl.flagos.synchronize)
        twin_of = f"twin: {twin_device}" if chosen["twin"] else f"no twin: compared with {twin_device}"
        print(f"platform   {chosen['name']} ({twin_of})")
        print(f"device     flagos:0, {torch_fl.flagos.get_device_name(0)}")
        print(f"torch      {torch.__version__}, {torch.get_num_threads()} threads")
        print("model      all-MiniLM-L6-v2, float32", flush=True)

        routes.reset_counts()
        embeddings = ours.embed().cpu()
        report = routes.report()
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "embeddings.pt")
            twin.ask("embed", path)
            difference = compare(embeddings, torch.load(path, weights_only=True))
        print(f"\nsimilarity of the sentences\n{similarity(embeddings)}\n")
        judge = "the twin" if chosen["twin"] else f"those of {twin_device}"
        print(f"embeddings {difference or f'bit-identical to {judge}'}")

        ours.times(1), twin.ask("time", 1)  # The first runs make caches and threads.
        pairs = []
        start = time.monotonic()
        while len(pairs) < arguments.rounds and (not pairs or time.monotonic() < start + PATIENCE_S):
            pair = ours.times(RUNS_A_ROUND), twin.ask("time", RUNS_A_ROUND)
            pairs.append([statistics.median(times) for times in pair])
        flagos_time, twin_time = (statistics.median(column) for column in zip(*pairs))
        ratio = statistics.median(ours_time / twins_time for ours_time, twins_time in pairs)
        print(
            f"time       {flagos_time * 1e3:.2f} ms on flagos, {twin_time * 1e3:.2f} ms on "
            f"{twin_device}: ratio {ratio:.3f} (medians of {len(pairs)} rounds)"
        )
        print(f"\nroutes of one forward pass\n{report.text(OPERATORS_SHOWN)}")
    finally:
        twin.close()
    return 1 if difference else 0
