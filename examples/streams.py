"""Work on two streams: one waits for the other by an event, and events time it."""

import torch

side = torch.flagos.Stream()
start, ready, end = (torch.flagos.Event(enable_timing=True) for _ in range(3))
x = torch.ones(512, 512, device="flagos")

start.record()
side.wait_stream(torch.flagos.current_stream())  # `x` must be there first.
with torch.flagos.stream(side):
    y = x @ x
    y.record_stream(side)  # Its memory is in use here, though it may be freed elsewhere.
    ready.record()
torch.flagos.current_stream().wait_event(ready)
z = y + 1
end.record()
end.synchronize()

print(f"z is {z[0, 0].item():.0f}, after {start.elapsed_time(end):.2f} ms")
assert z.eq(513).all()
