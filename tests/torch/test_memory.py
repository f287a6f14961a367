"""Memory: statistics, peaks, snapshots, history, limits, blocks for others, pinned memory."""

import collections
import pickle

import pytest
import torch

import torch_fl

flagos = torch.flagos
KIND = torch_fl.platform()["twin"] or "core"
counted = pytest.mark.platforms("sim", "cuda")
MIB = 2**20


def block(bytes):
    return torch.empty(bytes, dtype=torch.uint8, device="flagos")


# --- statistics ----------------------------------------------------------------------------------


@counted
def test_the_tree_has_the_keys_of_torch_cuda():
    block(1)
    stats = flagos.memory_stats()
    assert isinstance(stats, collections.OrderedDict) and list(stats) == sorted(stats)
    for name in (
        "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
        "active_bytes", "inactive_split_bytes", "requested_bytes",
    ):  # fmt: skip
        for pool in ("all", "small_pool", "large_pool"):
            for leaf in ("current", "peak", "allocated", "freed"):
                assert stats[f"{name}.{pool}.{leaf}"] >= 0
    for name in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"):
        assert stats[name] >= 0
    for name in ("oversize_allocations", "oversize_segments"):
        assert stats[f"{name}.current"] >= 0


@counted
def test_numbers_add_up():
    before = flagos.memory_stats()
    x, y, z = block(100), block(3 * MIB), block(5 * MIB)
    del z
    after = flagos.memory_stats()
    for name in ("allocation", "allocated_bytes", "reserved_bytes", "requested_bytes"):
        whole, small, large = (
            after[f"{name}.{pool}.current"] for pool in ("all", "small_pool", "large_pool")
        )
        assert whole == small + large
        for pool in ("all", "small_pool", "large_pool"):
            current, allocated, freed = (
                after[f"{name}.{pool}.{leaf}"] - before.get(f"{name}.{pool}.{leaf}", 0)
                for leaf in ("current", "allocated", "freed")
            )
            assert allocated - freed == current
    changed = after["requested_bytes.all.current"] - before.get("requested_bytes.all.current", 0)
    assert changed == 3 * MIB + 100
    del x, y


@counted
def test_peaks_and_sums_start_again():
    x = block(8 * MIB)
    del x
    assert flagos.max_memory_allocated() >= flagos.memory_allocated() + 8 * MIB
    flagos.reset_peak_memory_stats()
    assert flagos.max_memory_allocated() == flagos.memory_allocated()
    assert flagos.max_memory_reserved() == flagos.memory_reserved()
    flagos.reset_accumulated_memory_stats()
    stats = flagos.memory_stats()
    assert stats["allocation.all.allocated"] == 0 == stats["allocation.all.freed"]
    assert stats["num_ooms"] == 0


@counted
def test_old_names_say_so_and_answer_the_same():
    x = block(4 * MIB)
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert flagos.memory_cached() == flagos.memory_reserved()
    with pytest.warns(FutureWarning, match="max_memory_reserved"):
        assert flagos.max_memory_cached() == flagos.max_memory_reserved()
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        flagos.reset_max_memory_allocated()
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        flagos.reset_max_memory_cached()
    del x


@counted
def test_the_cache_is_given_back():
    x = block(64 * MIB)
    del x
    assert flagos.memory_reserved() >= flagos.memory_allocated() + 64 * MIB
    flagos.empty_cache()
    assert flagos.memory_reserved() < flagos.memory_allocated() + 64 * MIB


@counted
def test_devices_are_counted_apart():
    if flagos.device_count() < 2:
        pytest.skip("needs two devices")
    before = flagos.memory_allocated(0), flagos.memory_allocated(1)
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="flagos:1")
    assert flagos.memory_allocated("flagos:0") == before[0]
    assert flagos.memory_allocated(torch.device("flagos:1")) == before[1] + 5 * MIB
    del x


@counted
def test_the_summary_shows_the_numbers():
    x = block(20 * MIB)
    whole, short = flagos.memory_summary(), flagos.memory_summary(abbreviated=True)
    assert "flagos:0" in whole and "large" in whole and "large" not in short
    assert f"{flagos.memory_allocated() / MIB:.0f} MiB" in short or "KiB" in short
    assert len({len(line) for line in whole.splitlines()}) == 1
    del x


