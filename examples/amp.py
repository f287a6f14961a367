"""Train with mixed precision: torch.autocast, a gradient scaler and clipped gradients."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("flagos")
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device.type)
inputs = torch.randn(256, 16, device=device)
targets = inputs[:, :4].sum(dim=1, keepdim=True).tanh()

for step in range(61):
    with torch.autocast(device.type, dtype=torch.float16):
        loss = nn.functional.mse_loss(model(inputs).float(), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")

assert loss.item() < 0.1
