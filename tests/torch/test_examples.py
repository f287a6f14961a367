"""Every script in examples/ runs, and checks its own result."""

import pytest
from conftest import ROOT, run_python

RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "amp.py": "step 60: loss",
    "diffusion.py": "the same seed gives the same image: True",
    "first.py": "device='flagos:0'",
    "generation.py": "sampled:",
    "inference.py": "(8, 16, 64) in bfloat16",
    "loader.py": "the sum of 256 rows is 523776",
    "profiling.py": "aten::mm",
    "routes.py": "the result is the same: True",
    "saving.py": "training goes on the same: True",
    "streams.py": "z is 513",
    "training.py": "accuracy",
}
NEEDS = {"diffusion.py": "diffusers", "generation.py": "transformers"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_example(script):
    if script.name in NEEDS:
        pytest.importorskip(NEEDS[script.name])
    # What the README says to set where the machine has a CUDA device.
    done = run_python(RUN, str(script), TORCH_FL_AUTOLOAD=1)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert SAYS[script.name] in done.stdout
    # PyTorch's profiler writes of the CUDA library that it does not find.
    assert done.stderr == "" or script.name == "profiling.py"
