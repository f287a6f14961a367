"""Runs a program under callgrind and reads what it counted between count_begin and count_end."""

import contextlib
import pathlib
import re
import subprocess
import tempfile


def instructions(command, keep=None, **options):
    """{name given to count_end: instructions} of one run of `command`. What callgrind wrote, for
    callgrind_annotate, stays in the folder `keep`."""
    with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
            + [f"--callgrind-out-file={folder}/out", *command],
            capture_output=True,
            text=True,
            **options,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found = {}
        for path in pathlib.Path(folder).iterdir():
            text = path.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            # Not the summary, which leaves out what other threads did since the dump before.
            total = re.search(r"^totals: (\d+)", text, re.M)
            if name and total:
                found[name.group(1)] = int(total.group(1))
    assert found, "nothing was counted: was the program built with callgrind's header?"
    return found
