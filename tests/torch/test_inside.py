"""Who is inside torch_fl.as_cuda, and what its objects say there: this thread, those that it starts
and autograd's, and nobody else."""

import contextlib
import queue
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import torch_fl

HERE = torch_fl.platform()["name"]
CUDA, FLAGOS = torch.device("cuda", 0), torch.device("flagos", 0)


@contextlib.contextmanager
def started_before():
    """A function that runs its argument in a thread that was started before any block."""
    calls, answers = queue.Queue(), queue.Queue()

    def serve():
        for call in iter(calls.get, None):
            try:
                answers.put((call(), None))
            except BaseException as error:
                answers.put((None, error))

    def run(call):
        calls.put(call)
        answer, error = answers.get(timeout=60)
        if error is not None:
            raise error
        return answer

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield run
    finally:
        calls.put(None)
        thread.join()


x = torch.ones(2, 3, device="flagos", requires_grad=True)


def within_autocast():
    with torch.autocast("flagos"):
        return torch.is_autocast_enabled(), torch.is_autocast_enabled("flagos"), (x @ x.T).dtype


# What a thread outside finds must be what it found before.
FOUND = {
    "device": lambda: (x.device, x.is_cuda, x.detach().device.type, repr(x)),
    "storage": lambda: (x.untyped_storage().device, x.untyped_storage().is_cuda),
    "typed storage": lambda: (x.detach()._typed_storage().is_cuda,),
    "its device": lambda: torch.ones(2, device=x.device).device,
    "generator": lambda: (torch.Generator(x.device).device, type(torch.Generator("flagos"))),
    "stream": lambda: (torch.Stream("flagos").device, type(torch.Stream("flagos"))),
    "own stream": lambda: hasattr(torch.flagos.Stream(), "cuda_stream"),
    "event": lambda: (torch.Event("flagos").device, type(torch.Event("flagos"))),
    "autocast": within_autocast,
    "gpu autocast": torch.get_autocast_gpu_dtype,
    "torch.cuda": lambda: (torch.cuda.is_available(), torch.cuda.device_count()),
    "names of torch.cuda": lambda: (torch.cuda.Stream, torch.cuda.memory.memory_stats),
    "no cuda": lambda: outcome(lambda: torch.ones(2, device="cuda").device),
    "no generator": lambda: outcome(lambda: torch.Generator("cuda").device),
    "no storage": lambda: outcome(lambda: torch.UntypedStorage(2, device="cuda").device),
    "built": torch.backends.cuda.is_built,
    "cudnn": lambda: (torch.backends.cudnn.is_acceptable(x), torch.backends.cudnn.version()),
    "accelerator": torch.accelerator.current_accelerator,
    "backward": lambda: torch.autograd.grad((x * 2).sum(), x)[0].device,
    "thread": lambda: in_a_thread(lambda: (x.device, torch.Generator("flagos").device)),
    "context": lambda: within(torch.device("flagos"), lambda: torch.ones(1).device),
    "loaded": lambda: outcome(lambda: loaded("cuda:0").device),
}


