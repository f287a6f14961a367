"""python -m torch_fl: what was found, scripts written for cuda, the demonstration, and the suite
for drivers."""

import argparse
import json
import os
import sys

import torch_fl


def positive(text):
    """A whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def split_run(words):
    """The words of `run` up to the script, and those behind it, which are the script's own: argparse
    would take a "--" out of them. None where there is no script."""
    if words[:1] == ["run"]:
        for index, word in enumerate(words[1:], 1):
            if not word.startswith("-"):
                return words[: index + 1], words[index + 1 :]
    return words, None


def report(page, as_json):
    """Print the facts that a module collects, as JSON or as its text."""
    facts = page.collect()
    print(json.dumps(facts, indent=2) if as_json else page.text(facts))
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m torch_fl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info", help="platforms found and why each other one was not, versions, devices, memory"
    )
    info.add_argument("--json", action="store_true", help="print it as JSON")
    env = commands.add_parser(
        "env", help="info, and versions of everything that matters: what a bug report should hold"
    )
    env.add_argument("--json", action="store_true", help="print it as JSON")
    script = commands.add_parser("run", help="run a script that was written for cuda on flagos")
    script.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    script.add_argument("script", help="path of the script")
    passed = {"nargs": "*", "default": [], "help": "arguments of the script, passed on as they are"}
    script.add_argument("arguments", **passed)
    demo = commands.add_parser(
        "demo", help="sentence embeddings on flagos and on its twin: compared bit by bit and timed"
    )
    demo.add_argument("--rounds", type=positive, default=5, help="rounds of timing (default: 5)")
    conformance = commands.add_parser(
        "conformance", help="the suite that every driver must pass, on one driver"
    )
    conformance.add_argument("--driver", help="platform whose driver it is (default: the chosen one)")
    conformance.add_argument("--cases", default="", help="only those whose name begins like this")
    words, passed_on = split_run(sys.argv[1:] if arguments is None else arguments)
    chosen = parser.parse_args(words)
    if passed_on is not None:
        chosen.arguments = passed_on
    # The suite may be asked for on another platform than the one that this process could not take.
    other = chosen.command == "conformance" and chosen.driver is not None and hasattr(torch_fl, "_C")
    if torch_fl._failure is not None and chosen.command != "env" and not other:
        if getattr(chosen, "json", False):
            print(json.dumps({"error": str(torch_fl._failure)}, indent=2))
        print(torch_fl._failure, file=sys.stderr)
        return 1
    if chosen.command == "info":
        from torch_fl import _info

        return report(_info, chosen.json)
    if chosen.command == "env":
        from torch_fl import _env

        return report(_env, chosen.json)
    if chosen.command == "run":
        from torch_fl import _run as command
    elif chosen.command == "demo":
        from torch_fl import _demo as command
    else:
        from torch_fl import _conformance as command
    return command.run(chosen)


def forget_output():
    """What is still buffered goes nowhere, instead of failing once more at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def quietly():
    """main without a traceback where nobody made a mistake: there is no output (`>&-`), its disk is
    full, the reader of a pipe went away (as `head` does), or a person pressed Ctrl-C. What a script
    does is the script's: Python says it and ends as it would without us."""
    if sys.argv[1:2] == ["run"]:
        return main()
    try:
        code = main()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        forget_output()
        return 141
    except OSError as error:
        if error.filename is not None:  # Not of the output.
            raise
        forget_output()
        print(f"python -m torch_fl: the output cannot be written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(quietly())