@counted
def test_nothing_is_initialised_by_asking(python):
    code = """
import torch, torch_fl
flagos = torch.flagos
print(dict(flagos.memory_stats()), flagos.memory_allocated(), flagos.host_memory_stats())
flagos.empty_cache()
print(flagos.is_initialized())
"""
    printed = python(code, TORCH_FL_PLATFORM=torch_fl.platform()["name"])
    assert printed == "{} 0 OrderedDict()\nFalse\n"


@counted
@pytest.mark.parametrize("index", [-7, 99])
def test_a_device_that_there_is_not_has_no_memory(index):
    block(1)
    for call in (flagos.memory_allocated, flagos.reset_peak_memory_stats, flagos.memory_summary):
        with pytest.raises(RuntimeError, match=str(index)):
            call(index)


# --- what is where -------------------------------------------------------------------------------


@counted
def test_a_snapshot_shows_each_block():
    x = block(3 * MIB + 5)
    segments = flagos.memory_snapshot()
    found = [
        (segment, piece)
        for segment in segments
        for piece in segment["blocks"]
        if piece["address"] == x.data_ptr()
    ]
    [(segment, piece)] = found
    assert piece["state"] == "active_allocated" and piece["requested_size"] == 3 * MIB + 5
    assert segment["segment_type"] == "large" and segment["device"] == 0
    for segment in segments:
        assert sum(piece["size"] for piece in segment["blocks"]) == segment["total_size"]
    reserved = sum(segment["total_size"] for segment in segments if segment["device"] == 0)
    assert reserved == flagos.memory_reserved(0)
    del x, piece, found
    states = {piece["state"] for segment in flagos.memory_snapshot() for piece in segment["blocks"]}
    assert "inactive" in states


@counted
def test_history_tells_what_happened(tmp_path):
    from torch.cuda import _memory_viz

    flagos._record_memory_history(max_entries=1000)
    try:
        x = block(7 * MIB)
        address = x.data_ptr()
        del x
        path = tmp_path / "picture.pickle"
        flagos._dump_snapshot(str(path))
    finally:
        flagos._record_memory_history(None)
    picture = pickle.loads(path.read_bytes())
    actions = [e["action"] for e in picture["device_traces"][0] if e.get("addr") == address]
    freed = actions[actions.index("alloc") :]
    assert freed[:3] == ["alloc", "free_requested", "free_completed"]
    # The tools that come with PyTorch read it.
    assert "total_reserved" in _memory_viz.segsum(picture)
    assert "Device 0" in _memory_viz.trace(picture)


@counted
def test_history_keeps_so_many_and_leaves_out_what_is_told():
    flagos._record_memory_history(max_entries=5, skip_actions=["free_requested"])
    try:
        for _ in range(20):
            block(MIB)
        trace = flagos._snapshot()["device_traces"][0]
        assert 0 < len(trace) <= 5
        assert "free_requested" not in {entry["action"] for entry in trace}
    finally:
        flagos._record_memory_history(None)
    assert flagos._snapshot()["device_traces"][0] == [] or KIND == "cuda"
    with pytest.raises(ValueError, match="loud"):
        flagos._record_memory_history("loud")


@pytest.mark.platforms("sim")
def test_a_history_refuses_actions_that_there_are_not():
    with pytest.raises(ValueError, match="nosuch"):
        flagos._record_memory_history(skip_actions=["nosuch"])


# --- limits and blocks ---------------------------------------------------------------------------


@counted
def test_a_share_of_the_memory_is_a_limit():
    total = flagos.get_device_properties().total_memory
    flagos.empty_cache()
    held = flagos.memory_reserved()
    flagos.set_per_process_memory_fraction((held + 64 * MIB) / total)
    try:
        assert flagos.get_per_process_memory_fraction() == pytest.approx((held + 64 * MIB) / total)
        with pytest.raises(torch.OutOfMemoryError):
            block(128 * MIB)
        assert flagos.memory_stats()["num_ooms"] >= 1
        x = block(16 * MIB)
    finally:
        flagos.set_per_process_memory_fraction(1.0)
    y = block(128 * MIB)
    del x, y
    flagos.empty_cache()


@counted
def test_a_limit_is_a_float_between_0_and_1():
    with pytest.raises(TypeError, match="float"):
        flagos.set_per_process_memory_fraction(1)
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match="0~1"):
            flagos.set_per_process_memory_fraction(wrong)


