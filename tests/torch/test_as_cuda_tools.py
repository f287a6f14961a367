"""torch.accelerator, checkpoints and pickles inside torch_fl.as_cuda."""

import io
import pickle

import pytest
import torch
from conftest import run_python

import torch_fl


def test_the_accelerator_is_cuda():
    accelerator = torch.accelerator
    with torch_fl.as_cuda():
        assert accelerator.current_accelerator() == torch.device("cuda")
        assert accelerator.current_accelerator(True).type == "cuda"
        assert accelerator.current_stream("cuda:0").device == torch.device("cuda", 0)
        assert accelerator.current_stream("cuda").device_index == 0
        assert torch.get_device_module() is torch.cuda and accelerator.is_available()
        accelerator.set_device_index("cuda:0")
        accelerator.synchronize(torch.device("cuda"))
        assert accelerator.device_count() == torch.cuda.device_count()
    assert accelerator.current_accelerator() == torch.device("flagos")
    assert torch.get_device_module() is torch.flagos
    assert torch.get_device_module("cuda") is torch.cuda
    with torch_fl.as_cuda():
        assert torch.get_device_module("cuda") is torch.cuda


def test_checkpoints_do_not_remember_cuda(python):
    """torch.utils.checkpoint asks once a process which accelerator there is."""
    code = """
import torch, torch_fl
from torch.utils.checkpoint import DefaultDeviceType, checkpoint
torch.flagos.init()
with torch_fl.as_cuda():
    leaf = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: x.cuda() * 2, leaf, use_reentrant=False).sum().backward()
    assert leaf.grad.tolist() == [2, 2]
assert DefaultDeviceType.get_device_type() == "flagos"
"""
    python(code, TORCH_FL_PLATFORM=torch_fl.platform()["name"])


@pytest.mark.parametrize("is_zip", [True, False])
def test_map_location_is_shown_cuda(is_zip):
    last = torch.flagos.device_count() - 1
    file = io.BytesIO()

    def load(where):
        file.seek(0)
        return torch.load(file, map_location=where)

    seen = []
    with torch_fl.as_cuda():
        tensors = [torch.ones(2, device="cuda:0"), torch.zeros(1)]
        torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
        assert load({"cuda:0": "cpu"})[0].device.type == "cpu"
        assert load({"flagos:0": "cpu"})[0].device.type == "cpu"
        assert load({"cpu": "cpu"})[0].device == torch.device("cuda", 0)
        loaded = load({"cuda:0": f"cuda:{last}", "cpu": "cuda"})
        assert [tensor.device.index for tensor in loaded] == [last, 0] and loaded[1].is_cuda
        loaded = load(lambda storage, tag: seen.append(tag) or storage.cuda(last))
        assert loaded[0].device == torch.device("cuda", last) and loaded[0].tolist() == [1, 1]
        assert load(lambda storage, tag: None)[0].is_cuda
    assert sorted(seen) == ["cpu", "cuda:0"]
    load(lambda storage, tag: seen.append(tag))
    assert sorted(seen[2:]) == ["cpu", "flagos:0"]


def test_what_is_pickled_inside_is_read_outside():
    with torch_fl.as_cuda():
        generator = torch.Generator("cuda").manual_seed(7)
        text = pickle.dumps((generator, torch.Generator, torch.cuda.FloatStorage))
        made, kind, storage = pickle.loads(text)
        assert made.get_state().equal(generator.get_state()) and made.initial_seed() == 7
    made, kind, storage = pickle.loads(text)
    assert made.device == torch.device("flagos", 0) and made.initial_seed() == 7
    assert kind is torch.Generator and storage is torch.flagos.FloatStorage


def test_old_sparse_types_say_what_to_use():
    with torch_fl.as_cuda():
        kind = torch.cuda.sparse.FloatTensor
        with pytest.raises(NotImplementedError, match="flagos.*sparse.FloatTensor.*sparse_coo_tensor"):
            kind()
        assert not isinstance(torch.ones(1, device="cuda"), kind)


