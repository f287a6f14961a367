"""Quantized tensors, per tensor and per channel: made, moved, viewed, changed, prepacked and used
by modules on flagos as on the CPU. Scales and zero points lie where their tensor lies."""

import copy
import io

import pytest
import torch
from kinds import check
from torch import nn
from torch.ao import quantization as ao
from torch.nn import functional as F

pytestmark = [pytest.mark.platforms("cpu", "sim"), pytest.mark.filterwarnings("ignore")]

IMAGE = (torch.arange(360.0).view(3, 4, 5, 6) * 7 % 11 - 5) / 4
SCALES = torch.tensor([0.125, 0.25, 0.5], dtype=torch.float64)
ZEROS = torch.tensor([3, 0, 5])


def image(device):
    return IMAGE.to(device, copy=True)


def per_tensor(device, dtype=torch.quint8):
    return torch.quantize_per_tensor(image(device), 0.125, 10, dtype)


def per_channel(device, dtype=torch.quint8):
    return torch.quantize_per_channel(image(device), SCALES.to(device), ZEROS.to(device), 0, dtype)


def per_channel_float(device, dtype=torch.quint8):
    scales, zeros = SCALES.float().to(device), ZEROS.float().to(device)
    return torch.quantize_per_channel(image(device).flatten(1), scales, zeros, 0, dtype)


KINDS = {"tensor": per_tensor, "channel": per_channel}
kinds = pytest.mark.parametrize("quantized", KINDS.values(), ids=KINDS)


# --- making and moving ---------------------------------------------------------------------------


def test_made():
    def program(device):
        one = torch.tensor(0.125, device=device)
        return (
            [per_tensor(device, dtype) for dtype in (torch.quint8, torch.qint8, torch.qint32)],
            [per_channel(device, dtype) for dtype in (torch.quint8, torch.qint8, torch.qint32)],
            [per_channel_float(device), per_channel_float(device, torch.quint4x2)],
            torch.quantize_per_tensor(
                image(device), one, torch.tensor(3, device=device), torch.quint8
            ),
            torch.quantize_per_tensor_dynamic(image(device), torch.quint8, False),
            torch._make_per_tensor_quantized_tensor(torch.ones(2, 3, device=device).byte(), 0.5, 2),
            torch._make_per_channel_quantized_tensor(
                torch.ones(3, 3, device=device).byte(), SCALES.to(device), ZEROS.to(device), 0
            ),
        )

    check(program)


def test_made_without_values():
    def program(device):
        made = (
            torch._empty_affine_quantized(
                [2, 3], scale=0.5, zero_point=1, dtype=torch.quint8, device=device
            ),
            torch.empty_like(per_tensor(device)),
            torch._empty_per_channel_affine_quantized(
                [3, 3],
                scales=SCALES.to(device),
                zero_points=ZEROS.to(device),
                axis=0,
                dtype=torch.quint8,
                device=device,
            ),
            torch.empty_like(per_channel(device)),
        )
        assert all(tensor.device.type == device for tensor in made)
        return (
            [tuple(t.shape) for t in made],
            [t.q_per_channel_scales() for t in made[2:]],
            made[0].q_scale(),
        )

    check(program)


@kinds
def test_taken_apart(quantized):
    def program(device):
        q = quantized(device)
        return q.dequantize(), q.int_repr(), q.qscheme(), q.element_size(), q.is_quantized, q.dtype

    check(program)


@kinds
def test_moved_and_copied(quantized):
    def program(device):
        file = io.BytesIO()
        torch.save(quantized(device), file)
        file.seek(0)
        return (
            quantized("cpu").to(device),
            quantized(device).clone(),
            copy.deepcopy(quantized(device)),
            torch.load(file, weights_only=False),
            quantized(device).contiguous(memory_format=torch.channels_last),
        )

    check(program)
    back = quantized("flagos").cpu()
    assert back.device.type == "cpu"
    assert torch.equal(back.int_repr(), quantized("cpu").int_repr())
    if quantized is per_channel:
        assert back.q_per_channel_scales().device.type == "cpu"


def test_shown():
    text = repr(per_tensor("flagos")[0, 0])
    assert "device='flagos:0'" in text and "scale=0.125, zero_point=10" in text


# --- views, changes ------------------------------------------------------------------------------


def test_views():
    def program(device):
        q, c = per_tensor(device), per_channel(device)
        return (
            [
                q[1],
                q.view(12, 30),
                q.permute(0, 2, 3, 1),
                q[:, 1:3],
                q.unsqueeze(0),
                q.unfold(3, 2, 2),
            ],
            [
                q.flatten(),
                q.expand(2, 3, 4, 5, 6),
                q.reshape(3, -1),
                q.chunk(2),
                q.detach(),
                q.squeeze(),
            ],
            [c.permute(0, 2, 3, 1), c.transpose(0, 1)],
        )

    check(program)


def test_a_view_shares_memory():
    def program(device):
        q = per_tensor(device)
        row = q[1]
        row.copy_(torch.zeros(4, 5, 6, device=device))
        return q, row._base is q, q.view(-1).data_ptr() == q.data_ptr(), row._version

    check(program)


