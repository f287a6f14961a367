"""torch.flagos: devices, streams, events, random numbers, memory and amp, on any platform."""

import copy
import threading

import pytest
import torch

import torch_fl

flagos = torch.flagos
COUNT = flagos.device_count()
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


@pytest.fixture(autouse=True)
def unchanged_current_device():
    before = flagos.current_device()
    yield
    flagos.set_device(before)


# --- the module ----------------------------------------------------------------------------------


def test_it_is_torchs_accelerator():
    assert torch.get_device_module("flagos") is flagos is torch_fl.flagos
    assert torch.accelerator.current_accelerator() == torch.device("flagos")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == COUNT


def test_submodules_are_found_under_torchs_name():
    import torch.flagos.amp
    from torch.flagos.random import manual_seed

    assert torch.flagos.amp is torch_fl.flagos.amp
    assert manual_seed is flagos.manual_seed


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="torch.flagos.*nosuch"):
        flagos.nosuch


def test_every_public_name_says_what_it_does():
    for name in flagos.__all__:
        assert getattr(flagos, name).__doc__, name


# --- devices -------------------------------------------------------------------------------------


def test_properties_are_those_of_the_device():
    properties = flagos.get_device_properties(0)
    assert properties.name == flagos.get_device_name("flagos:0") != ""
    assert properties.total_memory > 2**20
    assert "total_memory=" in repr(properties)
    with pytest.raises(AttributeError):
        properties.name = "another"
    twin = torch.cuda.get_device_properties(0) if torch_fl.platform()["twin"] == "cuda" else None
    for name in ("max_threads_per_multi_processor", "L2_cache_size", "never_heard_of"):
        assert getattr(properties, name, None) == getattr(twin, name, None)
    if twin is None:
        with pytest.raises(AttributeError, match="'L2_cache_size' of a device is not known on this platform"):
            properties.L2_cache_size


def test_capability_is_told_or_said_not_to_exist():
    properties = flagos.get_device_properties()
    if properties.major:
        assert flagos.get_device_capability() == (properties.major, properties.minor)
    else:
        with pytest.raises(NotImplementedError, match=torch_fl.platform()["name"]):
            flagos.get_device_capability()


@pytest.mark.parametrize(
    "call",
    [
        flagos.set_device,
        flagos.get_device_properties,
        flagos.synchronize,
        flagos.current_stream,
        lambda index: torch.empty(1, device=f"flagos:{index}"),
        lambda index: torch.ones(1, device="flagos").to(f"flagos:{index}"),
        lambda index: flagos.device(index).__enter__(),
    ],
)
def test_an_index_out_of_range_is_an_error_that_says_how_many_there_are(call):
    before = flagos.current_device()
    with pytest.raises(RuntimeError, match=rf"{COUNT + 3}.*\b{COUNT} device"):
        call(COUNT + 3)
    assert flagos.current_device() == before


@pytest.mark.parametrize("wrong", ["cpu", torch.device("cpu"), "meta"])
def test_another_kind_of_device_is_refused(wrong):
    with pytest.raises(ValueError, match=f"flagos.*{wrong}"):
        flagos.set_device(wrong)


@pytest.mark.parametrize("vague", [None, "flagos", torch.device("flagos")])
def test_a_device_without_index_cannot_be_made_current(vague):
    """torch.cuda.set_device refuses it as well."""
    with pytest.raises(ValueError, match=f"index.*{vague}"):
        flagos.set_device(vague)


@two_devices
def test_device_contexts_nest_and_restore_after_exceptions():
    flagos.set_device(1)
    with pytest.raises(ZeroDivisionError):
        with flagos.device(0):
            assert flagos.current_device() == 0
            with flagos.device("flagos:1"), flagos.device(None), flagos.device(-1):
                assert flagos.current_device() == 1
                assert torch.empty(1, device="flagos").device == torch.device("flagos:1")
            1 / 0
    assert flagos.current_device() == 1
    with flagos.device_of(torch.empty(1, device="flagos:0")):
        assert flagos.current_device() == 0
    with flagos.device_of(torch.empty(1)):
        assert flagos.current_device() == 1


