"""Random numbers: seeds and generator states of each device.

A seed may be set before the device is initialised; it is kept and applied then.
"""

import torch

from torch_fl import _C
from torch_fl.flagos.device import current_device, index_of
from torch_fl.flagos.lazy import _lazy_call, _lazy_init


def _generator(index=None):
    return torch.ops.flagos.default_generator(current_device() if index is None else index)


def generators():
    """The default generator of each device."""
    return tuple(_generator(index) for index in range(_C.device_count()))


def get_rng_state(device="flagos"):
    """State of a device's default generator, as a byte tensor on the host."""
    _lazy_init()
    return _generator(index_of(device)).get_state()


def get_rng_state_all():
    """get_rng_state of each device."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state, device="flagos"):
    """Set the state of a device's default generator."""
    # The caller may change the tensor before the device is initialised.
    state = new_state.clone(memory_format=torch.contiguous_format)
    _lazy_call(lambda: _generator(index_of(device)).set_state(state))


def set_rng_state_all(new_states):
    """set_rng_state of each device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed):
    """Seed the current device."""
    seed = int(seed)
    _lazy_call(lambda: _generator().manual_seed(seed), kind="seed")


def manual_seed_all(seed):
    """Seed every device."""
    seed = int(seed)

    def call():
        for generator in generators():
            generator.manual_seed(seed)

    _lazy_call(call, kind="seed_all")


def seed():
    """Seed the current device with a number that nobody knows beforehand."""
    _lazy_call(lambda: _generator().seed())


def seed_all():
    """Seed every device with one number that nobody knows beforehand."""

    def call():
        first, *others = generators()
        number = first.seed()
        for generator in others:
            generator.manual_seed(number)

    _lazy_call(call)


def initial_seed():
    """The seed that the current device's generator started from."""
    _lazy_init()
    return _generator().initial_seed()
