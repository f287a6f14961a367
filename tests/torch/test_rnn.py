"""Recurrent networks: the twin's choice of kernels, its numbers and its graph, forward and
backward, in training and inference."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn as packing
from torch.utils.checkpoint import checkpoint

from twins import assert_close_to_twin, assert_same_as_twin

KINDS = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
FORMS = {
    "plain": {},
    "deep": {"num_layers": 3},
    "both": {"bidirectional": True},
    "deepboth": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "nobias": {"num_layers": 2, "bias": False},
    "dropout": {"num_layers": 3, "dropout": 0.4, "batch_first": True},
    "projected": {"num_layers": 2, "proj_size": 5, "bidirectional": True},
}


def make(kind, form, dtype=torch.float32, size=(7, 12)):
    """A network whose weights were drawn on the host, so that each device gets the same."""
    cls, options = KINDS[kind]
    return cls(*size, **options, **FORMS[form]).to(dtype)


def grads(network, *inputs):
    named = {name: weight.grad for name, weight in network.named_parameters()}
    return named, [tensor.grad for tensor in inputs]


def scalar(outputs):
    """A sum whose gradient is another number for each element."""
    total = 0
    for tensor in outputs:
        weight = torch.linspace(-1, 1, tensor.numel(), dtype=torch.float64).to(tensor)
        total = total + (tensor * weight.view(tensor.shape)).sum()
    return total


def flat(value):
    if isinstance(value, packing.PackedSequence):
        return [value.data]
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)]


# --- whole networks ------------------------------------------------------------------------------


def train_step(device, kind, form, dtype):
    network = make(kind, form, dtype)
    host = torch.randn(4, 6, 7, dtype=dtype)
    network = network.to(device)
    inputs = host.to(device).requires_grad_()
    torch.manual_seed(5)
    outputs = flat(network(inputs))
    scalar(outputs).backward()
    return outputs, grads(network, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_training(kind, form, dtype):
    if form == "projected" and kind != "lstm":
        pytest.skip("only LSTMs have projections")
    assert_same_as_twin(train_step, kind, form, dtype)


def infer(device, kind, form, dtype, mode):
    network = make(kind, form, dtype).eval()
    inputs = torch.randn(5, 3, 7, dtype=dtype)
    with getattr(torch, mode)():
        return flat(network.to(device)(inputs.to(device)))


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("form", ["plain", "deepboth", "dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_inference(kind, form, mode):
    assert_same_as_twin(infer, kind, form, torch.float32, mode)


@pytest.mark.platforms("cpu")
def test_half_inference():
    """The host has half kernels for inference alone."""
    assert_same_as_twin(infer, "lstm", "plain", torch.float16, "no_grad")


def with_states(device, kind):
    network = make(kind, "deepboth")
    states = [torch.randn(4, 6, 12) for _ in range(2 if kind == "lstm" else 1)]
    host = torch.randn(6, 5, 7)
    network = network.to(device)
    states = [state.to(device).requires_grad_() for state in states]
    inputs = host.to(device).requires_grad_()
    outputs = flat(network(inputs, tuple(states) if kind == "lstm" else states[0]))
    scalar(outputs).backward()
    return outputs, grads(network, inputs, *states)


@pytest.mark.parametrize("kind", KINDS)
def test_given_states_get_gradients(kind):
    assert_same_as_twin(with_states, kind)


def unbatched(device, kind):
    network = make(kind, "plain")
    host = torch.randn(9, 7)
    return flat(network.to(device)(host.to(device)))


@pytest.mark.parametrize("kind", KINDS)
def test_unbatched(kind):
    assert_same_as_twin(unbatched, kind)


def strided(device, kind):
    network = make(kind, "both")
    base = torch.randn(7, 6, 10)
    network, base = network.to(device), base.to(device).requires_grad_()
    outputs = flat(network(base.permute(2, 1, 0)[::2]))
    scalar(outputs).backward()
    return outputs, grads(network, base)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_strided_input(kind):
    assert_same_as_twin(strided, kind)


# --- packed sequences ----------------------------------------------------------------------------


def packed(device, kind, form, is_sorted):
    network = make(kind, form)
    host = torch.randn(8, 4, 7)
    lengths = torch.tensor([8, 5, 5, 1] if is_sorted else [3, 8, 1, 5])
    network, inputs = network.to(device), host.to(device).requires_grad_()
    torch.manual_seed(5)
    sequence = packing.pack_padded_sequence(
        inputs, lengths, batch_first=False, enforce_sorted=is_sorted
    )
    assert sequence.batch_sizes.device.type == "cpu"
    network.batch_first = False
    output, states = network(sequence)
    padded, sizes = packing.pad_packed_sequence(output)
    outputs = [padded, *flat(states)]
    scalar(outputs).backward()
    return outputs, sizes, grads(network, inputs)


@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("form", ["plain", "deepboth", "dropout", "projected"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_packed(kind, form, is_sorted):
    if form == "projected" and kind != "lstm":
        pytest.skip("only LSTMs have projections")
    assert_same_as_twin(packed, kind, form, is_sorted)


# --- cells ---------------------------------------------------------------------------------------

CELLS = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *size, **options: nn.RNNCell(*size, nonlinearity="relu", **options),
}


def steps(device, kind, bias, dtype):
    cell = CELLS[kind](7, 12, bias=bias).to(dtype)
    host = torch.randn(5, 3, 7, dtype=dtype)
    cell, inputs = cell.to(device), host.to(device).requires_grad_()
    state, outputs = None, []
    for step in inputs:
        state = cell(step, state)
        outputs += flat(state)
    scalar(outputs).backward()
    return outputs, grads(cell, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, bias, dtype):
    assert_same_as_twin(steps, kind, bias, dtype)


# --- the graph is the twin's ---------------------------------------------------------------------


def called_twice(device, kind):
    """Gradients of one weight from many steps of two calls: their order of summing shows."""
    network = make(kind, "deep")
    host = torch.randn(2, 20, 6, 7)
    network, inputs = network.to(device), host.to(device)
    first, state = network(inputs[0])
    second, state = network(inputs[1], state)
    scalar([first, second, *flat(state)]).backward()
    return grads(network)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_shared_between_calls(kind):
    assert_same_as_twin(called_twice, kind)


def node_names(tensor):
    """The names of the nodes behind a tensor, as a walk over the graph meets them."""
    names, seen, stack = [], set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            stack += [next_node for next_node, _ in node.next_functions]
    return names


def graph(device, kind, form):
    network = make(kind, form)
    host = torch.randn(4, 6, 7)
    return node_names(scalar(flat(network.to(device)(host.to(device).requires_grad_()))))


@pytest.mark.parametrize("form", ["deepboth", "dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_the_twins(kind, form):
    assert_same_as_twin(graph, kind, form)


def twice_differentiated(device, kind, dtype):
    network = make(kind, "deep", dtype)
    host = torch.randn(3, 2, 7, dtype=dtype)
    network, inputs = network.to(device), host.to(device).requires_grad_()
    # cuDNN has no second derivative of its networks; the twin's own other kernels have.
    with torch.backends.cudnn.flags(enabled=False):
        (gradient,) = torch.autograd.grad(scalar(flat(network(inputs))), inputs, create_graph=True)
        scalar([gradient]).backward()
    return gradient, grads(network, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_second_derivatives(kind, dtype):
    assert_close_to_twin(twice_differentiated, kind, dtype)


def checkpointed(device, kind, reentrant):
    network = make(kind, "dropout")
    host = torch.randn(4, 6, 7)
    network, inputs = network.to(device), host.to(device).requires_grad_()
    torch.manual_seed(5)
    outputs = flat(checkpoint(network, inputs, use_reentrant=reentrant))
    scalar(outputs).backward()
    return outputs, grads(network, inputs)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "hooks"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_checkpointed(kind, reentrant):
    assert_same_as_twin(checkpointed, kind, reentrant)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_saved_tensors_are_seen_as_flagos_tensors(kind):
    network = make(kind, "deepboth").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos", requires_grad=True)
    seen = []

    def pack(tensor):
        seen.append(tensor.device.type)
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to("flagos")):
        outputs = flat(network(inputs))
    scalar(outputs).backward()
    assert seen and {*seen} == {"flagos"}
    plain = make(kind, "deepboth").to("flagos")
    plain.load_state_dict(network.state_dict())
    scalar(flat(plain(inputs))).backward()
    for weight, other in zip(network.parameters(), plain.parameters()):
        assert torch.equal(weight.grad, other.grad)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_python_modes_see_flagos_operators(kind):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        devices, names = set(), set()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            for tensor in flat([a for a in args if isinstance(a, torch.Tensor)]):
                self.devices.add(tensor.device.type)
            self.names.add(str(function))
            # What the mode does itself is no part of the network.
            assert torch.zeros(2).device.type == "cpu"
            return function(*args, **(kwargs or {}))

    network = make(kind, "deepboth").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos")
    want = flat(network(inputs))
    with Watch() as watch:
        got = flat(network(inputs))
    assert watch.devices == {"flagos"} and len(watch.names) > 2
    assert all(torch.equal(a, b) for a, b in zip(want, got))


def test_results_and_gradients_are_on_flagos():
    network = make("lstm", "deepboth").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos", requires_grad=True)
    outputs = flat(network(inputs))
    scalar(outputs).backward()
    for tensor in [*outputs, inputs.grad, *(weight.grad for weight in network.parameters())]:
        assert tensor.device == torch.device("flagos", 0)
        assert type(tensor) in (torch.Tensor, nn.Parameter)
        assert (tensor + 1).device.type == "flagos"


# --- random numbers ------------------------------------------------------------------------------


def test_dropout_draws_from_the_devices_generator_alone():
    network = make("lstm", "dropout").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos")
    host = torch.get_rng_state()
    ours = torch.flagos.get_rng_state()
    network(inputs)
    assert torch.equal(torch.get_rng_state(), host)
    if torch.backends.cudnn.is_acceptable(torch.empty(1)) is False:
        assert not torch.equal(torch.flagos.get_rng_state(), ours)


def dropped(device, p, train):
    inputs = torch.randn(33, 65)
    inputs = inputs.to(device).requires_grad_()
    torch.manual_seed(9)
    output = nn.functional.dropout(inputs, p, train)
    scalar([output]).backward()
    return output, inputs.grad, node_names(output)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_dropout(p, train):
    assert_same_as_twin(dropped, p, train)


# --- the fused cells, for who calls them ---------------------------------------------------------


def fused_operands(gates):
    torch.manual_seed(1)
    sizes = [(3, gates * 4), (3, gates * 4), (3, 4), (gates * 4,), (gates * 4,)]
    return [
        torch.randn(size, dtype=torch.float64).to("flagos").requires_grad_() for size in sizes
    ]


def test_fused_lstm_cell_is_the_cell():
    igates, hgates, cx, b_ih, b_hh = fused_operands(4)
    hy, cy, workspace = torch.ops.aten._thnn_fused_lstm_cell(igates, hgates, cx, b_ih, b_hh)
    i, f, g, o = (igates + hgates + b_ih + b_hh).chunk(4, 1)
    want = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    torch.testing.assert_close(cy, want)
    torch.testing.assert_close(hy, o.sigmoid() * want.tanh())
    assert workspace.shape == igates.shape


def test_fused_gru_cell_is_the_cell():
    igates, hgates, hx, b_ih, b_hh = fused_operands(3)
    hy, workspace = torch.ops.aten._thnn_fused_gru_cell(igates, hgates, hx, b_ih, b_hh)
    (ir, iz, i_n), (hr, hz, hn) = (igates + b_ih).chunk(3, 1), (hgates + b_hh).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    torch.testing.assert_close(hy, n + z * (hx - n))
    assert workspace.shape == (3, 20)


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "nobias"])
@pytest.mark.parametrize("name, gates", [("lstm", 4), ("gru", 3)])
def test_fused_cells_have_right_gradients(name, gates, biased):
    operator = getattr(torch.ops.aten, f"_thnn_fused_{name}_cell")
    operands = fused_operands(gates)
    if not biased:
        operands[3:] = [None, None]
    outputs = 2 if name == "lstm" else 1

    def function(*given):
        return operator(*given)[:outputs]

    given = [operand for operand in operands if operand is not None]
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


# --- transforms, errors, threads -----------------------------------------------------------------


def test_function_transforms():
    """They see wrappers of flagos tensors; PyTorch has no rule that maps over whole networks."""
    cell = nn.LSTMCell(7, 12).to("flagos")
    step = torch.randn(3, 7, device="flagos")

    def loss(step):
        return scalar(cell(step))

    plain = step.clone().requires_grad_()
    loss(plain).backward()
    torch.testing.assert_close(torch.func.grad(loss)(step), plain.grad)


@pytest.mark.platforms("cpu")
def test_forward_mode():
    """The fused cells of other twins have no tangents, natively either."""
    cell = nn.LSTMCell(7, 12).to("flagos")
    step = torch.randn(3, 7, device="flagos", requires_grad=True)

    def loss(step):
        return scalar(cell(step))

    loss(step).backward()
    direction = torch.randn(3, 7, device="flagos")
    _, tangent = torch.func.jvp(loss, (step.detach(),), (direction,))
    torch.testing.assert_close(tangent, (step.grad * direction).sum())


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    network = make("lstm", "deepboth").to("flagos")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = mode.from_tensor(torch.empty(4, 6, 7, device="flagos"))
        output, _ = network(inputs)
        assert output.shape == (4, 6, 24) and output.device.type == "flagos"


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_operands_on_the_host_are_refused(kind):
    network = make(kind, "plain")
    with pytest.raises(RuntimeError, match="device"):
        network(torch.randn(4, 6, 7, device="flagos"))
    network.to("flagos")
    with pytest.raises(RuntimeError, match="device"):
        network(torch.randn(4, 6, 7))
    network(torch.randn(4, 6, 7, device="flagos"))


def test_a_wrong_size_says_so_and_changes_nothing():
    network = make("lstm", "plain").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos")
    want, _ = network(inputs)
    with pytest.raises(RuntimeError, match="input.size\\(-1\\) must be equal to input_size"):
        network(torch.randn(4, 6, 8, device="flagos"))
    cell = nn.LSTMCell(7, 12).to("flagos")
    with pytest.raises(RuntimeError, match="hidden"):
        torch.lstm_cell(inputs[0], [torch.zeros(6, 5, device="flagos")] * 2, *cell.parameters())
    # An error must not leave the thread in the composite's state.
    assert torch.zeros(2).device.type == "cpu" and torch.zeros(2).sum().device.type == "cpu"
    assert torch.equal(network(inputs)[0], want)


def test_threads_share_a_network():
    network = make("gru", "deepboth").to("flagos")
    inputs = torch.randn(4, 6, 7, device="flagos")
    want, _ = network(inputs)
    wrong = []

    def work():
        for _ in range(20):
            got, _ = network(inputs)
            if got.device.type != "flagos" or not torch.equal(got, want):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
