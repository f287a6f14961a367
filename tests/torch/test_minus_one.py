"""Device -1, and typed constructors with a wrong device: what torch.cuda takes is taken, and what it
refuses is refused in users' words."""

import pytest
import torch

flagos = torch.flagos
COUNT = flagos.device_count()

TAKEN = {
    "synchronize": lambda: flagos.synchronize(-1),
    "current_stream": lambda: flagos.current_stream(-1).device_index,
    "default_stream": lambda: flagos.default_stream(-1).device_index,
    "Stream": lambda: flagos.Stream(-1).device_index,
    "device": lambda: flagos.device(-1).__enter__(),
    "set_device": lambda: flagos.set_device(-1),
}
REFUSED = {
    "name": lambda: flagos.get_device_name(-1),
    "properties": lambda: flagos.get_device_properties(-1),
    "peer": lambda: flagos.can_device_access_peer(-1, 0),
    "other peer": lambda: flagos.can_device_access_peer(0, -1),
    "synchronize": lambda: flagos.synchronize(-2),
    "stream": lambda: flagos.Stream(-2),
    "current stream": lambda: flagos.current_stream(COUNT),
}


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_the_current_device(name):
    """As torch.cuda takes it: also where the current one is not the first."""
    last = COUNT - 1
    with flagos.device(last):
        assert TAKEN[name]() in (None, last)
        assert flagos.current_device() == last


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_no_device(name):
    with pytest.raises(RuntimeError, match=r"device index -?\d is out of range: platform"):
        REFUSED[name]()


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu")])
def test_a_typed_tensor_refuses_another_device(device):
    message = "legacy constructor expects device type: flagos but device type: "
    for make in (flagos.FloatTensor, torch.ones(1, device="flagos").new):
        with pytest.raises(RuntimeError, match=message):
            make(2, device=device)


@pytest.mark.parametrize("device", [None, "flagos", COUNT - 1, torch.device("flagos", COUNT - 1)])
def test_a_typed_tensor_takes_its_own_devices(device):
    made = flagos.HalfTensor(2, 3, device=device)
    index = 0 if device in (None, "flagos") else COUNT - 1
    assert (made.shape, made.dtype) == ((2, 3), torch.float16)
    assert made.device == torch.device("flagos", index)
    assert flagos.FloatTensor([1, 2], device=device).tolist() == [1, 2]
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        flagos.FloatTensor(nothing=2)


def test_events_speak_of_what_a_user_did():
    start, end = flagos.Event(), flagos.Event()
    start.record(), end.record()
    with pytest.raises((RuntimeError, ValueError)) as caught:
        start.elapsed_time(end)
    assert "timing" in str(caught.value) and "fl_" not in str(caught.value)
    start, end = flagos.Event(enable_timing=True), flagos.Event(enable_timing=True)
    if COUNT > 1:
        with flagos.device(1):
            end.record()
        start.record()
        start.synchronize(), end.synchronize()
        with pytest.raises((RuntimeError, ValueError)) as caught:
            start.elapsed_time(end)
        assert "devices 0 and 1" in str(caught.value) and "fl_" not in str(caught.value)
