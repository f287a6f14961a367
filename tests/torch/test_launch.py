"""TORCH_FL_LAUNCH_BLOCKING: each operator waits for its stream after its launch."""

import pytest
from conftest import run_python

WAITED = """
import torch, torch_fl
x, y = torch.ones(4, device="flagos"), torch.empty(4, 2, device="flagos")
pinned = torch.ones(4).pin_memory()
said = []
def after(call):
    torch.flagos._sleep(30_000_000)
    call()
    said.append(torch.flagos.current_stream().query())
    torch.flagos.synchronize()
after(lambda: None)
after(lambda: x.zero_())
after(lambda: y[:, 0].copy_(x))
after(lambda: x.to(torch.float64))
after(lambda: x.copy_(pinned, non_blocking=True))
after(lambda: pinned.copy_(x, non_blocking=True))
after(lambda: x + x)
after(lambda: torch._foreach_add_([x, x], 1))
with torch.flagos.stream(torch.flagos.Stream(device=torch.flagos.device_count() - 1)):
    z = torch.zeros(3, device=f"flagos:{torch.flagos.device_count() - 1}")
    after(lambda: z.fill_(2))
print(*(int(value) for value in said))
"""


@pytest.mark.parametrize("blocking", [None, "0", "1"])
def test_each_operator_waits_on_a_device_with_streams(python, blocking):
    said = python(WAITED, TORCH_FL_PLATFORM="sim", TORCH_FL_LAUNCH_BLOCKING=blocking).split()
    waits = blocking == "1"
    assert said[0] == "0"  # A task that is no operator.
    # Those that pass through the host wait in any case.
    assert set(said[1:]) == {"1"} if waits else "0" in said[1:6]


SAME = """
import torch, torch_fl
from torch_fl import routes
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU())
model = model.to("flagos")
x = torch.linspace(-1, 1, 32).view(4, 8).to("flagos").requires_grad_()
loss = model(x).softmax(1).square().sum()
loss.backward()
try: x @ x
except RuntimeError as error: print(error)
print(loss.item().hex(), x.grad.sum().item().hex())
print(sorted((row.name, *row.calls.items()) for row in routes.report().rows))
"""


@pytest.mark.parametrize("platform", ["cpu", "sim"])
def test_values_routes_and_errors_are_the_same(platform):
    plain, blocking = (
        run_python(SAME, TORCH_FL_PLATFORM=platform, TORCH_FL_LAUNCH_BLOCKING=value)
        for value in ("0", "1")
    )
    assert plain.returncode == 0, plain.stderr
    assert (blocking.stdout, blocking.stderr) == (plain.stdout, plain.stderr)
