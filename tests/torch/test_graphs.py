"""Graphs of CUDA, captured from operators of flagos in a program whose operators were queued before:
no library may make its handle while a graph is captured."""

import pytest

pytestmark = pytest.mark.platforms("cuda")

STEPS = {
    "products": "lambda x: x @ x",
    "convolutions": "lambda x: torch.conv2d(x[None, None], x[None, None], padding=3)",
    "factors": "lambda x: torch.linalg.cholesky_ex(x @ x.mT + 8 * torch.eye(8, device=x.device))[0]",
    "recurrences": "lambda x: lstm(x[None])[0]",
}

CODE = """
import sys, torch, torch_fl
torch.manual_seed(0)
lstm = torch.nn.LSTM(8, 8).to("flagos")
x = torch.randn(8, 8, device="flagos", requires_grad={trains})
function = {function}
def step():
    result = function(x)
    return [result.detach(), *(torch.autograd.grad(result.sum(), x) if x.requires_grad else ())]
with torch.set_grad_enabled({trains}):
    for _ in range(3):
        expected = step()
    torch.flagos.synchronize()
    graph = torch.flagos.Graph()
    with torch.flagos.graph(graph):
        results = step()
for result in results:
    result.zero_()
graph.replay()
print(all(map(torch.equal, results, expected)))
"""


@pytest.mark.parametrize("trains", (True, False))
@pytest.mark.parametrize("function", STEPS)
def test_a_program_that_queued(python, function, trains):
    """In a process of its own: what is made once must not have been made by another test."""
    code = CODE.format(function=STEPS[function], trains=trains)
    assert python(code, TORCH_FL_PLATFORM="cuda") == "True\n"
