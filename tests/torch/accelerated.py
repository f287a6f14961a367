"""Programs whose kernels an accelerator has of its own: attention, convolution, normalisation. Their
strides and the order of their sums are the accelerator's, so there the twin's are the right ones.

Cases for twins.py: functions of a device that may not know torch_fl.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention(device, dtype=torch.float32, heads=(4, 4), size=(2, 6, 16), **options):
    batch, length, width = size
    torch.manual_seed(0)
    q = torch.randn(batch, heads[0], length, width).to(dtype).to(device).requires_grad_()
    k, v = (
        torch.randn(batch, heads[1], length, width).to(dtype).to(device).requires_grad_()
        for _ in range(2)
    )
    mask = options.pop("attn_mask", None)
    mask = mask.to(device) if mask is not None else None
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    result.float().square().sum().backward()
    return [result.detach(), q.grad, k.grad, v.grad]


lower = torch.ones(6, 6, dtype=torch.bool).tril()
blind = lower.clone()
blind[2] = False
ATTENTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "bool mask": {"attn_mask": lower},
    "float mask": {"attn_mask": torch.linspace(-2, 2, 36).view(6, 6)},
    "mask of each head": {"attn_mask": torch.linspace(-2, 2, 288).view(2, 4, 6, 6)},
    "broadcast mask": {"attn_mask": torch.tensor([[[[True] * 5 + [False]]]])},
    "a blind row": {"attn_mask": blind},
    "grouped": {"heads": (4, 2), "enable_gqa": True},
    "grouped, causal": {"heads": (4, 1), "enable_gqa": True, "is_causal": True},
    "scale": {"scale": 0.3},
    "half": {"dtype": torch.float16},
    "bfloat16, causal": {"dtype": torch.bfloat16, "is_causal": True},
    "double": {"dtype": torch.float64},
    "width 64": {"size": (1, 5, 64)},
    "width 72": {"size": (1, 5, 72)},
    "width 256": {"size": (1, 3, 256)},
    "one step": {"size": (1, 1, 16)},
    "no steps": {"size": (2, 0, 16)},
    "no batch": {"size": (0, 4, 16)},
}


def named_attention(device, name):
    return attention(device, **ATTENTIONS[name])


def attention_of_other_shapes(device):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8).to(device)
    y = torch.randn(2, 3, 5, 8).to(device)
    wrong = torch.ones(5, 5, device=device)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(x, x, x, attn_mask=wrong, is_causal=True)
    with pytest.raises((RuntimeError, ValueError)):
        F.scaled_dot_product_attention(x, x.half(), x)
    return [
        F.scaled_dot_product_attention(x, x, x),
        F.scaled_dot_product_attention(x[0], x[0], x[0]),
        F.scaled_dot_product_attention(y, y[:, :, :3], y[:, :, :3]),
        F.scaled_dot_product_attention(y.transpose(1, 2), y.transpose(1, 2), y.transpose(1, 2)),
        F.scaled_dot_product_attention(y[..., ::2], y[..., ::2], y[..., ::2], is_causal=True),
        F.scaled_dot_product_attention(y, y, torch.randn(2, 3, 5, 4).to(device)),
        torch.nn.MultiheadAttention(8, 2).to(device).eval()(x, x, x)[0].detach(),
    ]


def attention_by(device, backend, dtype):
    with sdpa_kernel(SDPBackend(backend)):
        return attention(device, dtype, is_causal=True)


def convolution_and_attention(device):
    x = torch.randn(1, 2, 6, 6).to(device).requires_grad_()
    q = torch.randn(1, 2, 3, 8).to(device).requires_grad_()
    conv = torch.nn.Conv2d(2, 3, 3).to(device)
    transposed = torch.nn.ConvTranspose2d(3, 2, 3).to(device)
    y = transposed(conv(x))
    attended = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    (y.square().sum() + attended.square().sum()).backward()
    return [y.detach(), attended.detach(), x.grad, q.grad, conv.weight.grad, conv.bias.grad]


def unasked_gradients(device):
    x = torch.randn(2, 3, 5, 5).to(device).requires_grad_()
    weight = torch.randn(4, 3, 3, 3).to(device)
    bias = torch.randn(4).to(device)
    F.conv2d(x, weight).square().sum().backward()
    F.conv2d(x, weight, bias).square().sum().backward()
    F.conv2d(x.detach(), weight.requires_grad_(), bias).square().sum().backward()
    F.conv_transpose2d(x, torch.ones(3, 2, 2, 2, device=device)).square().sum().backward()
    scale = torch.ones(5, device=device)
    shift = torch.zeros(5, device=device, requires_grad=True)
    F.layer_norm(x, [5], scale, shift).square().sum().backward()
    F.layer_norm(x, [5], None, None).square().sum().backward()
    F.batch_norm(x, None, None, torch.ones(3, device=device), None, True).square().sum().backward()
    F.group_norm(x, 3, None, torch.zeros(3, device=device)).square().sum().backward()
    linear = torch.nn.Linear(5, 2).to(device)
    linear.weight.requires_grad_(False)
    linear(x.detach()).sum().backward()
    return [x.grad, weight.grad, bias.grad, shift.grad, linear.weight.grad, linear.bias.grad]


def batch_normalisations(device):
    """Each takes cuDNN's kernel or PyTorch's own, as the node of its gradient says."""
    torch.manual_seed(0)
    image = torch.randn(4, 3, 6, 8).to(device)
    plain = dict(training=True)
    calls = {
        "contiguous": (image, plain),
        "channels_last": (image.to(memory_format=torch.channels_last), plain),
        "strided": (image.transpose(2, 3)[..., ::2], plain),
        "volume": (image.view(4, 3, 2, 3, 8), plain),
        "sequence": (image[:, :, 0], plain),
        "rows": (image[:, :, 0, 0], plain),
        "empty": (image[:0], plain),
        "evaluated": (image, dict(training=False)),
        "half": (image.half(), plain),
        "bfloat16": (image.bfloat16(), plain),
        "double": (image.double(), plain),
        "small_epsilon": (image, dict(training=True, eps=1e-8)),
    }
    results = {}
    for name, (x, options) in calls.items():
        kind = torch.float64 if name == "double" else torch.float32
        mean, variance, weight, bias = (
            torch.linspace(first, 2, 6, dtype=kind).to(device)[::2] for first in (0, 1, 0.5, -1)
        )
        for normalise in (F.batch_norm, F.instance_norm):
            if normalise is F.instance_norm:
                if name in ("rows", "empty"):
                    continue
                options = {
                    "use_input_stats" if key == "training" else key: value
                    for key, value in options.items()
                }
            if name == "channels_last":
                weight = weight.contiguous()  # The CPU's gradient takes a strided one for this.
            inputs = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
            y = normalise(inputs[0], mean, variance, *inputs[1:], **options)
            y.float().sin().sum().backward()
            results[f"{normalise.__name__} {name}"] = [
                type(y.grad_fn).__name__,
                y.detach(),
                mean,
                variance,
                *(tensor.grad for tensor in inputs),
            ]
    x, ones = image.clone().requires_grad_(), torch.ones(3, device=device)
    with torch.backends.cudnn.flags(enabled=False):
        results["switched off"] = type(
            F.batch_norm(x, None, None, ones, ones, training=True).grad_fn
        ).__name__
    asked = torch.batch_norm(x, ones, ones, None, None, True, 0.1, 1e-5, False)
    results["switched off by the argument"] = type(asked.grad_fn).__name__
    results["no weight"] = type(F.batch_norm(x, ones, ones).grad_fn).__name__
    for place in range(4):
        others = [torch.ones(2 if i == place else 3, device=device) for i in range(4)]
        try:
            F.batch_norm(image, *others)
        except RuntimeError as error:
            results[f"wrong size {place}"] = str(error)
    return results


def prepared_layouts(device, layout):
    x = torch.randn(4, 8, 4, 4).to(device)
    x = {
        "contiguous": lambda: x[:2],
        "channels_last": lambda: x[:2].to(memory_format=torch.channels_last),
        "strided": lambda: x[::2],
        "transposed": lambda: x[:2].transpose(2, 3),
    }[layout]()
    x.requires_grad_()
    scale = torch.ones(8, device=device, requires_grad=True)
    shift = torch.zeros(8, device=device, requires_grad=True)
    y = F.group_norm(x, 4, scale, shift)
    F.silu(y).square().sum().backward()
    conv = torch.nn.Conv2d(8, 8, 3, padding=1).to(device)
    with torch.no_grad():
        z = F.silu(F.group_norm(conv(x), 2))
    return [y.detach(), x.grad, scale.grad, shift.grad, z]


def half_transforms(device):
    """Only CUDA has these in half precision, and only of sizes that are powers of two."""
    x = torch.linspace(-1, 1, 64).to(device, torch.float16).view(8, 8).requires_grad_()
    z = torch.fft.fft(x)
    results = [z, torch.fft.ifft(z), torch.fft.rfft(x), torch.fft.irfft(z[..., :5]), torch.fft.hfft(x[..., :5])]
    results += [torch.fft.ihfft(x), torch.fft.fft2(x), torch.fft.ifft2(z), torch.fft.rfft2(x)]
    results += [torch.fft.irfft2(z[..., :5]), torch.fft.fftn(x), torch.fft.ifftn(z)]
    results += [torch.fft.rfftn(x), torch.fft.irfftn(z[..., :5])]
    torch.view_as_real(torch.fft.rfft(x)).square().sum().backward()
    out = torch.empty(8, 5, dtype=torch.complex32, device=device)
    torch.fft.rfft(x.detach(), out=out)
    results = [t.detach().resolve_conj() for t in (*results, out)]
    return [torch.view_as_real(t) if t.is_complex() else t for t in results] + [x.grad]
