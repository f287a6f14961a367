"""The names of torch.cuda, what torch.flagos has for each, and which kind of platform serves it.

    python -m torch_fl.flagos._names > docs/flagos.md

The number after a name says how many of four out-of-tree backends of PyTorch have it; "-" that
nobody has looked.
"""

import types

from torch_fl.flagos import storages, types as tensors

NAMES = {
    "Device": """is_available 4 is_initialized 4 init 4 device_count 4 current_device 4 set_device 4
        device 4 device_of 4 synchronize 4 get_device_name 4 get_device_capability 4
        get_device_properties 4 can_device_access_peer 4 get_arch_list 3 get_gencode_flags 2
        is_bf16_supported 4 is_tf32_supported 2 cudart 3 check_error 2 cudaStatus 1 CudaError 1
        DeferredCudaCallError 1 AcceleratorError 0 OutOfMemoryError 1 has_half 1 has_magma 0
        current_blas_handle 2 current_solver_handle 0 ipc_collect 2 set_sync_debug_mode 2
        get_sync_debug_mode 2 _sleep 2""",
    "Streams and events": """Stream 4 ExternalStream 3 Event 4 StreamContext 4 stream 4 set_stream 4
        current_stream 4 default_stream 3 get_stream_from_external 1""",
    "Graphs": """CUDAGraph 4 graph 4 graph_pool_handle 4 make_graphed_callables 4
        is_current_stream_capturing 4""",
    "Random numbers": """manual_seed 4 manual_seed_all 4 seed 4 seed_all 4 initial_seed 4
        get_rng_state 4 get_rng_state_all 4 set_rng_state 4 set_rng_state_all 4 default_generators 4
        _is_in_bad_fork 4""",
    "Memory": """empty_cache 4 memory_stats 4 memory_stats_as_nested_dict 4 memory_summary 3
        memory_snapshot 4 memory_allocated 4 max_memory_allocated 4 reset_max_memory_allocated 3
        memory_reserved 4 max_memory_reserved 4 memory_cached 2 max_memory_cached 2
        reset_max_memory_cached 3 reset_peak_memory_stats 4 reset_accumulated_memory_stats 4
        host_memory_stats 1 host_memory_stats_as_nested_dict 1 reset_accumulated_host_memory_stats 1
        reset_peak_host_memory_stats 1 mem_get_info 4 get_per_process_memory_fraction 2
        set_per_process_memory_fraction 4 caching_allocator_alloc 1 caching_allocator_delete 1
        caching_allocator_enable 0 caching_allocator_disabled 0 get_allocator_backend 3
        CUDAPluggableAllocator 3 change_current_allocator 3 MemPool 3 use_mem_pool 3
        list_gpu_processes 1 _record_memory_history 2 _dump_snapshot 2 _snapshot 2
        _set_allocator_settings 2""",
    "Telemetry": """device_memory_used 2 memory_usage 1 utilization 2 temperature 1 power_draw 1
        clock_rate 1""",
    "Submodules": """amp 3 comm 0 nccl 1 nvtx 2 profiler 0 jiterator 0 tunable 1 gds 0 GreenContext 0
        sparse 0 _sanitizer 1""",
    "Typed tensors and storages": " ".join(f"{name} -" for name in tensors.__all__ + storages.__all__),
}

# Names that speak of CUDA and have a general one here; both can be used.
GENERAL = {
    "cudart": "runtime",
    "CUDAGraph": "Graph",
    "CudaError": "AcceleratorError",
    "DeferredCudaCallError": "DeferredCallError",
}

COLUMNS = {"cpu": "`cpu`", "core": "`sim`, chips without a twin", "cuda": "`cuda`"}

HEAD = """# torch.flagos, name by name

Made by `python -m torch_fl.flagos._names` from the code; a test compares the two, and calls each
name on the platform it runs on.

A name behaves as torch.cuda documents it, with "flagos" for "cuda". Where the answer is a number in
brackets the name is there, and calling it raises `NotImplementedError` with the reason of that
number; "partly" is explained beside the name. *Peers* says how many of four other backends of
PyTorch have the name; - that nobody has looked."""


def rows():
    """(group, name, peers) of each name."""
    for group, text in NAMES.items():
        words = text.split()
        for name, peers in zip(words[::2], words[1::2]):
            yield group, name, peers


def unserved(member):
    """{kind of platform: reason} of a name. A module is served where one of its functions is."""
    if not isinstance(member, types.ModuleType) or "_unserved" in vars(member):
        return getattr(member, "_unserved", {})
    marks = [getattr(vars(member)[name], "_unserved", {}) for name in member.__all__]
    kinds = set.intersection(*(set(mark) for mark in marks)) if marks else set()
    return {kind: marks[0][kind] for kind in kinds}


def partly(member):
    """{function: {kind: reason}} of those functions of a module that less serves than the module."""
    if not isinstance(member, types.ModuleType):
        return {}
    whole = unserved(member)
    parts = {}
    for name in getattr(member, "__all__", ()):
        mark = getattr(vars(member)[name], "_unserved", {})
        rest = {kind: reason for kind, reason in mark.items() if kind not in whole}
        if rest:
            parts[name] = rest
    return parts


def page():
    """docs/flagos.md."""
    from torch_fl import flagos

    reasons, lines, group = {}, [HEAD], None

    def number(reason):
        return f"[{reasons.setdefault(reason, len(reasons) + 1)}]"

    for title, name, peers in rows():
        if title != group:
            group = title
            lines.append(f"\n## {group}\n")
            lines.append("| name | " + " | ".join(COLUMNS.values()) + " | peers | |")
            lines.append("|---" * (len(COLUMNS) + 3) + "|")
        member = getattr(flagos, name)
        missing, parts = unserved(member), partly(member)
        notes = [f"also `{GENERAL[name]}`"] if name in GENERAL else []
        notes += [getattr(member, "_note", None) or ""]
        cells = []
        for kind in COLUMNS:
            short = [part for part in parts if kind in parts[part]]
            if kind in missing:
                cells.append(number(missing[kind]))
            else:
                cells.append("partly" if short else "yes")
        for part in parts:
            where = ", ".join(f"`{kind}` {number(why)}" for kind, why in parts[part].items())
            notes.append(f"not `{part}`: {where}")
        text = "; ".join(note for note in notes if note).replace("`core`", "without a twin")
        lines.append(f"| `{name}` | {' | '.join(cells)} | {peers} | {text} |")
    lines.append("\n## Reasons\n")
    lines += [f"{index}. {reason}" for reason, index in reasons.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
