"""Save a checkpoint, load it onto the device and onto the host, and go on where it was."""

import pathlib
import tempfile

import torch
from torch import nn


def make():
    model = nn.Linear(8, 8).to("flagos")
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    inputs = torch.linspace(-1, 1, 32, device="flagos").view(4, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()


torch.manual_seed(0)
model, optimizer = make()
train(model, optimizer, 3)
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    train(model, optimizer, 3)

    resumed, its_optimizer = make()
    checkpoint = torch.load(path, weights_only=True)  # On the device that it was saved from.
    resumed.load_state_dict(checkpoint["model"])
    its_optimizer.load_state_dict(checkpoint["optimizer"])
    train(resumed, its_optimizer, 3)
    on_host = torch.load(path, map_location="cpu", weights_only=True)["model"]["weight"]

same = torch.equal(model.weight, resumed.weight)
print(f"read on {on_host.device}; on {model.weight.device} training goes on the same: {same}")
assert same
