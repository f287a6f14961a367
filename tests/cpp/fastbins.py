"""CUDA's allocator with fast bins before it answers what it answers alone.

usage: fastbins.py [FOLDER_OF_THE_STAND_IN]

Each program runs in two processes, native CUDA and flagos: on a card, or over bench/cpp/idle_cuda.c,
whose memory is numbers with nothing behind them. What a program answers must be equal: statistics with
their peaks, addresses that come again, snapshots, histories, running out of memory.
"""

import gc
import json
import os
import random
import subprocess
import sys
import threading

MIB = 1 << 20
# Sums that no kept block may change. The latter ones count blocks that wait for other streams too, and
# when those are done the allocator notices only when it is asked for memory.
EXACT, EXACT_ON_ONE_STREAM = (
    ("allocation", "allocated_bytes"),
    ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes"),
)


# --- programs: each takes torch and the name of the device ----------------------------------------


def statistics(torch, side, seed, recorded, steps=2500):
    """A program that takes and frees blocks of all sizes on four streams, and looks now and then; with
    `recorded` some are used by other streams too."""
    exact = EXACT if recorded else EXACT_ON_ONE_STREAM
    memory = getattr(torch, side)
    draw, held, seen = random.Random(seed), [], []
    streams = [memory.Stream() for _ in range(3)]

    def size():
        kind = draw.random()
        if kind < 0.5:
            return draw.choice([1, 4, 8, 512, 513, 2048, 4096, 6144, 20480])
        if kind < 0.85:
            return draw.randrange(1, MIB)
        return draw.randrange(MIB, 3 * MIB) if kind < 0.95 else draw.randrange(3 * MIB, 60 * MIB)

    def take():
        held.append(torch.empty(size(), dtype=torch.uint8, device=side))

    for step in range(steps):
        what = draw.random()
        if what < 0.05:
            with memory.stream(draw.choice(streams)):
                take()
        elif what < 0.52:
            take()
        elif what < 0.985:
            for _ in range(draw.randrange(1, 3)):
                if held:
                    held.pop(draw.randrange(len(held)))
        elif what < 0.99 and held and recorded:
            draw.choice(held).record_stream(draw.choice(streams))
        elif what < 0.992:
            memory.reset_peak_memory_stats()
        elif what < 0.993:
            memory.reset_accumulated_memory_stats()
        elif what < 0.994:
            memory.empty_cache()
        elif what < 0.995:
            held.clear()
        if step % 25 == 0:
            memory.synchronize()
            stats = memory.memory_stats()
            seen.append({name: stats[name] for name in stats if name.split(".")[0] in exact})
    reserved = memory.memory_stats()["reserved_bytes.all.peak"]
    return {"seen": seen, "reserved": reserved}


def addresses(torch, side):
    """Whether the memory of a freed tensor comes again at once, and whose."""
    memory = getattr(torch, side)

    def address(elements, stream=None):
        with memory.stream(stream):
            return torch.empty(elements, dtype=torch.uint8, device=side).data_ptr()

    other, found = memory.Stream(), []
    for elements in (1, 512, 5000, MIB, MIB + 1, 30 * MIB):
        first = address(elements)
        found.append([address(elements) == first, address(elements, other) == first])
    return found


