"""Frameworks that keep lists of devices: how each is told of flagos."""

import importlib.abc
import importlib.util
import inspect
import os
import sys

import torch

from torch_fl._wrapped import Row, _mark


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


class _Arrival(importlib.abc.MetaPathFinder):
    """Calls back once a module has been imported, and is gone then."""

    def __init__(self, name, call):
        self.name, self.call = name, call

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_call(module):
            execute(module)
            self.call()

        spec.loader.exec_module = execute_and_call
        return spec


class _WhenImported(Row):
    """A method of a class in a module that nobody should pay for who does not import it."""

    def __init__(self, module, owner, name, wrap, **texts):
        super().__init__(f"{module}.{owner}", name, wrap, **texts)
        self.module, self.kind = module, owner

    def install(self):
        module = sys.modules.get(self.module)
        if module is not None and hasattr(module, self.kind):
            kind = getattr(module, self.kind)
            current = getattr(kind, self.name)
            if not hasattr(current, "_torch_fl_original"):
                setattr(kind, self.name, self.wrap(current))
        elif not any(getattr(finder, "name", None) == self.module for finder in sys.meta_path):
            sys.meta_path.insert(0, _Arrival(self.module, self.install))


def _wrap_pipeline(original):
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs).arguments
        device, model = given.get("device"), given["model"]
        if getattr(model, "hf_device_map", None) is None:
            on_flagos = device is None and model.device.type == "flagos"
            counted = device is None or isinstance(device, int) and device >= 0
            if on_flagos:
                kwargs["device"] = model.device
            elif counted and not torch.cuda.is_available() and torch.flagos.is_available():
                kwargs["device"] = torch.device("flagos", device or 0)
        original(self, *args, **kwargs)

    return _mark(__init__, original)


_WhenImported(
    "transformers.pipelines.base",
    "Pipeline",
    "__init__",
    _wrap_pipeline,
    why="a number or nothing for its device means the first of a list of accelerators, else the CPU, to "
    "which it moves the model, also where `device_map` had put it on flagos",
    cpu="nothing means where the model is, if that is flagos, or else the first device; a number means that "
    "device of flagos",
    none="likewise",
    cuda="nothing means where the model is, if that is flagos; a number is transformers' own, a device of `cuda`",
)


def _wrap_state(original):
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        told = os.environ.get("ACCELERATE_TORCH_DEVICE")
        wants_cpu = signature.bind(self, *args, **kwargs).arguments.get("cpu")
        wants_cpu = wants_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        if not wants_cpu or told != "flagos":
            return original(self, *args, **kwargs)
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        try:
            original(self, *args, **kwargs)
        finally:
            os.environ["ACCELERATE_TORCH_DEVICE"] = told

    return _mark(__init__, original)


_WhenImported(
    "accelerate.state",
    "PartialState",
    "__init__",
    _wrap_state,
    why="the variable above is stronger there than `cpu=True`, and a script that asks for the CPU would get flagos",
    cpu="`Accelerator(cpu=True)` and `TrainingArguments(use_cpu=True)` are on the CPU",
    none="likewise",
    cuda="likewise",
)
