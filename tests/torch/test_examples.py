"""Every script in examples/ runs, and checks its own result."""

import pytest
from conftest import ROOT, run_python

RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "first.py": "device='flagos:0'",
    "routes.py": "the result is the same: True",
    "training.py": "accuracy",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_example(script):
    done = run_python(RUN, str(script))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert SAYS[script.name] in done.stdout
    assert done.stderr == ""