def outcome(call):
    """What it answers, or how it fails: without a card, PyTorch has no cuda."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def within(context, call):
    with context:
        return call()


def in_a_thread(call):
    answer = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    thread.join()
    return answer[0]


def loaded(location):
    return torch.serialization.default_restore_location(torch.UntypedStorage(4), location)


@pytest.mark.parametrize("name", FOUND)
def test_a_thread_outside_finds_what_it_found(name):
    with started_before() as run:
        before = run(FOUND[name])
        with torch_fl.as_cuda():
            assert x.device == CUDA and torch.cuda.is_available()
            assert run(FOUND[name]) == before
        assert run(FOUND[name]) == before


def test_two_threads_at_once():
    """One thread inside does not let another one in, and its end does not put a third one out."""
    with started_before() as first, started_before() as second:
        contexts = [torch_fl.as_cuda(), torch_fl.as_cuda()]
        first(contexts[0].__enter__)
        second(contexts[1].__enter__)
        assert first(lambda: x.device) == second(lambda: x.device) == CUDA
        assert x.device == FLAGOS
        first(lambda: contexts[0].__exit__(None, None, None))
        assert first(lambda: x.device) == FLAGOS
        assert second(lambda: torch.ones(1, device="cuda").device) == CUDA
        second(lambda: contexts[1].__exit__(None, None, None))
        assert second(lambda: x.device) == FLAGOS


def test_threads_of_autograd_and_what_they_call():
    """Hooks, functions of a script, and what these call are inside in whichever thread they run."""
    seen = []

    def note(tensor):
        seen.append((tensor.device, tensor.is_cuda, torch.cuda.is_available()))
        seen.append(torch.ones(1, device="cuda").device)
        return tensor

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            note(value)
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return note(grad) * 2

    with torch_fl.as_cuda():
        leaf = torch.ones(2, device="cuda", requires_grad=True)
        with saved_tensors_hooks(note, note):
            y = leaf.exp()
        Doubled.apply(y).sum().backward()
        y = Doubled.apply(leaf)
        y.register_hook(lambda grad: in_a_thread(lambda: note(grad)))
        torch.autograd.grad(y.sum(), leaf)
    assert len(seen) == 14
    assert all(entry in (CUDA, (CUDA, True, True)) for entry in seen)


def test_a_backward_pass_of_another_thread_is_not_inside():
    seen = []
    with started_before() as run, torch_fl.as_cuda():
        def work():
            y = x * 2
            y.register_hook(lambda grad: seen.append((grad.device, grad.is_cuda)))
            y.sum().backward()

        run(work)
        work()
    assert seen == [(FLAGOS, False), (CUDA, True)]


def test_a_thread_that_outlives_the_block():
    with torch_fl.as_cuda():
        answer, go = [], threading.Event()

        def later():
            go.wait(60)
            answer.append(torch.ones(1, device="flagos").device)
            answer.append(outcome(lambda: torch.ones(1, device="cuda").device))

        thread = threading.Thread(target=later)
        thread.start()
    go.set()
    thread.join()
    assert answer == [FLAGOS, outcome(lambda: torch.ones(1, device="cuda").device)]


# --- what objects say ----------------------------------------------------------------------------

SAYS = {
    "generator": lambda: torch.Generator("cuda"),
    "generator of a device": lambda: torch.Generator(device=torch.device("cuda:0")),
    "stream": lambda: torch.Stream("cuda"),
    "stream of cuda": lambda: torch.cuda.Stream(),
    "current stream": lambda: torch.cuda.current_stream(),
    "default stream": lambda: torch.cuda.default_stream("cuda"),
    "storage": lambda: x.untyped_storage(),
    "new storage": lambda: torch.UntypedStorage(4, device="cuda"),
    "moved storage": lambda: torch.UntypedStorage(4).cuda(),
    "typed storage": lambda: x.detach().storage(),
    "typed storage of cuda": lambda: torch.cuda.FloatStorage(4),
}


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_an_object_says_cuda_inside_and_flagos_outside(name):
    with torch_fl.as_cuda():
        made = SAYS[name]()
        assert made.device == CUDA
    assert made.device == FLAGOS


def test_objects_that_say_cuda_still_work():
    with torch_fl.as_cuda():
        generator = torch.Generator("cuda").manual_seed(3)
        kept = generator.get_state()
        drawn = torch.rand(3, device="cuda", generator=generator)
        assert isinstance(generator, torch.Generator) and generator.initial_seed() == 3
        generator.set_state(kept)
        assert torch.equal(torch.rand(3, device=generator.device, generator=generator), drawn)
        stream = torch.cuda.Stream()
        assert isinstance(stream.cuda_stream, int)
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
            assert torch.cuda.current_stream(stream.device).cuda_stream == stream.cuda_stream
            y = x.detach() + 1
        torch.cuda.set_stream(torch.cuda.default_stream(stream.device))
        torch.cuda.current_stream().wait_stream(stream)
        assert y.sum().item() == 12
        storage = y.untyped_storage()
        assert storage.to(device="cuda:0").data_ptr() == storage.data_ptr()
        assert storage.cuda().device == CUDA and storage.cpu().device.type == "cpu"
        copy = torch.empty(0, device=storage.device).set_(storage, 0, (2, 3))
        assert copy.data_ptr() == y.data_ptr()
    assert stream == torch.flagos.Stream(
        stream_id=stream.stream_id, device_index=0, device_type=stream.device_type
    )


def test_files_name_the_device_that_there_is(tmp_path):
    """So that they are read without as_cuda as well."""
    with torch_fl.as_cuda():
        torch.save(x.detach(), tmp_path / "new.pt")
        torch.save(x.detach(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("new.pt", "old.pt"):
        assert torch.load(tmp_path / name).device == FLAGOS


@pytest.mark.parametrize(
    "call",
    [
        lambda: x.detach().numpy().tolist(),
        lambda: x.detach().__dlpack_device__(),
        lambda: torch.from_dlpack(x.detach()).tolist(),
        lambda: bool(x.untyped_storage().is_shared()),
        lambda: x.untyped_storage().data_ptr(),
        lambda: torch.UntypedStorage(4).pin_memory().is_pinned(),
        lambda: len(bytes(ForkingPickler.dumps(x.detach()))) > 0,
    ],
    ids=["numpy", "dlpack_device", "from_dlpack", "is_shared", "data_ptr", "pinned", "sent"],
)
def test_what_torch_fl_serves_itself_is_served_inside(call):
    before = outcome(call)
    with torch_fl.as_cuda():
        assert outcome(call) == before


# --- readings ------------------------------------------------------------------------------------


def test_the_version_of_cudnn_is_that_of_this_build(python):
    """At first use it is compared with the capability, which is (0, 0) where there is none."""
    ask = "import torch, torch_fl\n{}print(torch.backends.cudnn.version())"
    inside = python(ask.format("with torch_fl.as_cuda(): "), TORCH_FL_PLATFORM=HERE)
    assert inside == python(ask.format(""), TORCH_FL_PLATFORM=HERE)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Warning. Profiler clears")
def test_a_profile_of_cuda_is_one_of_flagos(old, capfd):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch_fl.as_cuda():
        y = torch.ones(4, 4, device="cuda")
        make = {
            False: lambda: torch.profiler.profile(activities=activities, record_shapes=True),
            True: lambda: torch.autograd.profiler.profile(use_cuda=True),
        }[old]
        with make() as profile:
            y @ y
        table = profile.key_averages().table(sort_by="cuda_time_total")
    assert "aten::mm" in table
    assert "Failed to record CUDA event" not in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:.*is not served")
def test_readings_of_memory_have_every_name():
    with torch_fl.as_cuda():
        held = torch.ones(1000, device="cuda")
        stats = torch.cuda.memory_stats()
        assert list(stats) == sorted(stats)
        tree = torch.cuda.memory_stats_as_nested_dict()
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"):
            for column in ("current", "peak", "allocated", "freed"):
                assert stats[f"{name}.all.{column}"] == tree[name]["all"][column]
        names = ("num_alloc_retries", "num_ooms", "segment.large_pool.peak", "active.all.current")
        assert all(stats[name] >= 0 for name in names)
        assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
        assert isinstance(torch.cuda.memory_snapshot(), list)
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        assert isinstance(torch.cuda.memory_summary(), str)
    assert held.device == FLAGOS


@pytest.mark.platforms("cpu")
def test_names_of_readings_that_nothing_counts_are_those_that_are_counted(python):
    """The names that the core's allocator knows, which the platform `sim` has."""
    code = """
import torch, torch_fl
from torch_fl import _cuda_module
torch.flagos.init()
print(sorted(set(torch.flagos.memory_stats()) ^ set(_cuda_module._no_memory())))
"""
    assert python(code, TORCH_FL_PLATFORM="sim") == "[]\n"
