"""Train a small classifier on flagos. The loop is the one that PyTorch's tutorials show."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("flagos")

# Points of two interleaved spirals: no straight line tells them apart.
angle = torch.linspace(0.5, 9.0, 400)
arms = torch.stack([torch.cos(angle), torch.sin(angle)], dim=1) * angle.unsqueeze(1) / 9.0
points = torch.cat([arms, -arms]) + 0.02 * torch.randn(800, 2)
labels = torch.arange(800) // 400

model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
model.to(device)
points, labels = points.to(device), labels.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for step in range(301):
    loss = nn.functional.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

accuracy = (model(points).argmax(dim=1) == labels).float().mean().item()
print(f"accuracy {accuracy:.3f}")
assert accuracy > 0.95