@two_devices
def test_the_current_device_belongs_to_the_thread():
    flagos.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(flagos.current_device()))
    thread.start()
    thread.join()
    assert seen == [0] and flagos.current_device() == 1


# --- streams and events --------------------------------------------------------------------------


def test_streams():
    stream = flagos.Stream()
    assert isinstance(stream, torch.Stream) and stream.device == torch.device("flagos:0")
    assert flagos.current_stream() == flagos.default_stream()
    with flagos.stream(stream):
        assert flagos.current_stream() == stream
        x = torch.ones(1000, device="flagos") * 2
        with flagos.stream(None):
            assert flagos.current_stream() == stream
    assert flagos.current_stream() == flagos.default_stream()
    flagos.current_stream().wait_stream(stream)
    assert x.sum().item() == 2000
    stream.synchronize()
    assert stream.query()
    assert "flagos:0" in repr(stream)


def test_a_stream_context_restores_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        with flagos.stream(flagos.Stream()):
            1 / 0
    assert flagos.current_stream() == flagos.default_stream()


@two_devices
def test_a_stream_of_another_device_brings_its_device_along():
    stream = flagos.Stream(device=1)
    with flagos.stream(stream):
        assert flagos.current_device() == 1
        assert flagos.current_stream() == stream
        assert flagos.current_stream(0) == flagos.default_stream(0)
    assert flagos.current_device() == 0
    assert flagos.current_stream(1) == flagos.default_stream(1)


def test_the_current_stream_belongs_to_the_thread():
    seen = []
    with flagos.stream(flagos.Stream()):
        thread = threading.Thread(
            target=lambda: seen.append(flagos.current_stream() == flagos.default_stream())
        )
        thread.start()
        thread.join()
    assert seen == [True]


def test_events_order_and_measure():
    start, end = flagos.Event(enable_timing=True), flagos.Event(enable_timing=True)
    assert isinstance(start, torch.Event) and isinstance(start, flagos.Event)
    assert not isinstance(torch.Stream("flagos"), flagos.Event)
    stream = flagos.Stream()
    start.record(stream)
    with flagos.stream(stream):
        x = torch.ones(300, 300, device="flagos")
        for _ in range(3):
            x = x @ x / 300
    end.record(stream)
    end.wait()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    assert x.sum().item() == 90000
    recorded = stream.record_event()
    recorded.synchronize()
    assert isinstance(recorded, flagos.Event) and recorded.query()
    assert torch.Stream("flagos").record_event(start) is start


def test_what_events_cannot_do_is_said():
    with pytest.raises(NotImplementedError, match="processes"):
        flagos.Event(interprocess=True)


# --- random numbers ------------------------------------------------------------------------------


def test_seeds_repeat():
    torch.manual_seed(7)
    first = torch.rand(5, device="flagos").cpu()
    flagos.manual_seed_all(7)
    assert torch.equal(torch.rand(5, device="flagos").cpu(), first)
    flagos.manual_seed(8)
    assert not torch.equal(torch.rand(5, device="flagos").cpu(), first)
    assert flagos.initial_seed() == 8


def test_states_are_saved_and_set():
    state = flagos.get_rng_state()
    kept = state.clone()
    first = torch.randn(5, device="flagos").cpu()
    flagos.set_rng_state(state)
    assert torch.equal(torch.randn(5, device="flagos").cpu(), first)
    assert torch.equal(state, kept)
    assert len(flagos.get_rng_state_all()) == COUNT == len(flagos.default_generators)
    with torch.random.fork_rng(devices=[0], device_type="flagos"):
        flagos.set_rng_state(state)
        for _ in range(3):
            torch.rand(100, device="flagos")
        inside = flagos.get_rng_state()
    assert not torch.equal(inside, flagos.get_rng_state())


def test_the_hosts_sequence_is_another_one():
    def two(between):
        torch.manual_seed(3)
        first = torch.rand(3, device="flagos").cpu()
        between()
        return torch.stack([first, torch.rand(3, device="flagos").cpu()])

    assert torch.equal(two(lambda: None), two(lambda: torch.rand(3)))


