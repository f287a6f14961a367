"""torch.flagos, name by name: there, described, and served or refused as the table says."""

import inspect
import types

import pytest
import torch
from conftest import ROOT

import torch_fl
from torch_fl.flagos import _names, _serve

flagos = torch.flagos
KIND = torch_fl.platform()["twin"] or "core"
ROWS = [pytest.param(name, id=name) for _, name, _ in _names.rows()]


def scaled(x):
    return x * 2


def a_graph_of_one_product():
    x = torch.ones(4, device="flagos")
    captured = flagos.Graph()
    with flagos.graph(captured):
        y = x * 3
    x.fill_(2)
    captured.replay()
    assert y.tolist() == [6.0] * 4


def an_external_stream():
    made = flagos.Stream()
    assert flagos.ExternalStream(made.flagos_stream).native_handle == made.native_handle


def a_pool():
    with flagos.use_mem_pool(flagos.MemPool()):
        assert torch.ones(4, device="flagos").sum().item() == 4


def a_block():
    address = flagos.caching_allocator_alloc(1000)
    assert address > 0
    flagos.caching_allocator_delete(address)


def a_recorded_history(folder):
    flagos._record_memory_history(max_entries=10)
    flagos._record_memory_history(None)
    flagos._dump_snapshot(str(folder / "picture.pickle"))


# How each name is called that takes arguments, or that is tried with others. A name that is not here
# is called without arguments.
CALLS = {
    "set_device": lambda: flagos.set_device(0),
    "device": lambda: flagos.device(0).__enter__(),
    "device_of": lambda: flagos.device_of(torch.empty(1)).__enter__(),
    "can_device_access_peer": lambda: flagos.can_device_access_peer(0, flagos.device_count() - 1),
    "check_error": lambda: flagos.check_error(0),
    "cudaStatus": lambda: flagos.cudaStatus.SUCCESS,
    "set_sync_debug_mode": lambda: flagos.set_sync_debug_mode("default"),
    "_sleep": lambda: flagos._sleep(1000),
    "ExternalStream": an_external_stream,
    "get_stream_from_external": lambda: flagos.get_stream_from_external(
        flagos.Stream().native_handle
    ),
    "StreamContext": lambda: flagos.StreamContext(None).__enter__(),
    "stream": lambda: flagos.stream(None).__enter__(),
    "set_stream": lambda: flagos.set_stream(flagos.current_stream()),
    "graph": a_graph_of_one_product,
    "make_graphed_callables": lambda: flagos.make_graphed_callables(
        scaled, (torch.ones(2, device="flagos", requires_grad=True),)
    ),
    "manual_seed": lambda: flagos.manual_seed(1),
    "manual_seed_all": lambda: flagos.manual_seed_all(1),
    "set_rng_state": lambda: flagos.set_rng_state(flagos.get_rng_state()),
    "set_rng_state_all": lambda: flagos.set_rng_state_all(flagos.get_rng_state_all()),
    "set_per_process_memory_fraction": lambda: flagos.set_per_process_memory_fraction(1.0),
    "caching_allocator_alloc": a_block,
    "caching_allocator_delete": a_block,
    "use_mem_pool": a_pool,
    "_set_allocator_settings": lambda: flagos._set_allocator_settings("max_split_size_mb:64"),
    "comm": lambda: flagos.comm.broadcast(torch.ones(2), [0]),
    "nccl": lambda: flagos.nccl.version(),
    "profiler": lambda: flagos.profiler.start(),
    "tunable": lambda: flagos.tunable.is_enabled(),
    "jiterator": lambda: flagos.jiterator._create_jit_fn(),
    "gds": lambda: flagos.gds.GdsFile(),
    "_sanitizer": lambda: flagos._sanitizer.enable_cuda_sanitizer(),
}
# Not called where they are served: they need a file of somebody else's, or change the process.
APART = {"CUDAPluggableAllocator", "change_current_allocator", "caching_allocator_enable"}
APART |= {"GreenContext"}
# Served where another package is installed too.
READINGS = {"memory_usage", "utilization", "temperature", "power_draw", "clock_rate"}


def test_the_page_is_made_from_the_code():
    # Otherwise run: python -m torch_fl.flagos._names > docs/flagos.md
    assert (ROOT / "docs" / "flagos.md").read_text() == _names.page()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_name_is_there_and_does_what_the_table_says(name, tmp_path):
    member = getattr(flagos, name)
    reason = _names.unserved(member).get(KIND)
    call = CALLS.get(name, member)
    if name in ("_dump_snapshot", "_record_memory_history"):
        call = lambda: a_recorded_history(tmp_path)  # noqa: E731
    if reason is not None:
        if isinstance(member, types.ModuleType) and not member.__all__:
            return
        refused = call if isinstance(member, types.ModuleType) else member
        with pytest.raises(NotImplementedError) as caught:
            refused()
        assert torch_fl.platform()["name"] in str(caught.value)
        assert name.lstrip("_") in str(caught.value) or name in _names.GENERAL
        assert len(str(caught.value).partition("': ")[2]) > 10
        return
    if name in APART or not callable(call) or isinstance(member, type(RuntimeError)):
        return
    try:
        call()
    except NotImplementedError as error:
        assert getattr(member, "_note", None), error
    except ModuleNotFoundError:
        assert name in READINGS


