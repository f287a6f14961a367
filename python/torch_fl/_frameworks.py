"""Frameworks that keep lists of devices: how each is told of flagos."""

import os

from torch_fl._wrapped import Row


class _Setting(Row):
    """An environment variable with a default of ours; what the user has set stays."""

    def __init__(self, name, value, **texts):
        super().__init__("the environment", name, None, **texts)
        self.value = value

    full_name = property(lambda self: f"environment variable {self.name}")

    def install(self):
        os.environ.setdefault(self.name, self.value)


_Setting(
    "ACCELERATE_TORCH_DEVICE",
    "flagos",
    why="accelerate, and with it the Trainer of transformers, takes any accelerator that it does not "
    "know for none; this is its own switch, and child processes inherit it",
    cpu="`Accelerator().device` is flagos, unless the variable is set",
    none="likewise",
    cuda="likewise",
)
