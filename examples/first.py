"""A first program: tensors on flagos, and the same result as on the host."""

import torch

x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
weight = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))

result = torch.relu(x.to("flagos") @ weight.to("flagos"))

print(f"{torch.flagos.device_count()} device(s), the first is {torch.flagos.get_device_name(0)}")
print(result)
torch.testing.assert_close(result.cpu(), torch.relu(x @ weight))
