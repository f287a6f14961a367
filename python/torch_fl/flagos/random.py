"""Random numbers: seeds and generator states of each device.

A seed may be set before the device is initialised; it is kept and applied then.
"""

from collections.abc import Iterable

import torch

from torch_fl import _C
from torch_fl.flagos.device import Device, current_device, index_of
from torch_fl.flagos.lazy import _lazy_call, _lazy_init


def _generator(index=None):
    return torch.ops.flagos.default_generator(current_device() if index is None else index)


def generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device."""
    return tuple(_generator(index) for index in range(_C.device_count()))


def get_rng_state(device: Device = "flagos") -> torch.Tensor:
    """State of a device's default generator, as a byte tensor on the host (dtype uint8, one
    dimension; its length is the twin's)."""
    _lazy_init()
    return _generator(index_of(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """get_rng_state of each device."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = "flagos") -> None:
    """Set the state of a device's default generator to one of get_rng_state; the tensor is copied.
    RuntimeError, at initialisation if that comes later, for a tensor that is no such state."""
    # The caller may change the tensor before the device is initialised.
    state = new_state.clone(memory_format=torch.contiguous_format)
    _lazy_call(lambda: _generator(index_of(device)).set_state(state))


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """set_rng_state of each device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    seed = int(seed)
    _lazy_call(lambda: _generator().manual_seed(seed), kind="seed")


def manual_seed_all(seed: int) -> None:
    """Seed every device."""
    seed = int(seed)

    def call():
        for generator in generators():
            generator.manual_seed(seed)

    _lazy_call(call, kind="seed_all")


def seed() -> None:
    """Seed the current device with a number that nobody knows beforehand."""
    _lazy_call(lambda: _generator().seed())


def seed_all() -> None:
    """Seed every device with one number that nobody knows beforehand."""

    def call():
        first, *others = generators()
        number = first.seed()
        for generator in others:
            generator.manual_seed(number)

    _lazy_call(call)


def initial_seed() -> int:
    """The seed that the current device's generator started from."""
    _lazy_init()
    return _generator().initial_seed()
