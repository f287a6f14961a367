"""Write device_rules.inc: how PyTorch's CUDA kernels check that their operands lie on one device.

PyTorch ships the declarations of its operators (native_functions.yaml, inside torchgen); those say of
each operator whether its CUDA kernel is preceded by a check, or is a TensorIterator, which checks for
itself, or whether the operator has no CUDA kernel and is composed of others. One line each:
FL_DEVICE_RULE(name, rule), sorted by name; device_check.h says what the rules mean.

The file is read as text: a build needs no YAML library.

    device_rules.py TORCH_LIBRARY_FOLDER OUTPUT
"""

import pathlib
import re
import sys


def entries(text):
    """{name: (text of the entry)} in the order of the file."""
    found = {}
    for block in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        found[re.match(r"[\w.]+", block).group()] = block
    return found


def field(block, name):
    match = re.search(rf"^  {name}: *(\S.*)$", block, flags=re.MULTILINE)
    return match.group(1) if match else ""


def dispatch_keys(block):
    match = re.search(r"^  dispatch:\n((?:    .*\n?|\s*#.*\n?|\n)+)", block, flags=re.MULTILINE)
    lines = match.group(1).splitlines() if match else []
    return {
        key.strip()
        for line in lines
        if ":" in line and not line.strip().startswith("#")
        for key in line.split(":")[0].split(",")
    }


def rule_of(name, found):
    block = found[name]
    structured = found.get(field(block, "structured_delegate"), block)
    keys = dispatch_keys(structured) | dispatch_keys(block)
    if "CUDA" not in keys:
        return "kParts" if keys & COMPOSITES else ""
    check = field(block, "device_check")
    if not check.startswith("NoCheck"):
        return "kExact"
    if "foreach" in check:
        return "kParts"
    if "TensorIterator" in check or "TensorIterator" in field(structured, "structured_inherits"):
        return "kIterator"
    return "kOperator"


COMPOSITES = {"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}


def main():
    site = pathlib.Path(sys.argv[1]).parents[1]
    text = (site / "torchgen/packaged/ATen/native/native_functions.yaml").read_text()
    found = entries(text)
    if len(found) < 2000:
        sys.exit(f"only {len(found)} operators in native_functions.yaml: its form has changed")
    rules = {f"aten::{name}": rule_of(name, found) for name in found}
    lines = [f'FL_DEVICE_RULE("{name}", {rules[name]})\n' for name in sorted(rules) if rules[name]]
    pathlib.Path(sys.argv[2]).write_text("".join(lines))


main()