def test_generators():
    generator = torch.Generator(device="flagos").manual_seed(5)
    first = torch.rand(4, device="flagos", generator=generator).cpu()
    twin = torch.Generator(device="flagos")
    twin.manual_seed(5)
    assert torch.equal(torch.rand(4, device="flagos", generator=twin).cpu(), first)
    assert generator.device.type == "flagos"


def test_seed_draws_a_new_one():
    flagos.seed()
    first = flagos.initial_seed()
    flagos.seed_all()
    assert flagos.initial_seed() != first
    assert len({generator.initial_seed() for generator in flagos.default_generators}) == 1


# --- lazy initialisation -------------------------------------------------------------------------


def test_seeds_wait_for_initialisation(python):
    code = """
import torch
flagos = torch.flagos
flagos.manual_seed(1)         # replaced by the next
flagos.manual_seed_all(11)
assert not flagos.is_initialized() and flagos.default_generators == ()
early = torch.rand(3, device="flagos").cpu()
assert flagos.is_initialized()
flagos.manual_seed(11)
assert torch.equal(early, torch.rand(3, device="flagos").cpu())
state = flagos.get_rng_state()
flagos.init()
print(flagos.initial_seed())
"""
    assert python("import torch_fl\n" + code, TORCH_FL_PLATFORM=torch_fl.platform()["name"]) == "11\n"


def test_threads_initialise_once(python):
    code = """
import threading, torch, torch_fl
torch.flagos.manual_seed(5)
start = threading.Barrier(8)
results = []
def work():
    start.wait()
    results.append(torch.ones(3, device="flagos").sum().item())
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(results == [3.0] * 8, torch.flagos.initial_seed())
"""
    assert python(code, TORCH_FL_PLATFORM=torch_fl.platform()["name"]) == "True 5\n"


def test_a_queued_call_that_fails_names_its_caller(python):
    code = """
import torch, torch_fl
def culprit():
    torch.flagos.set_rng_state(torch.zeros(3, dtype=torch.uint8))
culprit()
try:
    torch.ones(1, device="flagos")
except RuntimeError as error:
    print("in culprit" in str(error))
"""
    assert python(code) == "True\n"


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.platforms("cpu")
def test_the_host_keeps_no_statistics_and_none_are_invented():
    for name in ("memory_stats", "memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"):
        with pytest.raises(NotImplementedError, match=f"{name}.*cpu.*no statistics"):
            getattr(flagos, name)()
    flagos.empty_cache()


@pytest.mark.platforms("sim", "cuda")
def test_statistics_follow_what_is_allocated():
    flagos.empty_cache()
    before = flagos.memory_allocated()
    flagos.reset_peak_memory_stats()
    x = torch.empty(2**20, dtype=torch.uint8, device="flagos")
    assert flagos.memory_allocated() == before + 2**20
    assert flagos.memory_reserved() >= flagos.memory_allocated()
    assert flagos.memory_stats()["allocated_bytes.all.current"] == flagos.memory_allocated()
    nested = flagos.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == flagos.memory_allocated()
    del x
    assert flagos.memory_allocated() == before
    assert flagos.max_memory_allocated() == before + 2**20


def test_free_and_total_memory():
    free, total = flagos.mem_get_info()
    assert 0 < free <= total == flagos.get_device_properties().total_memory


# --- amp -----------------------------------------------------------------------------------------


def test_autocast():
    x = torch.ones(4, 4, device="flagos")
    for dtype in flagos.get_amp_supported_dtype():
        with torch.autocast("flagos", dtype=dtype):
            assert (x @ x).dtype == dtype
        with flagos.amp.autocast(dtype=dtype):
            assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32
    assert flagos.is_bf16_supported()


def test_autocast_has_cudas_dtype_in_every_thread():
    said = []
    ask = lambda: said.append(torch.get_autocast_dtype("flagos"))  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ask()
    assert said == [torch.float16] * 2 == [torch.get_autocast_dtype("cuda")] * 2


def test_grad_scaler():
    model = torch.nn.Linear(4, 1).to("flagos")
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = flagos.amp.GradScaler(init_scale=256.0)
    loss = model(torch.ones(2, 4, device="flagos")).sum()
    scaler.scale(loss).backward()
    assert model.bias.grad.item() == 512
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(model.bias, before.bias - 0.2)
