"""`python -m torch_fl run script.py`: the script as `python script.py` would run it, under as_cuda.

as_cuda holds to the end of the process. Python waits for a script's threads, calls its atexit handlers
and clears its globals after its last line, and all of that is the script's code too. For the same
reason the script gets a module `__main__` of its own, which stays.
"""

import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types

from torch_fl._as_cuda import as_cuda

_kept = []  # What must not go away before the process does.


def run(arguments):
    sys.argv = [arguments.script, *arguments.arguments]
    is_file = not arguments.module and pkgutil.get_importer(arguments.script) is None
    if is_file and not os.path.exists(arguments.script):
        print(f"torch_fl run: there is no file {arguments.script!r}", file=sys.stderr)
        return 2
    main = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    _kept.extend((sys.modules["__main__"], as_cuda()))
    sys.modules["__main__"] = main
    _kept[-1].__enter__()
    try:
        if is_file:
            _add_to_path(os.path.dirname(os.path.realpath(arguments.script)))
            _run_file(os.path.abspath(arguments.script), main)
        elif arguments.module:
            runpy._run_module_as_main(arguments.script)
        else:
            # A folder or an archive with a __main__.py.
            _add_to_path(os.path.abspath(arguments.script))
            runpy._run_module_as_main("__main__", alter_argv=False)
    except SystemExit:
        raise
    except BaseException as error:
        # Python shows it as it shows any other, and ends with the exit code that belongs to it.
        _show_from_script(error, main)
        raise
    return 0


def _add_to_path(folder):
    """First in the path of modules, where Python has put the folder that this command was started in."""
    if getattr(sys.flags, "safe_path", False):
        return
    sys.path[0] = folder


def _run_file(path, main):
    main.__file__, main.__cached__ = path, None
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # None unless it was compiled before.
    kind = importlib.machinery.SourcelessFileLoader
    if code is None:
        kind = importlib.machinery.SourceFileLoader
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    main.__loader__ = kind("__main__", path)
    exec(code, vars(main))


def _show_from_script(error, main):
    """The traceback without what is below the script, for sys.excepthook, which may be the script's."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        return
    frames = first = error.__traceback__.tb_next
    while first and first.tb_frame.f_globals is not vars(main):
        first = first.tb_next
    if first is None and frames and frames.tb_frame.f_globals is globals():
        first = frames.tb_next  # It cannot be compiled.
    else:
        first = first or frames

    def show(kind, error, traceback):
        sys.excepthook, sys.last_traceback = hook, first
        hook(kind, error.with_traceback(first), first)

    sys.excepthook = show
