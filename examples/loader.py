"""Feed a device from a DataLoader: workers, pinned memory, copies that the host need not await."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    data = TensorDataset(torch.arange(1024.0).view(256, 4), torch.arange(256))
    loader = DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    total = torch.zeros((), device="flagos")
    for values, labels in loader:
        assert values.is_pinned() and labels.is_pinned()
        total += values.to("flagos", non_blocking=True).sum()
    print(f"the sum of {len(data)} rows is {total.item():.0f}")
    assert total.item() == 1024 * 1023 / 2


if __name__ == "__main__":
    main()
