"""See what serves each operator, send one to the host, and refuse that in strict mode."""

import torch
import torch_fl
from torch_fl import routes

x = torch.randn(64, 64, device="flagos")

routes.reset_counts()
y = torch.softmax(x @ x, dim=1)
print(f"on platform {torch_fl.platform()['name']}:")
print(routes.report())

print(f"\naten::mm can be served by: {', '.join(routes.read('aten::mm').possible)}")
with routes.using({"aten::mm": "cpu"}):
    slow = x @ x
    moved = routes.read("aten::mm").cpu_bytes
print(f"through the host it moved {moved} bytes; the result is the same: {torch.equal(slow, x @ x)}")

with routes.using({"aten::mm": "cpu"}), routes.strict():
    try:
        x @ x
    except RuntimeError as error:
        print(f"strict mode: {error}")