def test_old_types_say_cuda():
    with torch_fl.as_cuda():
        tensor = torch.ones(2, device="cuda")
        assert repr(torch.cuda.FloatTensor) == "<class 'torch.cuda.FloatTensor'>"
        assert repr(torch.cuda.FloatStorage) == "<class 'torch.cuda.FloatStorage'>"
        storage = tensor.storage()
        assert storage.type() == "torch.cuda.FloatStorage" and tensor.type() == "torch.cuda.FloatTensor"
        assert isinstance(storage, torch.cuda.FloatStorage)
        assert not isinstance(storage, torch.cuda.LongStorage)
        assert not isinstance(torch.ones(2).storage(), torch.cuda.FloatStorage)
    assert isinstance(storage, torch.flagos.FloatStorage)
    assert repr(torch.flagos.FloatTensor) == "<class 'torch.flagos.FloatTensor'>"


SCRIPTED = """
import torch

@torch.jit.script
def zeros_on(x: torch.Tensor):
    return torch.zeros(2, device=x.device), x.device.type != "cpu"

@torch.jit.script
def named(x: torch.Tensor):
    return torch.zeros(2, device="cuda") if x.is_cuda else x

made, is_elsewhere = zeros_on(torch.ones(1, device="cuda"))
print(made.is_cuda, is_elsewhere)
if not torch.jit._state._enabled.enabled:
    print(named(torch.ones(1, device="cuda")).tolist())
"""


@pytest.mark.parametrize("enabled", ["0", "1"])
def test_what_the_page_says_to_do_about_scripted_code(tmp_path, enabled):
    (tmp_path / "script.py").write_text(SCRIPTED)
    code = "import runpy; runpy.run_module('torch_fl', run_name='__main__', alter_sys=True)"
    here = torch_fl.platform()["name"]
    path = str(tmp_path / "script.py")
    done = run_python(code, "run", path, TORCH_FL_PLATFORM=here, PYTORCH_JIT=enabled)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True", "[0.0, 0.0]"][: 2 - int(enabled)]


def test_casts_of_custom_functions():
    with torch_fl.as_cuda():
        for of_cuda in (False, True):
            amp = torch.cuda.amp if of_cuda else torch.amp
            named = {} if of_cuda else {"device_type": "cuda"}

            class Function(torch.autograd.Function):
                @staticmethod
                @amp.custom_fwd(cast_inputs=torch.float32, **named)
                def forward(ctx, x):
                    return x * 2

                @staticmethod
                @amp.custom_bwd(**named)
                def backward(ctx, gradient):
                    return gradient

            half = torch.ones(2, device="cuda", dtype=torch.float16)
            with torch.autocast("cuda"):
                assert Function.apply(half).dtype == torch.float32
            assert Function.apply(half).dtype == torch.float16


def test_a_scale_given_as_a_tensor():
    with torch_fl.as_cuda():
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(torch.ones(1, device="cuda"))
        scaler.update(torch.tensor(4.0, device="cuda"))
        assert scaler.get_scale() == 4


def test_a_kernel_for_cuda_switched_off():
    with torch_fl.as_cuda():

        @torch.library.custom_op("fl_switched::add", mutates_args=())
        def add(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        add.register_kernel("cuda")(lambda x: x + 2)
        zero = torch.zeros(1, device="cuda")
        assert add(zero).item() == 2
        with add.set_kernel_enabled("cuda", False):
            assert add(zero).item() == 1


def test_programs_are_loaded_to_cuda(tmp_path):
    path = str(tmp_path / "program.pt")
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(path)
    with torch_fl.as_cuda():
        for where in ("cuda", "cuda:0", torch.device("cuda")):
            assert next(torch.jit.load(path, map_location=where).parameters()).is_cuda
    assert next(torch.jit.load(path).parameters()).device.type == "cpu"


def test_typed_classes_say_cuda():
    with torch_fl.as_cuda():
        assert torch.cuda.FloatTensor.is_cuda is True
    assert torch.flagos.FloatTensor.is_cuda is False


def test_a_decorator_does_not_end_before_a_generator_runs():
    def steps():
        yield torch.ones(1, device="cuda")

    async def step():
        return torch.ones(1, device="cuda")

    for function in (steps, step):
        with pytest.raises(TypeError, match="generator or a coroutine"):
            torch_fl.as_cuda()(function)
