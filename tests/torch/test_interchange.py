"""Interchange with NumPy and with other libraries through DLPack and CUDA's array interface, and
the table of what is wrapped for it."""

import numpy as np
import pytest
import torch
from conftest import ROOT

import torch_fl
from torch_fl import _wrapped

D = "flagos"
TWIN = torch_fl.platform()["twin"]
host_twin = pytest.mark.skipif(TWIN != "cpu", reason="needs the host as the twin")
no_host_twin = pytest.mark.skipif(TWIN == "cpu", reason="the host is the twin")
no_twin = pytest.mark.skipif(TWIN is not None, reason="there is a twin")
with_twin = pytest.mark.skipif(TWIN is None, reason="needs a twin")
KINDS = torch.utils.dlpack.DLDeviceType


def layouts():
    x = torch.arange(24.0, device=D).view(4, 6)
    made = [x, x[1], x[:, 2], x.t(), x[::2, ::3], x[2, 3], x[:0], x.view(2, 2, 6)]
    return [*made, x[:1].expand(3, 6)]


# --- NumPy ---------------------------------------------------------------------------------------


@host_twin
@pytest.mark.parametrize("index", range(9))
def test_an_array_shares_the_memory_of_every_layout(index):
    x = layouts()[index]
    array = x.numpy()
    assert array.shape == tuple(x.shape) and array.dtype == np.float32
    assert array.size == 0 or array.__array_interface__["data"][0] == x.data_ptr()
    assert array.size == 0 or array.strides == tuple(4 * stride for stride in x.stride())
    assert np.array_equal(array, x.cpu().numpy())
    if array.size:
        array[...] = -1
        assert (x == -1).all()


@host_twin
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.half])
def test_arrays_have_the_tensors_dtype(dtype):
    x = torch.ones(3, dtype=dtype)
    assert x.to(D).numpy().dtype == x.numpy().dtype


@host_twin
def test_an_array_keeps_its_memory():
    array = torch.arange(1000.0, device=D).numpy()
    others = [torch.zeros(1000, device=D) for _ in range(20)]
    assert array.sum() == 499500
    del others


@host_twin
@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(2, device=device, requires_grad=True),
        lambda device: torch.ones(2, dtype=torch.cfloat, device=device).conj(),
        lambda device: torch._neg_view(torch.ones(2, device=device)),
        lambda device: torch.ones(2, dtype=torch.bfloat16, device=device),
    ],
)
def test_what_the_cpu_refuses_is_refused_alike(make):
    for call in (lambda x: x.numpy(), np.asarray):
        with pytest.raises(Exception) as ours:
            call(make(D))
        with pytest.raises(Exception) as theirs:
            call(make("cpu"))
        assert type(ours.value) is type(theirs.value) and str(ours.value) == str(theirs.value)


@host_twin
def test_a_tensor_with_an_array_does_not_resize():
    x = torch.ones(3, device=D)
    array = x.numpy()
    for resize in (lambda: x.resize_(1000), lambda: x.untyped_storage().resize_(4000)):
        with pytest.raises(RuntimeError, match="not resizable"):
            resize()
    assert array.sum() == 3


@host_twin
def test_functions_of_numpy():
    x = torch.arange(3.0, device=D)
    assert np.linalg.norm(x[:2]) == 1 and np.array(x, dtype=np.int32).dtype == np.int32
    result = np.sin(x)
    assert result.device == x.device and torch.equal(result.cpu(), np.sin(x.cpu()))
    assert np.array_equal(torch.nn.Parameter(x).detach().numpy(), x.numpy())
    x.requires_grad_()
    with torch.no_grad():
        assert np.shares_memory(x.numpy(), x.detach().numpy())


@no_host_twin
def test_without_the_hosts_memory_it_is_cudas_error():
    for call in (lambda x: x.numpy(), np.asarray, np.sin):
        with pytest.raises(TypeError, match=r"can't convert flagos:0 .*Tensor\.cpu\(\)"):
            call(torch.ones(2, device=D))


