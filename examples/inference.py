"""Serve a model on flagos: no gradients, half the bytes, and the batch's results on the host."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).eval()
batch = torch.randn(8, 16, 64)
with torch.inference_mode():
    wanted = model(batch)
    model.to("flagos", torch.bfloat16)
    result = model(batch.to("flagos", torch.bfloat16)).float().cpu()

error = (result - wanted).abs().max().item()
print(f"{tuple(result.shape)} in bfloat16, at most {error:.3f} from float32 on the host")
assert error < 0.1