def test_blocks_for_other_libraries():
    address = flagos.caching_allocator_alloc(MIB)
    other = flagos.caching_allocator_alloc(MIB, 0, flagos.Stream())
    assert address and other and abs(address - other) >= MIB
    flagos.caching_allocator_delete(address)
    flagos.caching_allocator_delete(other)
    with pytest.raises(TypeError, match="stream"):
        flagos.caching_allocator_alloc(MIB, stream="default")


@pytest.mark.platforms("cpu", "sim")
def test_a_block_is_freed_once():
    address = flagos.caching_allocator_alloc(100)
    flagos.caching_allocator_delete(address)
    with pytest.raises(ValueError, match=f"{address:#x}"):
        flagos.caching_allocator_delete(address)


@pytest.mark.platforms("sim")
def test_blocks_for_other_libraries_are_counted_and_may_not_fit():
    before = flagos.memory_allocated()
    address = flagos.caching_allocator_alloc(MIB)
    assert flagos.memory_allocated() == before + MIB
    flagos.caching_allocator_delete(address)
    assert flagos.memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        flagos.caching_allocator_alloc(2**40)


@pytest.mark.platforms("sim")
def test_settings_of_the_allocator(recwarn):
    flagos._set_allocator_settings("max_split_size_mb:64,garbage_collection_threshold:0.8")
    assert not recwarn.list
    block(1)
    with pytest.warns(UserWarning, match="expandable_segments"):
        flagos._set_allocator_settings("expandable_segments:True")
    with pytest.raises(ValueError, match="nosuch"):
        flagos._set_allocator_settings("nosuch:1")
    flagos._set_allocator_settings("")
    assert flagos.get_allocator_backend() == "native"


def test_used_memory_is_what_is_not_free():
    total = flagos.get_device_properties().total_memory
    assert 0 <= flagos.device_memory_used() <= total
    with pytest.raises((RuntimeError, IndexError)):
        flagos.device_memory_used(99)


# --- pinned memory -------------------------------------------------------------------------------


def test_pinned_memory_is_counted():
    flagos.init()
    before = flagos.host_memory_stats()["active_requests.allocated"]
    x = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory()
    stats = flagos.host_memory_stats()
    assert x.is_pinned() and stats["active_requests.allocated"] == before + 1
    # Sizes are powers of two.
    assert stats["active_bytes.current"] >= 4 * MIB
    assert stats["allocations.current"] >= 1 and stats["num_host_alloc"] >= 1
    assert stats["host_alloc_time.count"] >= 1 and stats["host_alloc_time.avg"] >= 0
    assert list(stats) == sorted(stats)
    tree = flagos.host_memory_stats_as_nested_dict()
    assert tree["allocated_bytes"]["current"] == stats["allocated_bytes.current"]
    flagos.reset_peak_host_memory_stats()
    flagos.reset_accumulated_host_memory_stats()
    assert flagos.host_memory_stats()["active_requests.allocated"] == 0
    del x


# --- torch.accelerator ---------------------------------------------------------------------------


@counted
def test_torch_accelerator_answers_the_same():
    x = block(2 * MIB)
    assert torch.accelerator.memory_allocated() == flagos.memory_allocated()
    assert torch.accelerator.max_memory_allocated(0) == flagos.max_memory_allocated(0)
    assert torch.accelerator.memory_reserved("flagos:0") == flagos.memory_reserved()
    assert torch.accelerator.max_memory_reserved() == flagos.max_memory_reserved()
    shared = set(torch.accelerator.memory_stats()) & set(flagos.memory_stats())
    assert "allocated_bytes.all.current" in shared and len(shared) > 100
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert flagos.memory_stats()["allocation.all.allocated"] == 0
    torch.accelerator.empty_cache()
    del x


def test_torch_accelerator_knows_free_and_total():
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total == flagos.mem_get_info()[1]


@pytest.mark.platforms("cpu")
def test_torch_accelerator_invents_no_statistics():
    for name in ("memory_stats", "memory_allocated", "reset_peak_memory_stats"):
        with pytest.raises(NotImplementedError, match="cpu"):
            getattr(torch.accelerator, name)()
    torch.accelerator.empty_cache()
