"""python -m torch_fl: what was found, the demonstration, and the suite for drivers."""

import argparse
import os
import sys


def positive(text):
    """A whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m torch_fl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info", help="platforms found and why each other one was not, versions, devices, memory"
    )
    info.add_argument("--json", action="store_true", help="print it as JSON")
    demo = commands.add_parser(
        "demo", help="sentence embeddings on flagos and on its twin: compared bit by bit and timed"
    )
    demo.add_argument("--rounds", type=positive, default=5, help="rounds of timing (default: 5)")
    conformance = commands.add_parser(
        "conformance", help="the suite that every driver must pass, on one driver"
    )
    conformance.add_argument("--driver", help="platform whose driver it is (default: the chosen one)")
    conformance.add_argument("--cases", default="", help="only those whose name begins like this")
    chosen = parser.parse_args(arguments)
    if chosen.command == "info":
        from torch_fl import _info as command
    elif chosen.command == "demo":
        from torch_fl import _demo as command
    else:
        from torch_fl import _conformance as command
    return command.run(chosen)


def quietly():
    """main without a traceback where nobody made a mistake: the reader of a pipe went away (as `head`
    does), or a person pressed Ctrl-C."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still buffered goes nowhere, instead of failing once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(quietly())