def test_each_name_is_described_and_completed():
    described = set(flagos.__dir__())
    for _, name, _ in _names.rows():
        member = getattr(flagos, name)
        assert name in described, name
        if not isinstance(member, (bool, tuple)):
            assert inspect.getdoc(member), name
    assert set(flagos.__all__) <= described
    assert not {"libraries", "submodules", "_torch", "_lazy"} & described


def test_every_name_of_torch_cuda_is_one_here():
    assert not {name for name in torch.cuda.__all__ if not hasattr(flagos, name)}


def test_looking_at_a_name_never_raises():
    members = dict(inspect.getmembers(flagos))
    assert len(members) > 120
    for name, member in members.items():
        if isinstance(member, types.ModuleType) and not name.startswith("_"):
            assert dict(inspect.getmembers(member))["__name__"]


def test_every_reason_is_for_a_kind_of_platform_that_there_is():
    for _, name, _ in _names.rows():
        assert set(_names.unserved(getattr(flagos, name))) <= set(_serve.KINDS)
    with pytest.raises(AssertionError, match="nosuch"):
        _serve.serve(nosuch="reason")


def test_a_refused_class_is_refused_by_subclasses_too():
    if KIND == "cuda":
        pytest.skip("graphs are served")

    class Mine(flagos.Graph):
        pass

    with pytest.raises(NotImplementedError, match="Graph.*captured"):
        Mine()


def test_general_names_are_the_same_things():
    assert flagos.CUDAGraph is flagos.Graph
    assert flagos.CudaError is torch.AcceleratorError
    assert flagos.OutOfMemoryError is torch.OutOfMemoryError
    assert flagos.DeferredCudaCallError is flagos.DeferredCallError
    assert issubclass(flagos.DeferredCallError, RuntimeError)


def test_ranges_appear_in_a_profile():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert flagos.nvtx.range_push("outer") == 0
        with flagos.nvtx.range("inner {}", 3):
            torch.ones(3, device="flagos")
        flagos.nvtx.mark("moment")
        assert flagos.nvtx.range_pop() == 0
    keys = {event.key for event in profile.key_averages()}
    assert {"outer", "inner 3", "moment"} <= keys
    with pytest.raises(RuntimeError, match="no open range"):
        flagos.nvtx.range_pop()


def test_sync_debug_mode_knows_its_words():
    with pytest.raises(RuntimeError, match="default.*warn.*error"):
        flagos.set_sync_debug_mode("loud")
    assert flagos.get_sync_debug_mode() == 0


@pytest.mark.platforms("cpu", "sim")
def test_no_platform_without_cuda_pretends_to_watch_synchronisation():
    with pytest.raises(NotImplementedError, match="wait"):
        flagos.set_sync_debug_mode("warn")
    assert flagos.get_arch_list() == [] and flagos.get_gencode_flags() == ""
    assert not flagos.is_tf32_supported() and not flagos.has_magma
    assert not flagos.is_current_stream_capturing()


@pytest.mark.platforms("cuda")
def test_synchronising_operators_warn():
    x = torch.ones(3, device="flagos")
    flagos.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz"):
            x.sum().item()
        assert flagos.get_sync_debug_mode() == 1
    finally:
        flagos.set_sync_debug_mode(0)


@pytest.mark.platforms("cuda")
def test_errors_of_the_runtime_are_accelerator_errors():
    free, total = flagos.runtime().cudaMemGetInfo(0)
    assert 0 < free < total
    with pytest.raises(torch.AcceleratorError, match="2"):
        flagos.check_error(2)


@pytest.mark.platforms("cuda")
def test_callables_with_graphs_train(python):
    """In a process of its own: a capture that fails leaves the generator in its graph. No graph of an
    earlier pass may live, as with torch.cuda: the gradients of its leaves are on the default stream,
    on which nothing that is captured may wait."""
    code = """
import torch, torch_fl
torch.manual_seed(0)
model = torch.nn.Linear(8, 8).to("flagos")
sample = torch.randn(4, 8, device="flagos")
x = torch.randn(4, 8, device="flagos")
def step(model):
    model.zero_grad(set_to_none=False)
    result = model(x)
    result.sum().backward()
    return result.detach().clone(), model.weight.grad.clone()
expected = step(model)
graphed = torch.flagos.make_graphed_callables(model, (sample,))
for _ in range(2):
    print(all(map(torch.allclose, step(graphed), expected)))
print(torch.randn(3, device="flagos").isfinite().all().item())
"""
    assert python(code, TORCH_FL_PLATFORM="cuda") == "True\n" * 3
