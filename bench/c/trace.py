"""Make a trace for replay.c from a recording of a real model.

    trace.py snapshot.pickle > model.trace    torch.cuda.memory._dump_snapshot, or torch.flagos'
    trace.py profile.json    > model.trace    torch.profiler(profile_memory=True), exported

A snapshot must have been recorded from the start of the process on
(torch.cuda.memory._record_memory_history(max_entries=...)), or frees of unknown blocks are dropped.
A profile of a CPU run serves as well: sizes and lifetimes of tensors are what counts.
"""

import json
import pickle
import sys


def events_of_snapshot(path, device):
    """Yield (what, address, bytes, stream) of one device, in order."""
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    words = {
        "alloc": "a",
        "free_requested": "f",
        "record_stream": "r",
        "segment_alloc": "+",
        "segment_map": "+",
        "segment_free": "-",
        "segment_unmap": "-",
    }
    for entry in snapshot["device_traces"][device]:
        if entry["action"] in words:
            yield words[entry["action"]], entry["addr"], entry["size"], entry.get("stream", 0)


def events_of_profile(path):
    """Yield the same from the memory events of a Chrome trace."""
    with open(path) as file:
        trace = json.load(file)
    memory = [e for e in trace["traceEvents"] if e.get("name") == "[memory]"]
    for entry in sorted(memory, key=lambda e: e["ts"]):
        arguments = entry["args"]
        size = int(arguments["Bytes"])
        yield ("a" if size > 0 else "f"), int(arguments["Addr"]), abs(size), 0


def convert(events, out):
    """Write the trace: addresses become small ids, streams become numbers."""
    live, spare, streams, last = {}, [], {0: 0}, 0
    reserved = peak = 0
    words = []
    for what, address, size, stream in events:
        if what in "+-":
            reserved += size if what == "+" else -size
            peak = max(peak, reserved)
            continue
        number = streams.setdefault(stream, len(streams))
        if what == "a" and size and address not in live:
            if spare:
                live[address] = spare.pop()
            else:
                live[address], last = last, last + 1
            words.append(f"a{live[address]}:{size}" + (f":{number}" if number else ""))
        elif what == "f" and address in live:
            spare.append(live.pop(address))
            words.append(f"f{spare[-1]}")
        elif what == "r" and address in live:
            words.append(f"r{live[address]}:{number}")
    out.write("fl-memory-trace 1\n")
    if peak:
        out.write(f"# recorded_reserved {peak}\n")
    for start in range(0, len(words), 64):
        out.write(" ".join(words[start : start + 64]) + "\n")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    path = sys.argv[1]
    device = int(sys.argv[2]) if len(sys.argv) == 3 else 0
    if path.endswith(".json"):
        convert(events_of_profile(path), sys.stdout)
    else:
        convert(events_of_snapshot(path, device), sys.stdout)


if __name__ == "__main__":
    main()
