"""torch.set_default_tensor_type, for types of torch.flagos and, inside as_cuda, of torch.cuda."""

import contextlib

import pytest
import torch

import torch_fl

pytestmark = pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
BACKENDS = {"flagos": contextlib.nullcontext, "cuda": torch_fl.as_cuda}


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The name of the device, where it is one."""
    with BACKENDS[request.param]():
        yield request.param
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def spelled(backend, name, as_class):
    return getattr(getattr(torch, backend), name) if as_class else f"torch.{backend}.{name}"


@pytest.mark.parametrize("as_class", [True, False])
def test_it_sets_device_and_dtype_and_goes_back(backend, as_class):
    torch.set_default_tensor_type(spelled(backend, "HalfTensor", as_class))
    assert (torch.ones(1).device.type, torch.ones(1).dtype) == (backend, torch.float16)
    assert torch.tensor([1.0]).device.type == torch.get_default_device().type == backend
    torch.set_default_tensor_type(spelled(backend, "FloatTensor", as_class))
    assert (torch.ones(1).device.type, torch.ones(1).dtype) == (backend, torch.float32)
    torch.set_default_tensor_type(torch.DoubleTensor if as_class else "torch.DoubleTensor")
    assert (torch.ones(1).device.type, torch.ones(1).dtype) == ("cpu", torch.float64)
    assert torch.get_default_device().type == "cpu"


def test_a_device_that_was_set_by_itself_stays(backend):
    torch.set_default_device("meta")
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).device.type == "meta"
    torch.set_default_tensor_type(f"torch.{backend}.FloatTensor")
    assert torch.ones(1).device.type == backend
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).device.type == "meta"
    torch.set_default_tensor_type(f"torch.{backend}.FloatTensor")
    torch.set_default_device(backend)
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).device.type == backend


def test_what_is_refused_changes_nothing(backend):
    for wanted in (f"torch.{backend}.LongTensor", getattr(torch, backend).LongTensor):
        with pytest.raises(TypeError, match="only floating-point types are supported"):
            torch.set_default_tensor_type(wanted)
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        torch.set_default_tensor_type(f"torch.{backend}.NoTensor")
    torch.set_default_tensor_type(f"torch.{backend}.FloatTensor")
    with pytest.raises(TypeError):
        torch.set_default_tensor_type("torch.LongTensor")
    assert torch.ones(1).device.type == backend
