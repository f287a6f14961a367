"""Train a small network with mixed precision, and write and read checkpoints. Written for CUDA."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 4 * 4, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(self.dropout(torch.flatten(x, 1)))


class Squared(torch.autograd.Function):
    """A loss with its own backward pass, which makes a tensor on the GPU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).mean()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x * torch.full((1,), 2.0 / x.numel(), device="cuda") * grad


def dataset(count=128):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randn(count, 1, 8, 8, generator=generator) * 0.3
    for image, label in zip(images, labels):
        row, column = divmod(int(label), 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    return TensorDataset(images, labels)


def train(model, loader, optimizer, scaler, device):
    model.train()
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            output = model(images)
            loss = F.cross_entropy(output, labels) + 1e-3 * Squared.apply(output.float())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=device)
    for images, labels in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(images.to(device))
        correct += (output.argmax(1) == labels.to(device)).sum()
    return correct.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()

    assert torch.cuda.is_available()
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(args.device)
    use_cuda = device.type == "cuda"
    print(f"{torch.cuda.device_count()} device(s): {torch.cuda.get_device_name(device)}")

    loader = DataLoader(dataset(), batch_size=32, shuffle=True, pin_memory=use_cuda, num_workers=1)
    model = Net().to(device)
    assert next(model.parameters()).is_cuda and use_cuda
    assert next(model.parameters()).device == torch.device("cuda", torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scaler = GradScaler()
    start = 0
    if os.path.exists(args.checkpoint):
        checkpoint = torch.load(args.checkpoint, map_location=args.device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        torch.cuda.set_rng_state(checkpoint["rng"].cpu())
        start = checkpoint["epoch"]

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for epoch in range(start, args.epochs):
        loss = train(model, loader, optimizer, scaler, device)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {test(model, loader, device):.3f}")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.cuda.get_rng_state().cpu(),
                "epoch": epoch + 1,
            },
            args.checkpoint,
        )
    end.record()
    torch.cuda.synchronize()
    print(f"{begin.elapsed_time(end):.0f} ms")
    print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    torch.cuda.empty_cache()
    assert test(model, loader, device) > 0.9
    print("done")


if __name__ == "__main__":
    main()
