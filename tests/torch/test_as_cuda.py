"""Scripts that were written for cuda: torch_fl.as_cuda and python -m torch_fl run."""

import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.utils.checkpoint
from conftest import ROOT, run_python

import torch_fl

SCRIPTS = ROOT / "tests" / "torch" / "scripts"
RUN = "import runpy, sys; runpy.run_module('torch_fl', run_name='__main__', alter_sys=True)"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
HERE = torch_fl.platform()["name"]


def run_script(*arguments):
    return run_python(RUN, "run", *map(str, arguments), TORCH_FL_PLATFORM=HERE, **OFFLINE)


# --- whole scripts -------------------------------------------------------------------------------


def test_a_training_script_and_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    arguments = (SCRIPTS / "train.py", "--checkpoint", checkpoint, "--epochs")
    done = run_script(*arguments, 3)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "epoch 2: loss" in done.stdout and done.stdout.endswith("done\n")
    tensors = torch.load(checkpoint, map_location="cpu")["model"]
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    done = run_script(*arguments, 4)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "epoch 2" not in done.stdout and "epoch 3: loss" in done.stdout


@pytest.mark.platforms("cpu")
def test_a_generation_script():
    pytest.importorskip("transformers")
    done = run_script(SCRIPTS / "generate.py", "--length", 6)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "device: cuda" in done.stdout and "sampled:" in done.stdout
    assert "torch.cuda.memory_allocated answers 0" in done.stderr


def test_exit_codes_arguments_and_tracebacks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, helper\nprint(sys.argv[1:], helper.name)\nsys.exit(7)\n")
    (tmp_path / "helper.py").write_text("name = 'helper'\n")
    done = run_script(script, "--flag", "-m", "x")
    assert (done.returncode, done.stdout) == (7, "['--flag', '-m', 'x'] helper\n")
    assert run_script(script, "--", "-h").stdout == "['--', '-h'] helper\n"
    script.write_text("import torch\ntorch.ones(2, device='cuda') + torch.ones(2)\n")
    done = run_script(script)
    assert done.returncode == 1
    assert "flagos:0 and cpu" in done.stderr and "runpy" not in done.stderr
    done = run_script(tmp_path / "missing.py")
    assert done.returncode == 2 and "missing.py" in done.stderr
    done = run_script("-m", "torch.utils.collect_env", "--help")
    assert done.returncode == 0 and "PyTorch version" in done.stdout


# --- names ---------------------------------------------------------------------------------------


def everything():
    """Each name that the context may touch, with its value."""
    import torch._C

    owners = [torch, torch.cuda, torch._C, torch.amp, torch.amp.autocast_mode, torch.backends.cuda]
    owners += [torch.autograd, torch.utils._device, torch.storage._StorageBase, threading.Thread]
    owners += [torch.amp.GradScaler, torch.autocast, torch.Tensor, torch.nn.Module, torch.Generator]
    owners += [torch.utils._device.DeviceContext, torch.serialization, torch.backends.cudnn]
    owners += [torch.UntypedStorage, torch.TypedStorage, torch.flagos.Stream, torch.utils.dlpack]
    owners += [torch.nn.RNNBase, torch.accelerator, torch.autograd.graph.saved_tensors_hooks]
    owners += [torch.autograd.profiler.profile, torch.utils.checkpoint.DefaultDeviceType]
    names = {
        (repr(owner), name): id(value) for owner in owners for name, value in vars(owner).items()
    }
    modules = sys.modules.items()
    names |= {name: id(module) for name, module in modules if name.startswith("torch")}
    names["reducers"] = dict(ForkingPickler._extra_reducers)
    names["registry"] = list(torch.serialization._package_registry)
    names["modes"] = torch._C._len_torch_function_stack()
    return names


def exercise():
    x = torch.ones(2, device="cuda", requires_grad=True)
    torch.save(x, "/dev/null")
    torch.cuda.synchronize()
    (x * 2).sum().backward()


def test_everything_is_undone():
    with torch_fl.as_cuda():
        exercise()  # What PyTorch imports at first use is there from now on.
    before = everything()
    with pytest.raises(ZeroDivisionError), torch_fl.as_cuda():
        with torch_fl.as_cuda():
            exercise()
        assert torch.ones(1, device="cuda").is_cuda  # The outer one goes on.
        assert torch.cuda is not torch_fl.flagos._serve.CUDA
        1 / 0
    assert everything() == before
    assert torch.flagos is torch_fl.flagos
    with torch_fl.as_cuda():
        torch.set_default_device("cuda")
        assert torch.ones(1).is_cuda
        torch.set_default_device(None)
        torch.set_default_device("cuda:0")
    assert torch.ones(1).device.type == "cpu"