def test_force_always_gives_an_array():
    x = torch.arange(3.0, device=D, requires_grad=True)
    assert np.array_equal(x.numpy(force=True), [0, 1, 2])
    z = torch.full((2,), 1 + 2j, device=D).conj()
    assert np.array_equal(z.numpy(force=True), [1 - 2j, 1 - 2j])


def test_sparse_tensors_have_no_array():
    with pytest.raises(TypeError, match="Sparse|flagos:0"):
        torch.eye(2, device=D).to_sparse().numpy()


def test_arrays_become_tensors():
    array = np.arange(6).reshape(2, 3)
    for x in (torch.asarray(array, device=D), torch.tensor(array, device=D)):
        assert x.device == torch.device(D, 0) and x.tolist() == array.tolist()
    raw = bytearray(np.arange(4, dtype=np.float32).tobytes())
    assert torch.frombuffer(raw, dtype=torch.float32, offset=4).to(D).tolist() == [1, 2, 3]


# --- DLPack --------------------------------------------------------------------------------------


@with_twin
def test_dlpack_exports_the_twins_kind_of_device():
    x = torch.ones(2, device=D)
    assert x.__dlpack_device__() == (KINDS.kDLCPU if TWIN == "cpu" else KINDS.kDLCUDA, 0)
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor_versioned"' in repr(x.__dlpack__(max_version=(1, 0)))


@with_twin
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_comes_back_as_it_went(version):
    """Other libraries read the twin's kind of device in it."""
    module = torch.utils.dlpack
    for x in (torch.arange(6.0, device=D).view(2, 3).t(), torch.ones(0, device=D)):
        for capsule in (module.to_dlpack(x), torch.to_dlpack(x), x.__dlpack__(max_version=version)):
            back = module.from_dlpack(capsule)
            assert back.device == x.device and back.stride() == x.stride()
            assert back.data_ptr() == x.data_ptr() and torch.equal(back, x)
            with pytest.raises(RuntimeError):
                module.from_dlpack(capsule)  # It is used up.
    x = torch.arange(3.0, device=D)
    asked = torch.from_dlpack(x.__dlpack__(dl_device=x.__dlpack_device__()))
    assert asked.device.type == TWIN
    capsule = module.to_dlpack(x)
    del x
    assert torch.from_dlpack(capsule).tolist() == [0, 1, 2]
    host = module.from_dlpack(module.to_dlpack(torch.ones(2)))
    assert host.device.type == "cpu"


@host_twin
@pytest.mark.parametrize("index", range(9))
def test_numpy_takes_every_layout_through_dlpack(index):
    x = layouts()[index]
    array = np.from_dlpack(x)
    assert np.array_equal(array, x.cpu().numpy())
    assert array.size == 0 or array.__array_interface__["data"][0] == x.data_ptr()


@no_twin
def test_without_a_twin_there_is_nothing_to_export():
    x = torch.arange(3.0, device=D)
    for call in (
        x.__dlpack_device__,
        x.__dlpack__,
        lambda: np.from_dlpack(x),
        lambda: torch.to_dlpack(x),
    ):
        with pytest.raises(BufferError, match=r"flagos:0 on platform 'sim'.*tensor\.cpu\(\)"):
            call()
    capsule = x.__dlpack__(dl_device=(KINDS.kDLCPU, 0))
    assert torch.from_dlpack(capsule).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: torch.ones(2, device=D, requires_grad=True), "detach"),
        (lambda: torch.ones(2, dtype=torch.cfloat, device=D).conj(), "conjugate"),
        (lambda: torch.eye(2, device=D).to_sparse(), "strided"),
    ],
)
def test_what_a_capsule_cannot_say_is_not_exported(make, words):
    for call in (lambda x: x.__dlpack__(), torch.from_dlpack):
        with pytest.raises(BufferError, match=words):
            call(make())


