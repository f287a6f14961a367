"""Lightning's Trainer on flagos, in one argument:

    from torch_fl.lightning import FlagosStrategy
    trainer = lightning.Trainer(strategy=FlagosStrategy(precision="bf16-mixed"))

Lightning keeps lists of the accelerators that it knows; a strategy that brings its accelerator and
its precision is its way to add another. Importing this module imports lightning.
"""

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from lightning.pytorch.strategies import SingleDeviceStrategy


class FlagosAccelerator(Accelerator):
    """The devices of torch.flagos, as Lightning asks for them."""

    def setup_device(self, device):
        torch.flagos.set_device(device)

    def get_device_stats(self, device):
        """torch.flagos.memory_stats of the device; empty where the platform keeps none."""
        try:
            return torch.flagos.memory_stats(device)
        except NotImplementedError:
            return {}

    def teardown(self):
        torch.flagos.empty_cache()

    @staticmethod
    def parse_devices(devices):
        """A list of device numbers, from a number of devices, a list, or "auto"."""
        if devices in (-1, "-1", "auto"):
            devices = torch.flagos.device_count()
        if isinstance(devices, str):
            devices = [int(number) for number in devices.split(",")]
        return list(range(devices)) if isinstance(devices, int) else list(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("flagos", number) for number in devices]

    @staticmethod
    def auto_device_count():
        return torch.flagos.device_count()

    @staticmethod
    def is_available():
        return torch.flagos.is_available()

    @staticmethod
    def name():
        return "flagos"


class FlagosStrategy(SingleDeviceStrategy):
    """Training on one flagos device.

    device: its number.
    precision: what Trainer takes: "32-true", "64-true", "16-true", "bf16-true", and "16-mixed" or
        "bf16-mixed" for autocast. ValueError for any other.
    """

    def __init__(self, device=0, precision="32-true"):
        super().__init__(
            device=torch.device("flagos", device),
            accelerator=FlagosAccelerator(),
            precision_plugin=_plugin(precision),
        )


def _plugin(precision):
    if precision in ("16-mixed", "bf16-mixed"):
        scaler = torch.amp.GradScaler("flagos") if precision == "16-mixed" else None
        return MixedPrecision(precision, "flagos", scaler)
    if precision in ("16-true", "bf16-true"):
        return HalfPrecision(precision)
    plain = {"32-true": Precision, "64-true": DoublePrecision}
    if precision not in plain:
        known = [*plain, "16-true", "bf16-true", "16-mixed", "bf16-mixed"]
        raise ValueError(f"FlagosStrategy(precision={precision!r}): known are {', '.join(known)}")
    return plain[precision]()


__all__ = ["FlagosAccelerator", "FlagosStrategy"]