def test_importing_changes_nothing(python):
    """Nobody who does not ask for it meets any of it."""
    code = """
import os; os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import sys, torch, threading
OWNERS = (torch.cuda, torch.amp, torch.autograd, threading.Thread)
def names():
    return {(owner, name): id(value) for owner in OWNERS for name, value in vars(owner).items()}
kept = names()
import torch_fl
assert kept.items() <= names().items()
assert torch._C._len_torch_function_stack() == 0
"""
    python(code, TORCH_FL_PLATFORM=HERE, TORCH_FL_QUEUE=0)  # Which has wrappers of its own.


# --- what a script says --------------------------------------------------------------------------

x = torch.ones(2, 3)
MAKE = {
    "factory": lambda: torch.zeros(2, device="cuda"),
    "index": lambda: torch.empty(2, device="cuda:0"),
    "device": lambda: torch.tensor([1], device=torch.device("cuda")),
    "number": lambda: torch.arange(3, device=0),
    "like": lambda: torch.rand_like(x, device="cuda"),
    "new": lambda: x.new_full((2,), 3, device=torch.device("cuda", 0)),
    "asarray": lambda: torch.asarray([1.0], device="cuda"),
    "operator": lambda: torch.ops.aten.zeros.default([2], device="cuda"),
    "to": lambda: x.to("cuda"),
    "to with dtype": lambda: x.to(torch.device("cuda:0"), torch.float16),
    "to by name": lambda: x.to(device="cuda", non_blocking=True),
    "to number": lambda: x.to(0),
    "cuda": lambda: x.cuda(),
    "cuda of index": lambda: x.cuda(0, non_blocking=True),
    "cuda by name": lambda: x.cuda(device=torch.device("cuda:0")),
    "type": lambda: x.type(torch.cuda.FloatTensor),
    "type by name": lambda: x.type("torch.cuda.HalfTensor"),
    "typed": lambda: torch.cuda.FloatTensor(2, 3),
    "typed of values": lambda: torch.cuda.LongTensor([1, 2]),
    "module": lambda: torch.nn.Linear(2, 2).cuda().weight,
    "module to": lambda: torch.nn.Linear(2, 2).to("cuda").weight,
    "module made there": lambda: torch.nn.Linear(2, 2, device="cuda").weight,
    "context": lambda: _within(torch.device("cuda"), lambda: torch.nn.Linear(2, 2).bias),
    "drawn": lambda: torch.randn(2, device="cuda", generator=torch.Generator("cuda")),
    "sparse": lambda: torch.eye(2).to_sparse().cuda(),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([x[0]]).cuda().data,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, device="cuda")),
}


def _within(context, call):
    with context:
        return call()


@pytest.mark.parametrize("name", MAKE)
def test_tensors_are_on_flagos_and_say_cuda(name):
    with torch_fl.as_cuda():
        made = MAKE[name]()
        assert made.is_cuda and made.device == torch.device("cuda", 0)
        assert made.device.type == "cuda" and made.get_device() == 0
        if made.layout is torch.strided:
            assert made.type().startswith("torch.cuda.")
    assert made.device == torch.device("flagos", 0) and not made.is_cuda


def test_questions():
    with torch_fl.as_cuda():
        assert torch.cuda.is_available() and torch.backends.cuda.is_built()
        assert torch.cuda.device_count() == torch.flagos.device_count()
        assert torch.cuda.get_device_name("cuda:0") == torch.flagos.get_device_name(0)
        assert torch.cuda.get_device_properties(torch.device("cuda")).total_memory > 0
        assert torch.cuda.current_device() == 0 and torch.cuda.is_initialized()
        assert torch.get_device_module("cuda") is torch.cuda
        torch.cuda.set_device("cuda:0")
        with torch.cuda.device(torch.device("cuda", 0)), torch.cuda.device_of(x.cuda()):
            pass
        from torch.cuda import Stream, memory

        assert Stream is torch.cuda.Stream and callable(memory.memory_allocated)
        stream = torch.cuda.Stream(device="cuda")
        assert isinstance(stream, torch.cuda.Stream) and isinstance(stream, torch.Stream)
        with torch.cuda.stream(stream):
            y = x.cuda() + 1
        torch.cuda.current_stream().wait_stream(stream)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        assert event.query() and y.sum().item() == 12
        assert isinstance(torch.cuda.OutOfMemoryError(), RuntimeError)
        assert not isinstance(x, torch.cuda.FloatTensor) and isinstance(y, torch.cuda.FloatTensor)
        assert "manual_seed" in dir(torch.cuda)
        with pytest.raises(AttributeError):
            torch.cuda.no_such_name
        assert torch.device("cpu").type == "cpu" and x.to("cpu").device.type == "cpu"
        assert y.untyped_storage().is_cuda and x.untyped_storage().cuda().is_cuda


