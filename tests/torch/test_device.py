"""Devices through PyTorch's generic interfaces: torch.accelerator, torch.device, defaults, threads."""

import threading

import pytest
import torch

import torch_fl

flagos = torch.flagos
COUNT = flagos.device_count()
PLATFORM = torch_fl.platform()["name"]
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


@pytest.fixture(autouse=True)
def unchanged():
    before = flagos.current_device()
    yield
    torch.set_default_device(None)
    flagos.set_device(before)


# --- torch.accelerator ---------------------------------------------------------------------------


def test_the_accelerator_is_flagos():
    assert torch.accelerator.current_accelerator() == torch.device("flagos")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("flagos")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == COUNT


def test_every_name_of_torch_accelerator_is_tried_here_or_in_another_file():
    here = {
        "current_accelerator", "current_device_idx", "current_device_index", "device_count",
        "device_index", "get_device_capability", "is_available", "set_device_idx",
        "set_device_index", "synchronize",
    }  # fmt: skip
    streams = {"current_stream", "set_stream"}  # test_stream.py
    memory = {
        "empty_cache", "get_memory_info", "max_memory_allocated", "max_memory_reserved",
        "memory_allocated", "memory_reserved", "memory_stats", "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    }  # fmt: skip
    assert set(torch.accelerator.__all__) == here | streams | memory


def test_capability_lists_dtypes():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        assert dtype in dtypes


def test_the_index_is_set_and_read():
    for index in range(COUNT):
        torch.accelerator.set_device_index(index)
        assert torch.accelerator.current_device_index() == index == flagos.current_device()
        with pytest.warns(FutureWarning):
            assert torch.accelerator.current_device_idx() == index
        with pytest.warns(FutureWarning):
            torch.accelerator.set_device_idx(f"flagos:{index}")
        assert torch.empty(1, device="flagos").device == torch.device("flagos", index)
    torch.accelerator.set_device_index(-1)  # Changes nothing.
    assert flagos.current_device() == COUNT - 1


def test_synchronize_takes_every_form_of_a_device():
    torch.ones(1000, device="flagos").sum()
    for form in (None, 0, "flagos", "flagos:0", torch.device("flagos:0")):
        torch.accelerator.synchronize(form)
        flagos.synchronize(form)


def test_device_index_is_restored_after_an_exception():
    last = COUNT - 1
    with pytest.raises(ZeroDivisionError):
        with torch.accelerator.device_index(last):
            assert flagos.current_device() == last
            with torch.accelerator.device_index(None):
                assert flagos.current_device() == last
            1 / 0
    assert flagos.current_device() == 0


@pytest.mark.parametrize("wrong", ["cpu", "meta", torch.device("cpu")])
def test_another_kind_of_device_is_refused(wrong):
    with pytest.raises((ValueError, RuntimeError)):
        torch.accelerator.set_device_index(wrong)
    with pytest.raises((ValueError, RuntimeError)):
        torch.accelerator.synchronize(wrong)


# --- torch.device and defaults -------------------------------------------------------------------


def test_torch_device_is_a_context():
    with torch.device("flagos"):
        assert torch.empty(2).device == torch.device("flagos:0")
        assert torch.nn.Linear(2, 2).weight.device.type == "flagos"
        with torch.device("cpu"):
            assert torch.empty(2).device.type == "cpu"
        assert torch.tensor([1.0]).device.type == "flagos"
        assert torch.empty(2, device="meta").device.type == "meta"
    assert torch.empty(2).device.type == "cpu"
    with pytest.raises(ZeroDivisionError):
        with torch.device("flagos"):
            1 / 0
    assert torch.empty(2).device.type == "cpu"


@two_devices
def test_torch_device_with_an_index_is_a_context():
    with torch.device("flagos:1"):
        assert torch.arange(3).device == torch.device("flagos:1")
    assert flagos.current_device() == 0


def test_the_default_device():
    torch.set_default_device("flagos:0")
    assert torch.get_default_device() == torch.device("flagos:0")
    assert torch.zeros(2).device == torch.device("flagos:0")
    assert torch.nn.Linear(2, 2).bias.device.type == "flagos"
    assert torch.randn(3, generator=torch.Generator("flagos").manual_seed(1)).device.type == "flagos"
    torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


@two_devices
def test_the_default_device_follows_the_current_one():
    torch.set_default_device("flagos")
    flagos.set_device(1)
    assert torch.zeros(2).device == torch.device("flagos:1")


def test_devices_are_compared_and_printed():
    assert torch.device("flagos", 0) == torch.device("flagos:0") != torch.device("flagos")
    assert str(torch.device("flagos:0")) == "flagos:0"
    assert torch.ones(1, device="flagos").device.type == "flagos"
    assert torch.empty(1, device=0).device == torch.device("flagos:0")
    assert len({torch.device("flagos:0"), torch.device("flagos", 0)}) == 1


def test_the_device_module_is_found():
    assert torch.get_device_module() is flagos
    for form in ("flagos", "flagos:0", torch.device("flagos")):
        assert torch.get_device_module(form) is flagos


def test_methods_of_tensors_modules_and_storages():
    x = torch.ones(2).flagos()
    assert x.is_flagos and x.flagos() is x and not torch.ones(1).is_flagos
    assert torch.nn.Linear(2, 2).flagos().weight.is_flagos
    assert torch.ones(2).untyped_storage().flagos().device.type == "flagos"
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.flagos().data.is_flagos
    assert torch.ones(2).flagos(COUNT - 1).device.index == COUNT - 1


def test_indices_that_torch_cuda_asserts():
    for call in (flagos.get_device_properties, flagos.get_device_name):
        with pytest.raises(AssertionError, match=f"{COUNT}"):
            call(COUNT)
    for pair in ((0, COUNT), (COUNT, 0)):
        with pytest.raises(AssertionError, match=f"{COUNT}"):
            flagos.can_device_access_peer(*pair)


# --- peers, threads, guards ----------------------------------------------------------------------


def test_a_device_reads_its_own_memory_or_says_so():
    for peer in range(COUNT):
        assert flagos.can_device_access_peer(0, peer) in (True, False)
    with pytest.raises((RuntimeError, IndexError), match=str(COUNT)):
        flagos.can_device_access_peer(0, COUNT)


@two_devices
def test_each_thread_has_a_current_device():
    start, seen = threading.Barrier(COUNT), {}

    def work(index):
        flagos.set_device(index)
        start.wait()
        for _ in range(20):
            x = torch.ones(16, device="flagos")
            seen.setdefault(index, set()).add((x + x).device.index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(COUNT)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert seen == {index: {index} for index in range(COUNT)}


@two_devices
def test_an_operator_that_fails_leaves_the_current_device():
    a, b = torch.ones(2, 3, device="flagos:1"), torch.ones(2, 3, device="flagos:1")
    with pytest.raises(RuntimeError):
        a @ b
    assert flagos.current_device() == 0


@two_devices
def test_copies_between_devices():
    x = torch.arange(1000, device="flagos:0")
    y = x.to("flagos:1")
    assert y.device.index == 1 and torch.equal(y.cpu(), x.cpu())
    assert torch.equal(y.to("flagos:0"), x)


# --- before and beside initialisation ------------------------------------------------------------


def test_asking_makes_no_context(python):
    code = """
import torch, torch_fl
print(torch.flagos.is_available(), torch.flagos.device_count(), torch.accelerator.is_available())
print(torch.flagos.is_initialized(), torch.flagos._is_in_bad_fork())
"""
    printed = python(code, TORCH_FL_PLATFORM=PLATFORM)
    assert printed == f"True {COUNT} True\nFalse False\n"


def test_a_forked_child_is_told(python):
    code = """
import os, torch, torch_fl
torch.ones(1, device="flagos")
child = os.fork()
if child == 0:
    assert torch.flagos._is_in_bad_fork() and not torch.flagos.is_initialized()
    torch.flagos.empty_cache()  # Answers as torch.cuda does: there is nothing to empty.
    try:
        torch.flagos.init()
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) else 2)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == "0\n"


@pytest.mark.skipif(
    PLATFORM == "cuda" and torch.cuda._device_count_nvml() < 0,
    reason="without its management library CUDA cannot count and then fork",
)
def test_a_fork_before_first_use_is_fine(python):
    code = """
import os, torch, torch_fl
torch.flagos.device_count()
child = os.fork()
if child == 0:
    os._exit(0 if torch.ones(3, device="flagos").sum().item() == 3 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(torch.ones(2, device="flagos").sum().item())
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == "0\n2.0\n"
