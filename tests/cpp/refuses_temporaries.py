"""Code that shows a temporary must not compile, and say why; the same code with a variable must.

usage: refuses_temporaries.py compiler source include-folder...
"""

import concurrent.futures
import subprocess
import sys


def compile_case(number, compiler, source, folders):
    first, second, *torch = folders
    return subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", f"-DCASE={number}", f"-I{first}", f"-I{second}"]
        + [word for folder in torch for word in ("-isystem", folder)]
        + [source],
        capture_output=True,
        text=True,
    )


def main(compiler, source, *folders):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        cases = list(pool.map(lambda n: compile_case(n, compiler, source, folders), range(3)))
    assert cases[0].returncode == 0, f"variables must be taken:\n{cases[0].stderr}"
    for number, done in enumerate(cases[1:], start=1):
        assert done.returncode != 0, f"case {number} compiles, though it shows a temporary"
        assert "bind a variable, not a" in done.stderr, done.stderr
        errors = [line for line in done.stderr.splitlines() if " error: " in line]
        assert len(errors) == 1, f"case {number} fails for another reason:\n{done.stderr}"


if __name__ == "__main__":
    main(*sys.argv[1:])