ENTER = ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast")


@pytest.mark.parametrize("enter", ENTER)
def test_autocast(enter):
    with torch_fl.as_cuda():
        a = torch.ones(2, 2, device="cuda")
        make = {
            "torch.autocast": lambda: torch.autocast("cuda"),
            "torch.amp.autocast": lambda: torch.amp.autocast(device_type="cuda"),
            "torch.cuda.amp.autocast": lambda: torch.cuda.amp.autocast(),
        }[enter]
        with make():
            assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype()
            assert (a @ a).dtype == torch.float16 == torch.get_autocast_dtype("cuda")
        assert not torch.is_autocast_enabled() and (a @ a).dtype == torch.float32
        assert torch.amp.is_autocast_available("cuda")


def test_seeds_and_states():
    with torch_fl.as_cuda():
        torch.cuda.manual_seed_all(3)
        state = torch.cuda.get_rng_state("cuda")
        first = torch.rand(3, device="cuda")
        torch.cuda.set_rng_state(state)
        with torch.random.fork_rng(devices=[0]):
            assert torch.equal(torch.rand(3, device="cuda"), first)
        assert torch.equal(torch.rand(3, device="cuda"), first)
        assert isinstance(torch.Generator("cuda"), torch.Generator)
        assert torch.Generator(device="cuda").device == torch.device("cuda", 0)


@pytest.mark.parametrize("where", ["cuda", {"cpu": "cuda:0"}, lambda s, tag: s.cuda(), "device"])
def test_files(tmp_path, where):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "file.pt")
    with torch_fl.as_cuda():
        where = torch.device("cuda") if where == "device" else where
        loaded = torch.load(tmp_path / "file.pt", map_location=where, weights_only=True)["w"]
        assert loaded.is_cuda and loaded.tolist() == [0, 1, 2]


def test_a_file_that_says_cuda(tmp_path, monkeypatch):
    """Written as on a machine with CUDA: the tag of the storage is "cuda:0"."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(torch.arange(3.0), tmp_path / "file.pt")
    with torch_fl.as_cuda():
        assert torch.load(tmp_path / "file.pt").is_cuda


def test_threads_hooks_and_checkpoints():
    from torch.utils.checkpoint import checkpoint

    seen = []
    with torch_fl.as_cuda():
        thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device="cuda").is_cuda))
        thread.start()
        thread.join()
        leaf = torch.ones(2, device="cuda", requires_grad=True)
        y = leaf * 2
        y.register_hook(lambda grad: seen.append(grad.is_cuda) or grad * torch.ones(2).cuda())
        y.sum().backward()
        torch.autograd.grad((leaf * 3).sum(), leaf)

        def block(value):
            seen.append(value.is_cuda)
            return value * torch.full((2,), 2.0, device="cuda")

        checkpoint(block, leaf, use_reentrant=False).sum().backward()
    assert seen == [True] * 4
    assert leaf.grad.tolist() == [4, 4] and leaf.grad.device.type == "flagos"


def test_layers_that_ask_for_cudnn():
    with torch_fl.as_cuda():
        layer = torch.nn.LSTM(3, 4).cuda()
        layer.flatten_parameters()
        output, _ = layer(torch.ones(2, 1, 3, device="cuda"))
        output.sum().backward()
        assert output.is_cuda and layer.weight_ih_l0.grad.is_cuda
        assert "device='cuda:0'" in repr(output)


def test_as_a_decorator():
    @torch_fl.as_cuda()
    def ported():
        return torch.ones(1, device="cuda").is_cuda

    assert ported() and ported()


def test_one_object_is_entered_again_and_inside_itself():
    before, block = everything(), torch_fl.as_cuda()
    for _ in range(2):
        with block:
            with block, torch_fl.as_cuda():
                exercise()
            exercise()
        assert everything() == before

    @block
    def depth(count):
        is_inside = torch.ones(1, device="cuda").is_cuda
        return is_inside and (count == 0 or depth(count - 1))

    seen = []
    thread = threading.Thread(target=lambda: seen.append(depth(2)))
    thread.start()
    with block:
        thread.join()
        assert depth(2) and seen == [True]
    assert everything() == before


def test_run_says_what_it_takes():
    done = subprocess.run(
        [sys.executable, "-m", "torch_fl", "run", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "script" in done.stdout