def snapshot(torch, side):
    """Blocks of a snapshot that are in use, and what a history holds."""
    memory = getattr(torch, side).memory
    held = [torch.empty(n * 1000, dtype=torch.uint8, device=side) for n in range(1, 9)]
    del held[::2]
    segments = memory.memory_snapshot()
    used = [b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
    torch.cuda.memory._record_memory_history(context=None)
    for _ in range(3):
        torch.empty(7000, dtype=torch.uint8, device=side)
    actions = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
    torch.cuda.memory._record_memory_history(enabled=None)
    return {"used": sorted(used), "actions": actions}


def running_out(torch, side):
    """What is free serves whoever asks, and nothing that is in use is lost."""
    memory = getattr(torch, side)
    total = memory.mem_get_info()[1]
    memory.set_per_process_memory_fraction(64 * MIB / total)
    small = [torch.empty(MIB // 2, dtype=torch.uint8, device=side) for _ in range(100)]
    del small
    large = torch.empty(40 * MIB, dtype=torch.uint8, device=side)  # What small ones had is free.
    try:
        torch.empty(40 * MIB, dtype=torch.uint8, device=side)
        said = "nothing"
    except torch.OutOfMemoryError as error:
        said = str(error).partition(".")[0].partition(" ")[2]  # Behind the device's name.
    allocated = memory.memory_allocated()
    del large
    torch.empty(50 * MIB, dtype=torch.uint8, device=side)
    memory.empty_cache()
    stats = memory.memory_stats()
    return [said, allocated, memory.memory_allocated(), memory.memory_reserved(),
            stats["num_ooms"], stats["num_alloc_retries"]]  # fmt: skip


def pools(torch, side):
    """Memory of a pool of its own stays apart."""
    memory = getattr(torch, side)
    torch.empty(4096, dtype=torch.uint8, device=side)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(4096, dtype=torch.uint8, device=side)
    of_pool = sum(segment["allocated_size"] for segment in pool.snapshot())
    before = memory.memory_allocated()
    del inside
    after = memory.memory_allocated()
    peaks = memory.max_memory_allocated()
    return [of_pool, before, after, peaks]


def growing(torch, side):
    """What is reserved for a cache of keys and values that grows with each token, and for blocks of
    other sizes than those freed before on another stream."""
    memory = getattr(torch, side)
    cache = [torch.empty(16, 1024, dtype=torch.uint8, device=side) for _ in range(56)]
    for token in range(17, 300):
        for i in range(56):
            old, cache[i] = cache[i], torch.empty(token, 1024, dtype=torch.uint8, device=side)
            del old
    peak = memory.max_memory_reserved()
    cache.clear()
    other = memory.Stream()
    for kilobytes in range(1000, 400, -100):
        with memory.stream(other):
            held = [torch.empty(kilobytes << 10, dtype=torch.uint8, device=side) for _ in range(40)]
        del held
    return {"reserved": peak, "reserved later": memory.max_memory_reserved()}


def uncached(torch, side):
    """Blocks of the cache that are freed while there is none, and the other way round."""
    memory = getattr(torch, side)
    first = torch.empty(5000, dtype=torch.uint8, device=side)
    torch.cuda.caching_allocator_enable(False)
    del first
    found = [memory.memory_allocated()]
    second = torch.empty(5000, dtype=torch.uint8, device=side)
    torch.cuda.caching_allocator_enable(True)
    del second
    third = torch.empty(5000, dtype=torch.uint8, device=side)
    return [*found, memory.memory_allocated(), third.numel()]


def wrong_devices(torch, side):
    """What is asked of a device that is not there raises."""
    torch.empty(100, device=side)
    found = []
    for device in (1, 63, 64, 100, 127):
        for ask in (torch.cuda.reset_accumulated_memory_stats, torch.cuda.reset_peak_memory_stats):
            try:
                ask(device)
                found.append("nothing")
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
    return found


def threads(torch, side):
    """What several threads take and free at once is all there, and all gone."""
    memory = getattr(torch, side)

    def work(seed):
        draw, held = random.Random(seed), []
        for _ in range(1500):
            if draw.random() < 0.5 or not held:
                held.append(torch.empty(draw.choice([10, 600, 5000, 3 * MIB]), device=side))
            else:
                held.pop(draw.randrange(len(held)))
        addresses = {tensor.data_ptr() for tensor in held}
        assert len(addresses) == len(held)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gc.collect()
    stats = memory.memory_stats()
    return [stats["allocated_bytes.all.current"], stats["allocation.all.current"],
            stats["active_bytes.all.current"]]  # fmt: skip


PROGRAMS = (
    "addresses", "snapshot", "running_out", "growing", "pools", "uncached", "wrong_devices", "threads"
)  # fmt: skip
# Name, arguments, environment.
CASES = (
    [("statistics", [seed, seed % 2 == 0], {}) for seed in (1, 2, 3, 6)]
    + [(name, [], {}) for name in PROGRAMS]
    + [
        ("statistics", [4, True, 800], {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}),
        ("statistics", [5, False, 800], {"TORCH_FL_TWIN_FASTBINS": "0"}),
        ("addresses", [], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    ]
)


# --- both sides -------------------------------------------------------------------------------------


def run_side(side, name, arguments):
    import torch

    if side == "flagos":
        import torch_fl  # noqa: F401
    getattr(torch, side).init()
    print(json.dumps(globals()[name](torch, side, *arguments)))


def answer(folder, side, name, arguments, environment):
    if folder:
        libraries = (f"{folder}/libidle_{name}.so" for name in ("cuda", "driver", "nvrtc"))
        environment = environment | {"LD_PRELOAD": ":".join(libraries)}
    done = subprocess.run(
        [sys.executable, __file__, "--side", side, name, json.dumps(arguments)],
        env={
            **os.environ,
            "TORCH_FL_PLATFORM": "cuda",
            "TORCH_FL_QUEUE": "0",  # It has memory of its own.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{side} {name}: {done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def main(folder=None):
    for name, arguments, environment in CASES:
        native, ours = (
            answer(folder, side, name, arguments, environment) for side in ("cuda", "flagos")
        )
        # Blocks lie elsewhere, and so other segments hold them.
        for key in [key for key in native if str(key).startswith("reserved")]:
            reserved, most = ours.pop(key), native.pop(key) * 1.01 + 2 * MIB
            assert reserved <= most, f"{name}, {key}: {reserved} bytes, at most {most:.0f}"
        if name == "statistics":
            assert len(native["seen"]) == len(ours["seen"])
            for look, (one, other) in enumerate(zip(native.pop("seen"), ours.pop("seen"))):
                wrong = {key: (one[key], other[key]) for key in one if one[key] != other[key]}
                assert not wrong, f"{arguments}, look {look}, native and ours: {wrong}"
        assert native == ours, f"{name}: native {native}, ours {ours}"
        print(name, *arguments, *environment, "equal", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        run_side(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    else:
        main(*sys.argv[1:])