def test_changed_in_place():
    def program(device):
        q = per_tensor(device)
        q[0] = 1.0
        q[1, 2] = per_tensor(device)[0, 0]
        other = torch.quantize_per_tensor(image(device), 0.5, 1, torch.quint8)
        mask = (IMAGE > 0).to(device)
        return (
            q,
            per_tensor(device).copy_(other),
            per_tensor(device).copy_(image(device) * 2),
            per_channel(device).copy_(image(device) * 2),
            per_tensor(device).copy_(per_tensor("cpu")),
            per_tensor(device).relu_(),
            per_tensor(device).fill_(1.0),
            per_tensor(device).masked_fill_(mask, 0.0),
            per_tensor(device).index_put_(
                (torch.tensor([0, 1], device=device),), torch.zeros(4, 5, 6).to(device)
            ),
            torch.zeros(3, 4, 5, 6, device=device).copy_(per_tensor(device).dequantize()),
        )

    check(program)


def test_resized():
    def program(device):
        smaller, larger = per_tensor(device), per_tensor(device)
        smaller.resize_(3, 4)
        larger.resize_(7, 360)
        return (
            smaller,
            tuple(larger.shape),
            larger.flatten()[:360],
            larger.untyped_storage().nbytes(),
        )

    check(program)
    # The shadow that showed only its memory must be as good as new for a plain tensor.
    assert torch.arange(3, device="flagos").tolist() == [0, 1, 2]


def test_what_does_not_fit_is_refused():
    check(lambda device: per_tensor(device).copy_(per_channel(device)))
    check(lambda device: per_tensor(device).copy_(per_tensor(device, torch.qint8)))
    check(lambda device: per_tensor(device) + per_tensor(device))
    check(lambda device: torch.sin(per_tensor(device)))
    check(lambda device: per_tensor(device).requires_grad_())
    check(lambda device: per_tensor(device).q_per_channel_scales())
    with pytest.raises(RuntimeError, match="device"):
        torch.cat([per_tensor("flagos"), per_tensor("cpu")])
    q = per_tensor("flagos")
    with pytest.raises(RuntimeError):
        q.copy_(per_channel("flagos"))
    assert torch.equal(q.int_repr().cpu(), per_tensor("cpu").int_repr())


# --- operators -----------------------------------------------------------------------------------

