"""Readings of a device: load, temperature, power, clocks. Where CUDA is the twin they come from
torch.cuda, which needs the package nvidia-ml-py and raises ModuleNotFoundError without it."""

from torch_fl.flagos._serve import NO_TELEMETRY, but_cuda, cuda, serve
from torch_fl.flagos.device import Device, checked_index


@serve(**but_cuda(NO_TELEMETRY))
def memory_usage(device: Device = None) -> int:
    """Percent of the last sample period in which device memory was read or written."""
    return cuda().memory_usage(checked_index(device))


@serve(**but_cuda(NO_TELEMETRY))
def utilization(device: Device = None) -> int:
    """Percent of the last sample period in which a kernel ran."""
    return cuda().utilization(checked_index(device))


@serve(**but_cuda(NO_TELEMETRY))
def temperature(device: Device = None) -> int:
    """Degrees Celsius of the device's own sensor."""
    return cuda().temperature(checked_index(device))


@serve(**but_cuda(NO_TELEMETRY))
def power_draw(device: Device = None) -> int:
    """Milliwatts that the device draws."""
    return cuda().power_draw(checked_index(device))


@serve(**but_cuda(NO_TELEMETRY))
def clock_rate(device: Device = None) -> int:
    """Clock of the processors in MHz, averaged over the last sample period."""
    return cuda().clock_rate(checked_index(device))


@serve(**but_cuda("the platform's driver does not say which processes use a device"))
def list_gpu_processes(device: Device = None) -> str:
    """The processes that use a device and their memory, as text."""
    return cuda().list_gpu_processes(checked_index(device))
