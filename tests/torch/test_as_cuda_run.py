"""python -m torch_fl run: a script runs and ends as under plain Python, and is inside to its end."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import torch_fl

HERE = torch_fl.platform()["name"]


def started(*words):
    environment = {**os.environ, "TORCH_FL_PLATFORM": HERE}
    return subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True
    )


def run(*words):
    return started("-m", "torch_fl", "run", *words)


LATE = """
import atexit, pickle, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch

class Holder:
    def __init__(self):
        self.tensor = torch.ones(2, device="cuda")

    def __del__(self):
        print("deleted", (self.tensor + torch.ones(2, device="cuda")).sum().item())

def late(name):
    time.sleep(0.3)
    pickle.dumps(Holder)  # It is found in __main__.
    # In one piece, for two threads may write at the same time.
    sys.stdout.write(f"{name} {torch.ones(2).cuda().device} {torch.cuda.is_available()}\\n")

held = Holder()
atexit.register(lambda: print("atexit", torch.zeros(1, device="cuda").is_cuda))
pool = ThreadPoolExecutor(1)
pool.submit(late, "pool").add_done_callback(lambda done: done.result())
threading.Thread(target=late, args=("thread",)).start()
threading.Timer(0.6, late, ("timer",)).start()
print("last line", flush=True)
"""


def test_what_runs_after_the_last_line_is_inside(tmp_path):
    (tmp_path / "script.py").write_text(LATE)
    done = run(tmp_path / "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == "last line"
    assert sorted(lines[:2]) == ["pool cuda:0 True", "thread cuda:0 True"]
    assert lines[2:] == ["timer cuda:0 True", "atexit True", "deleted 4.0"]


HOOK = "import sys\nsys.excepthook = lambda kind, error, traceback: print('hook', kind, "
ENDS = {
    "nothing": "print(__name__, __file__, __spec__, __package__)",
    "error": "def inner():\n    1 / 0\ninner()",
    "cause": "try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('a') from error",
    "syntax": "print(\n1 = 2",
    "hook": HOOK + "error, traceback.tb_frame.f_code.co_name, traceback.tb_lineno)\n1 / 0",
    "hook that ends": "import sys\nsys.excepthook = lambda *error: sys.exit(5)\n1 / 0",
    "exit": "import sys\nsys.exit()",
    "exit with a number": "import sys\nsys.exit(7)",
    "exit with a text": "raise SystemExit('that was all')",
    "exit at once": "import os\nos._exit(9)",
    "interrupt": "def inner():\n    raise KeyboardInterrupt\ninner()",
    "broken pipe": "raise BrokenPipeError(32, 'Broken pipe')",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nraise ValueError('first')",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_under_python(tmp_path, name):
    script = tmp_path / "script.py"
    script.write_text(ENDS[name] + "\n")
    plain, ours = started(script), run(script)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert ours.stderr == plain.stderr
    if name == "interrupt":
        assert ours.returncode == -signal.SIGINT


def test_modules_and_folders_are_run_as_under_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    text = "import sys\nprint(__name__, sys.argv, sys.path[0], __spec__ and __spec__.name)\n1 / 0\n"
    (tmp_path / "package" / "__main__.py").write_text(text)
    for words in (["package", "x"], ["-m", "package", "-x"], ["-m", "nosuch"]):
        plain, ours = started(*words), run(*words)
        assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
        # Python shows its own frames of a module; none below the script are of interest here.
        assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
        assert "torch_fl" not in ours.stderr
