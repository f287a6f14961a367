"""python -m torch_fl info: everything that a person asks first, as text or as JSON."""

import platform as host

import torch

import torch_fl
from torch_fl import _C, _lib


def _device(index):
    properties = torch_fl.flagos.get_device_properties(index)
    entry = {"index": index, **{name: getattr(properties, name) for name in properties.FIELDS}}
    try:
        entry["free_memory"], entry["total_memory"] = torch_fl.flagos.mem_get_info(index)
    except NotImplementedError:
        entry["free_memory"] = None
    return entry


def collect():
    """The same facts as the text, as plain values."""
    built = _lib.built_for()
    return {
        "torch_fl": torch_fl.__version__,
        "torch": torch.__version__,
        "built_for_torch": built["torch"],
        "compiler": built["compiler"],
        "build_type": built["build_type"],
        "python": host.python_version(),
        "system": f"{host.system()} {host.release()} {host.machine()}",
        "platform": _C.platform_chosen(),
        "platforms": _C.platforms(),
        "devices": [_device(index) for index in range(_C.device_count())],
        "options": {row["variable"]: row["value"] for row in _C.options() if row["is_set"]},
        "unknown_variables": _C.options_unknown(),
        "operators": len(_C.route_names()),
    }


def size(number):
    """Bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} bytes"


def _memory(device):
    if not device["total_memory"]:
        return "memory unknown"
    total = size(device["total_memory"])
    free = device["free_memory"]
    return f"{total} memory" if free is None else f"{total} memory, {size(free)} free"


def _details(device):
    words = [_memory(device)]
    if device["multi_processor_count"]:
        words.append(f"{device['multi_processor_count']} processors")
    if (device["major"], device["minor"]) != (0, 0):
        words.append(f"capability {device['major']}.{device['minor']}")
    return ", ".join(words)


def text(facts):
    """The page that a person reads."""
    chosen = facts["platform"]
    twin = f", twin {chosen['twin']}" if chosen["twin"] else ", no twin"
    lines = [
        f"torch_fl   {facts['torch_fl']}, built for torch {facts['built_for_torch']} "
        f"with {facts['compiler']} ({facts['build_type']})",
        f"torch      {facts['torch']}",
        f"python     {facts['python']} on {facts['system']}",
        f"platform   {chosen['name']}{twin}; {facts['operators']} operators",
        "",
        "devices",
    ]
    for device in facts["devices"]:
        lines.append(f"  flagos:{device['index']}  {device['name']}: {_details(device)}")
    if not facts["devices"]:
        lines.append("  none")
    lines += ["", "platforms in the order in which they are tried"]
    for entry in facts["platforms"]:
        if entry["name"] == chosen["name"]:
            state = f"chosen, but {entry['reason']}" if entry["reason"] else "chosen"
        elif entry["reason"]:
            state = f"not usable: {entry['reason']}"
        elif entry["probe_order"] < 0:
            state = f"usable when asked for with TORCH_FL_PLATFORM={entry['name']}"
        else:
            state = "usable"
        lines.append(f"  {entry['name']:<14} {state}")
    if facts["options"]:
        lines += ["", "options that are set"]
        lines += [f"  {name}={value}" for name, value in facts["options"].items()]
    for name in facts["unknown_variables"]:
        lines.append(f"  {name} is set and is no option: see docs/options.md")
    return "\n".join(lines)