OPERATORS = {
    "activations": lambda q: (
        [F.relu(q), F.relu6(q), torch.sigmoid(q), torch.tanh(q), F.leaky_relu(q), F.hardtanh(q)],
        [F.hardsigmoid(q), F.gelu(q), torch.clamp(q, 0, 1)],
    ),
    "pools": lambda q: [F.max_pool2d(q, 2), F.avg_pool2d(q, 2), F.adaptive_avg_pool2d(q, 2)],
    "interpolate": lambda q: [
        F.interpolate(q, scale_factor=2),
        F.interpolate(q, scale_factor=2, mode="bilinear"),
    ],
    "pads": lambda q: [F.pad(q, (1, 1)), F.pad(q, (1, 1, 1, 1), mode="reflect")],
    "joins": lambda q: [torch.cat([q, q]), torch.stack([q, q]), q.flip(1)],
    "comparisons": lambda q: [q == q, q < 0.5, torch.equal(q, q), torch.equal(q, q.clone())],
    "reductions": lambda q: [
        q.mean((2, 3)),
        q.max(),
        q.min(),
        q.max(1),
        q.topk(2),
        q.sort(),
        q.std(),
    ],
    "indices": lambda q: [
        q[torch.tensor([0, 2]).to(q.device)],
        q.index_select(0, torch.tensor([0, 2]).to(q.device)),
    ],
    "arithmetic": lambda q: [
        torch.ops.quantized.add(q, q, 0.25, 3),
        torch.ops.quantized.add_relu(q, q, 0.25, 3),
        torch.ops.quantized.mul(q, q, 0.25, 3),
        torch.ops.quantized.add_scalar(q, 2.0),
        torch.ops.quantized.cat([q, q], 0, 0.25, 3),
    ],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    check(lambda device: OPERATORS[name](per_tensor(device)))


def test_operators_on_channels():
    def program(device):
        c = per_channel(device)
        rows = torch.tensor([0, 2], device=device)
        return (
            F.relu(c),
            c.index_select(1, rows),
            torch.equal(c, c),
            torch.dequantize([c, per_tensor(device)]),
        )

    check(program)


def test_fake_quantization_and_its_gradient():
    def program(device):
        x = image(device).requires_grad_()
        channel = torch.fake_quantize_per_channel_affine(
            x, SCALES.float().to(device), ZEROS.int().to(device), 0, 0, 255
        )
        (torch.fake_quantize_per_tensor_affine(x, 0.125, 3, 0, 255) + channel).sum().backward()
        return channel, x.grad

    check(program)


def test_inference_mode():
    def program(device):
        with torch.inference_mode():
            return (
                per_tensor(device).dequantize(),
                per_channel(device).dequantize(),
                per_tensor(device).relu_().int_repr(),
            )

    check(program)


# --- layers --------------------------------------------------------------------------------------


def weight(device, channels):
    w = torch.linspace(-1, 1, 30).view(5, 6).to(device)
    if channels:
        scales, zeros = torch.full((5,), 0.0625, dtype=torch.float64), torch.zeros(
            5, dtype=torch.int64
        )
        return torch.quantize_per_channel(w, scales.to(device), zeros.to(device), 0, torch.qint8)
    return torch.quantize_per_tensor(w, 0.0625, 0, torch.qint8)


@pytest.mark.parametrize("channels", [False, True], ids=["per tensor", "per channel"])
def test_linear(channels):
    def program(device):
        bias = torch.linspace(0, 1, 5).to(device)
        packed = torch.ops.quantized.linear_prepack(weight(device, channels), bias)
        x = torch.linspace(-2, 2, 24).view(4, 6).to(device)
        q = torch.quantize_per_tensor(x, 0.0625, 32, torch.quint8)
        del bias
        return (
            torch.ops.quantized.linear(q, packed, 0.125, 5),
            torch.ops.quantized.linear_relu(q, packed, 0.125, 5),
            torch.ops.quantized.linear_dynamic(x, packed),
            torch.ops.quantized.linear_unpack(packed),
        )

    check(program)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(dims):
    def program(device):
        ones, zeros = [1] * dims, [0] * dims
        w = torch.linspace(-1, 1, 8 * 2**dims).view(2, 4, *[2] * dims).to(device)
        w = torch.quantize_per_tensor(w, 0.0625, 0, torch.qint8)
        operators = torch.ops.quantized
        prepack, unpack, conv = (
            getattr(operators, f"conv{dims}d{end}") for end in ("_prepack", "_unpack", "")
        )
        packed = prepack(w, torch.ones(2, device=device), ones, zeros, ones, 1)
        x = torch.linspace(-2, 2, 4 * 4**dims).view(1, 4, *[4] * dims).to(device)
        return conv(
            torch.quantize_per_tensor(x, 0.0625, 32, torch.quint8), packed, 0.25, 5
        ), unpack(packed)

    check(program)


def test_embedding_bag():
    def program(device):
        table = torch.linspace(-1, 1, 20).view(5, 4).to(device)
        rows, offsets = torch.tensor([0, 1, 3], device=device), torch.tensor([0, 2], device=device)
        prepacked = torch.ops.quantized.embedding_bag_byte_prepack(table)
        scales = torch.full((5,), 0.0625, device=device)
        q = torch.quantize_per_channel(
            table, scales, torch.zeros(5, device=device), 0, torch.quint8
        )
        packed = torch.ops.quantized.embedding_bag_prepack(q)
        return (
            torch.ops.quantized.embedding_bag_byte_rowwise_offsets(prepacked, rows, offsets),
            torch.ops.quantized.embedding_bag_byte(packed, rows, offsets),
            torch.ops.quantized.embedding_bag_unpack(packed).int_repr(),
        )

    check(program)


OBSERVERS = (
    ao.MinMaxObserver,
    ao.PerChannelMinMaxObserver,
    ao.MovingAverageMinMaxObserver,
    ao.MovingAveragePerChannelMinMaxObserver,
    ao.HistogramObserver,
    ao.FusedMovingAvgObsFakeQuantize,
    ao.FakeQuantize,
)


@pytest.mark.parametrize("kind", OBSERVERS, ids=lambda kind: kind.__name__)
def test_observers(kind):
    def program(device):
        observer = kind().to(device)
        return (
            observer(image(device)),
            observer(image(device) * 2),
            observer.calculate_qparams(),
            list(observer.buffers()),
        )

    check(program)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.first, self.relu = ao.QuantStub(), nn.Linear(6, 8), nn.ReLU()
        self.second, self.leave = nn.Linear(8, 3), ao.DeQuantStub()

    def forward(self, x):
        return self.leave(self.second(self.relu(self.first(self.enter(x)))))


def test_a_model_quantized_after_training():
    def program(device):
        model = Model().eval()
        model.qconfig = ao.get_default_qconfig("fbgemm")
        prepared = ao.prepare(model.to(device))
        x = torch.linspace(-2, 2, 96).view(16, 6).to(device)
        prepared(x)
        converted = ao.convert(prepared)
        return converted(x), converted.first.weight(), converted.first.bias().detach()

    check(program)


def test_a_model_trained_to_be_quantized():
    def program(device):
        model = Model().train()
        model.qconfig = ao.get_default_qat_qconfig("fbgemm")
        model = ao.prepare_qat(model).to(device)
        optimiser, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(5):
            optimiser.zero_grad()
            loss = model(torch.randn(4, 6).to(device)).pow(2).mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return losses

    check(program)


@pytest.mark.parametrize("dtype", (torch.qint8, torch.float16))
def test_a_model_quantized_dynamically(dtype):
    def program(device):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        converted = ao.quantize_dynamic(model, {nn.Linear}, dtype=dtype)
        with torch.no_grad():
            result = converted(torch.linspace(-2, 2, 24).view(4, 6).to(device))
            return result, converted[0].weight()

    check(program)
