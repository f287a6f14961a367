"""See where time goes: operators in PyTorch's profiler, and the route that served each of them."""

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch_fl import routes

x = torch.randn(128, 128, device="flagos", requires_grad=True)
routes.reset_counts()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    with record_function("forward"):
        loss = torch.softmax(x @ x, dim=1).square().sum()
    with record_function("backward"):
        loss.backward()
    torch.flagos.synchronize()

table = profiler.key_averages()
for row in sorted(table, key=lambda row: -row.cpu_time_total)[:6]:
    print(f"{row.key:<40} {row.count:>3} calls {row.cpu_time_total:>9.0f} us")
print(routes.report())
assert {"forward", "backward", "aten::mm"} <= {row.key for row in table}
