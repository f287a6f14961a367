"""torch.accelerator, checkpoints and pickles inside torch_fl.as_cuda."""

import pickle

import torch

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


def test_what_is_pickled_inside_is_read_outside():
    with torch_fl.as_cuda():
        generator = torch.Generator("cuda").manual_seed(7)
        text = pickle.dumps((generator, torch.Generator, torch.cuda.FloatStorage))
        made, kind, storage = pickle.loads(text)
        assert made.get_state().equal(generator.get_state()) and made.initial_seed() == 7
    made, kind, storage = pickle.loads(text)
    assert made.device == torch.device("flagos", 0) and made.initial_seed() == 7
    assert kind is torch.Generator and storage is torch.flagos.FloatStorage