def test_flagos_tensors_stay_on_flagos():
    x = torch.arange(3.0, device=D)
    for y in (torch.from_dlpack(x), torch.from_dlpack(x, device=D, copy=False)):
        assert y.device == x.device and y.data_ptr() == x.data_ptr()
    copy = torch.from_dlpack(x, device=x.device, copy=True)
    assert copy.device == x.device and copy.data_ptr() != x.data_ptr() and copy.equal(x)
    host = torch.from_dlpack(x, device="cpu")
    assert host.device.type == "cpu" and host.tolist() == [0, 1, 2]
    if TWIN != "cpu":
        with pytest.raises(ValueError, match="without copying|copy"):
            torch.from_dlpack(x, device="cpu", copy=False)


@pytest.mark.parametrize("source", [np.arange(3.0), torch.arange(3.0)], ids=["numpy", "torch"])
@pytest.mark.parametrize("function", [torch.from_dlpack, torch.utils.dlpack.from_dlpack])
def test_host_memory_comes_to_flagos(source, function):
    x = function(source, device=D)
    assert x.device == torch.device(D, 0) and x.tolist() == [0, 1, 2]
    assert function(source, device=torch.device(D), copy=True).add_(1).tolist() == [1, 2, 3]
    assert list(source) == [0, 1, 2]
    if TWIN == "cpu":
        shared = function(source, device=D, copy=False)
        del x
        source[0] = 7
        assert shared.tolist() == [7, 1, 2]
        source[0] = 0
    else:
        with pytest.raises(ValueError, match="cop"):
            function(source, device=D, copy=False)


@host_twin
def test_what_came_from_the_host_goes_back_as_it_was():
    array = np.arange(4.0)
    x = torch.from_dlpack(array, device=D)
    assert x.numpy().__array_interface__["data"] == array.__array_interface__["data"]
    (x * 2).numpy()
    x.mul_(2)
    assert array.tolist() == [0, 2, 4, 6]


# --- CUDA's array interface, and others' tensors -------------------------------------------------


@pytest.mark.skipif(TWIN == "cuda", reason="CUDA is the twin")
def test_there_is_no_cuda_array_interface_without_cuda():
    x = torch.ones(2, device=D)
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="torch.flagos.FloatTensor"):
        x.__cuda_array_interface__


@pytest.mark.platforms("cuda")
def test_the_cuda_array_interface_is_cudas():
    x = torch.ones(4, 4, device=D)[:, 1:]
    seen = x.__cuda_array_interface__
    assert seen["data"] == (x.data_ptr(), False) and seen["shape"] == (4, 3)
    assert seen["strides"] == (16, 4) and seen["typestr"] == "<f4"


@pytest.mark.parametrize("name", ["numpy", "__dlpack_device__", "__dlpack__", "share_memory_"])
def test_tensors_of_others_get_the_original(name):
    x = torch.ones(3)
    wrapper = getattr(torch.Tensor, name)
    original = getattr(wrapper, "_torch_fl_original", wrapper)
    assert repr(getattr(x, name)())[:20] == repr(original(x))[:20]
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), kwargs=None):
            seen.append(function)
            return function(*arguments, **(kwargs or {}))

    with Mode():
        getattr(x, name)()
    assert seen[0] is wrapper


# --- the table -----------------------------------------------------------------------------------


def test_the_page_is_the_table():
    # Otherwise run: what _wrapped.py says at its beginning.
    assert (ROOT / "docs" / "wrapped.md").read_text() == _wrapped.page()


def test_wrapping_again_changes_nothing():
    before = torch.Tensor.numpy, torch.Tensor.__cuda_array_interface__, torch.from_dlpack
    _wrapped.install()
    after = torch.Tensor.numpy, torch.Tensor.__cuda_array_interface__, torch.from_dlpack
    assert before == after
