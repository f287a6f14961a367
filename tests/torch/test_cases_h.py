"""Inputs that broke backends like this one, section H: mixed precision, optimisers, attention, and
what PyTorch's own code lets only "cuda" do."""

import itertools

import accelerated
import pytest
import torch
import torch.nn.functional as F
from against_cpu import EXACT, assert_same_values, check
from torch.nn.attention import SDPBackend
from twins import check_case

import torch_fl
from torch_fl import routes

D = "flagos"
flagos = torch.flagos
COUNT = flagos.device_count()
LAST = f"{D}:{COUNT - 1}"
HAS_TWIN = torch_fl.platform()["twin"] not in (None, "none", "")


# --- gradient scaling ----------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.5, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.5, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.5, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.5, **k),
}
INFINITE = {"first": [0], "last": [-1], "nan": [1], "several": [0, 1, 3], "none": []}


@pytest.mark.parametrize("kind, fused", [(k, f) for k in OPTIMIZERS for f in (False, True)])
@pytest.mark.parametrize("where", INFINITE)
def test_an_infinite_gradient_skips_the_step_whatever_comes_after_it(kind, fused, where):
    """Groups of several dtypes and devices: what one finds is not cleared by the next."""
    if fused and kind == "Adagrad" and not EXACT:
        pytest.skip("has no fused kernel on accelerators")
    # CUDA's scaler has no kernel for gradients in bfloat16, see below.
    dtypes = [torch.float32, torch.bfloat16 if EXACT else torch.float64, torch.float32, torch.float64]
    devices = [D, D, LAST, D]
    params = [
        torch.ones(3, dtype=dtype, device=device, requires_grad=True)
        for dtype, device in zip(dtypes, devices)
    ]
    optimizer = OPTIMIZERS[kind]([{"params": [p]} for p in params], fused=fused)
    scaler = torch.amp.GradScaler(D, init_scale=256.0, growth_interval=100)
    scaler.scale(torch.ones(1, device=D))
    for p in params:
        p.grad = torch.full_like(p, 256.0)
    for index in INFINITE[where]:
        params[index].grad[1] = float("nan" if where == "nan" else "inf")
    scaler.step(optimizer)
    scaler.update()
    skipped = bool(INFINITE[where])
    assert scaler.get_scale() == (128.0 if skipped else 256.0)
    for p in params:
        assert p.tolist() == [1, 1, 1] if skipped else (p < 1).all().item()


@pytest.mark.platforms("cuda")
def test_gradients_in_bfloat16_are_not_unscaled():
    p = torch.ones(3, dtype=torch.bfloat16, device=D, requires_grad=True)
    p.grad = torch.full_like(p, 256.0)
    scaler = torch.amp.GradScaler(D)
    scaler.scale(torch.ones(1, device=D))
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        scaler.step(torch.optim.SGD([p], lr=0.5))


def test_a_whole_loop_with_scaling_unscaling_and_clipping():
    def program(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        kind = torch.device(device).type
        scaler = torch.amp.GradScaler(kind, init_scale=2.0**10, growth_interval=2)
        x, y = torch.randn(6, 4).to(device), torch.randn(6, 2).to(device)
        results = []
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast(kind, torch.bfloat16):
                loss = F.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            if step == 3:
                model[0].weight.grad.fill_(float("inf"))
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            results.append(norm if step != 3 else norm.isfinite())
            scaler.step(optimizer)
            scaler.update()
            results.append(scaler.get_scale())
            if step == 1:
                state = scaler.state_dict()
                scaler = torch.amp.GradScaler(kind)
                scaler.load_state_dict(state)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.scale(loss)
            scaler.unscale_(optimizer), scaler.unscale_(optimizer)
        return results + [p.detach() for p in model.parameters()]

    check(program)


def test_other_scalers():
    for make in (
        lambda: torch.amp.GradScaler(D),
        lambda: torch.GradScaler(device=D),
        lambda: flagos.amp.GradScaler(),
    ):
        assert make().is_enabled() and make()._device == D
        assert make().scale(torch.ones(2, device=LAST)).device == torch.empty(0, device=LAST).device
    assert not torch.amp.GradScaler(D, enabled=False).is_enabled()
    scaler = torch.amp.GradScaler(D, init_scale=4.0)
    listed = scaler.scale([torch.ones(1, device=D), (torch.ones(1, device=LAST),)])
    assert listed[0].item() == listed[1][0].item() == 4
    for foreach, grad_type in itertools.product((True, False), (1.0, 2.0, float("inf"))):
        params = [torch.ones(3, device=D, requires_grad=True) for _ in range(3)]
        for p in params:
            p.grad = torch.full_like(p, 2.0)
        wanted = torch.linalg.vector_norm(torch.full((9,), 2.0), grad_type)
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0, grad_type, foreach=foreach)
        torch.testing.assert_close(norm.cpu(), wanted)
        torch.nn.utils.clip_grad_value_(params, 0.01, foreach=foreach)
        assert all(p.grad.max().item() <= 0.011 for p in params)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without it")
def test_the_scaler_of_sharded_training_unscales():
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    scaler = ShardedGradScaler(D, init_scale=8.0, process_group=None)
    p = torch.ones(3, device=D, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    loss = scaler.scale((p * 2).sum())
    assert loss.item() == 48
    loss.backward()
    inverse, found = torch.full((1,), 0.125, device=D), torch.zeros(1, device=D)
    scaler._unscale_grads_(optimizer, inverse, found, True)
    assert p.grad.tolist() == [2, 2, 2] and found.item() == 0


@pytest.mark.parametrize("flag", ["fused", "foreach", "capturable", "differentiable"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_take_the_flags_that_only_cuda_may(kind, flag):
    if flag == "capturable" and kind in ("SGD", "Adagrad"):
        pytest.skip("takes no such flag")
    if flag == "fused" and kind == "Adagrad" and not EXACT:
        pytest.skip("has no fused kernel on accelerators")

    def program(device, **options):
        p = [torch.arange(3.0).to(device).requires_grad_(), torch.ones(2, 2).to(device)]
        p[1].requires_grad_()
        optimizer = OPTIMIZERS[kind](p, **options)
        for _ in range(3):
            optimizer.zero_grad()
            (p[0].sin().sum() + (p[1] ** 2).sum()).backward()
            with torch.set_grad_enabled(flag != "differentiable"):
                if flag == "differentiable":
                    for one in p:
                        one.requires_grad_(False)
                optimizer.step()
                for one in p:
                    one.requires_grad_()
        return p

    wanted = program("cpu")
    for left, right in zip(program(D, **{flag: True}), wanted):
        torch.testing.assert_close(left.detach().cpu(), right.detach())


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", accelerated.ATTENTIONS)
def test_attention_gives_the_twins_numbers(name):
    check_case(accelerated.named_attention, name)


def test_attention_of_other_shapes():
    check_case(accelerated.attention_of_other_shapes)


@pytest.mark.skipif(not HAS_TWIN, reason="the choice is the twin's")
def test_the_fused_kernel_is_chosen_where_the_twin_chooses_it():
    q = torch.randn(1, 2, 4, 8)
    twin = torch_fl.platform()["twin"]
    for options in ({}, {"is_causal": True}, {"dropout_p": 0.5}, {"attn_mask": torch.ones(4, 4)}):
        choices = []
        for device in (D, twin):
            moved = {
                key: value.to(device) if isinstance(value, torch.Tensor) else value
                for key, value in options.items()
            }
            for grad in (False, True):
                x = q.to(device, copy=True).requires_grad_(grad)
                choices.append(torch._fused_sdp_choice(x, x, x, **moved))
        assert choices[:2] == choices[2:]
    routes.reset_counts()
    x = q.to(D)
    with torch.no_grad():
        F.scaled_dot_product_attention(x, x, x)
    assert sum(sum(row.calls.values()) for row in routes.report().rows) <= 8


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_a_chosen_kernel_of_attention_is_kept_to(backend):
    # CUDA's flash attention is for half precision alone.
    dtype = torch.float32 if EXACT else torch.float16
    check_case(accelerated.attention_by, backend.value, dtype)
    none = SDPBackend.CUDNN_ATTENTION if EXACT else SDPBackend.FLASH_ATTENTION
    with pytest.raises(RuntimeError, match="No available kernel|No viable backend"):
        accelerated.attention_by(D, none.value, torch.float32)


# --- what only a tensor of "cuda" may have -------------------------------------------------------


def test_transforms_in_half_precision():
    check_case(accelerated.half_transforms)


# --- a 0-dim CPU tensor beside flagos tensors ----------------------------------------------------

SCALARS = {
    "masked_fill": lambda x, s: x.masked_fill(x > 1, s),
    "masked_fill_": lambda x, s: x.clone().masked_fill_(x > 1, s),
    "where": lambda x, s: torch.where(x > 1, s, x),
    "where, other": lambda x, s: torch.where(x > 1, x, s),
    "index_put_": lambda x, s: x.clone().index_put_((x > 1,), s),
    "index_put_, list": lambda x, s: x.clone().index_put_((torch.tensor([0, 2]).to(x.device),), s),
    "setitem": lambda x, s: (y := x.clone(), y.__setitem__(slice(1, 3), s))[0],
    "setitem, mask": lambda x, s: (y := x.clone(), y.__setitem__(x > 1, s))[0],
    "fill_": lambda x, s: x.clone().fill_(s),
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([1]).to(x.device), s),
    "add": lambda x, s: [x + s, s + x, torch.add(x, s, alpha=2), x.clone().add_(s)],
    "sub": lambda x, s: [x - s, s - x],
    "mul": lambda x, s: [x * s, s * x, x.clone().mul_(s)],
    "div": lambda x, s: [x / s, s / x, torch.div(x, s, rounding_mode="floor")],
    "pow": lambda x, s: [torch.pow(s, x), x**s],
    "compare": lambda x, s: [x > s, s == x, torch.maximum(x, s), torch.fmin(s, x)],
    "copysign": lambda x, s: torch.copysign(x, s),
    "lerp": lambda x, s: torch.lerp(x, x + 1, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, s),
    "lerp_": lambda x, s: x.clone().lerp_(x + 1, s),
    "lerp, out": lambda x, s: torch.lerp(x, x + 1, s, out=torch.empty_like(x)),
    "clamp_min, out": lambda x, s: torch.clamp_min(x, s, out=torch.empty_like(x)),
    "clamp_max, out": lambda x, s: torch.clamp_max(x, s, out=torch.empty_like(x)),
    "_foreach_add": lambda x, s: torch._foreach_add([x, x], s),
    "_foreach_mul_": lambda x, s: (y := [x.clone(), x.clone()], torch._foreach_mul_(y, s))[0],
    "_foreach_div": lambda x, s: torch._foreach_div([x, x], s),
    "heaviside": lambda x, s: torch.heaviside(x, s),
    "atan2": lambda x, s: [torch.atan2(x, s), torch.hypot(s, x), torch.fmod(x, s)],
    "bitwise": lambda x, s: [x.int() & s.int(), x.int() << s.int(), (x > 1) | (s > 1)],
    "isclose": lambda x, s: torch.isclose(x, s),
    "xlogy": lambda x, s: torch.xlogy(s, x),
    "searchsorted": lambda x, s: torch.searchsorted(x, s.item()),
    "full_like": lambda x, s: torch.full_like(x, s.item()),
}


@pytest.mark.parametrize("name", SCALARS)
def test_a_0_dim_cpu_tensor_is_a_number(name):
    def program(device):
        x = torch.arange(4.0).to(device)
        return [SCALARS[name](x, torch.tensor(value)) for value in (2.0, float("-inf"), 2)]

    check(program)


NOT_NUMBERS = {
    "addcdiv": lambda x, s: torch.addcdiv(x, x, s),
    "clamp": lambda x, s: torch.clamp(x, min=s),
    "clamp, both": lambda x, s: torch.clamp(x, s, s + 1),
    "clamp_": lambda x, s: x.clone().clamp_(max=s),
    "clamp_min": lambda x, s: torch.clamp_min(x, s),
    "clamp_max_": lambda x, s: x.clone().clamp_max_(s),
    "lerp, end": lambda x, s: torch.lerp(x, s, 0.5),
    "lerp, start": lambda x, s: torch.lerp(s, x, x),
    "addcmul, factor": lambda x, s: torch.addcmul(x, s, x),
    "mm": lambda x, s: torch.mm(x[None], s.view(1, 1)),
    "dot": lambda x, s: torch.dot(x[:1], s.view(1)),
    "cat": lambda x, s: torch.cat([x, s.view(1)]),
    "written": lambda x, s: s.clone().add_(x[0]),
    "gather": lambda x, s: x.gather(0, s.long().view(1)),
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_where_cudas_kernels_take_no_number_of_the_host(name):
    x = torch.arange(4.0).to(D)
    words = "same device"
    if name == "addcmul, factor" and not EXACT:
        words = "CPU Scalar support for tensor1 .* on flagos tensors"  # CUDA's own.
    with pytest.raises(RuntimeError, match=words):
        NOT_NUMBERS[name](x, torch.tensor(2.0))


VECTORS = ["where", "add", "sub", "mul", "div", "pow", "copysign", "lerp", "addcmul"]


@pytest.mark.parametrize("name", VECTORS + ["_foreach_add", "masked_fill", "heaviside"])
def test_a_cpu_tensor_of_one_element_and_a_dimension_is_not(name):
    x = torch.arange(4.0).to(D)
    with pytest.raises(RuntimeError):
        SCALARS[name](x, torch.tensor([2.0]))
    with pytest.raises(RuntimeError):
        SCALARS[name](torch.arange(4.0), torch.tensor([2.0]).to(D))


# --- operators that others leave to the CPU ------------------------------------------------------

NATIVE = {
    "normal": lambda x: torch.normal(x, x.abs()),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 2),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "std_mean": lambda x: torch.std_mean(x, 1)[1],
    "var": lambda x: x.var(0, correction=0),
    "linear": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "nearest": lambda x: F.interpolate(x[None], size=7, mode="nearest-exact"),
    "bicubic": lambda x: F.interpolate(x[None, None], size=(5, 5), mode="bicubic", antialias=True),
    "grid_sample": lambda x: F.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, device=x.device), align_corners=True
    ),
    "cdist": lambda x: torch.cdist(x, x),
    "lstsq": lambda x: torch.linalg.lstsq(x, x).solution,
    "searchsorted": lambda x: torch.searchsorted(x[0].sort().values, x[1]),
    "ctc_loss": lambda x: F.ctc_loss(
        x.log_softmax(-1)[:, None],
        torch.tensor([[1, 2]], device=x.device),
        torch.tensor([3]),
        torch.tensor([2]),
    ),
    "embedding_bag": lambda x: F.embedding_bag(torch.tensor([[0, 1]], device=x.device), x),
}


@pytest.mark.skipif(not HAS_TWIN, reason="without a twin operators are served by the CPU")
@pytest.mark.parametrize("name", NATIVE)
def test_nothing_goes_to_the_cpu_where_there_is_a_twin(name):
    x = torch.linspace(-1, 1, 12, device=D).view(3, 4).requires_grad_()
    with routes.strict():
        y = NATIVE[name](x)
        if y.is_floating_point() and y.requires_grad:
            y.sum().backward()
    assert y.device.type == D


def test_text_of_tensors_of_every_device():
    for device in dict.fromkeys((f"{D}:0", LAST)):
        x = torch.tensor([1.0, float("nan")], device=device)
        assert repr(x) == str(x) == f"{x}" == f"tensor([1., nan], device='{device}')"
        assert repr(x.to(torch.complex64).conj()).count(f"device='{device}'") == 1
        assert repr(x[:, None].expand(2, 600)).count("...") == 2
        assert f"{x[0]:.3f} {x[0]}" == "1.000 1.0"
        with pytest.raises(TypeError):
            format(x, ".2f")
    assert_same_values(torch.tensor([1.5], device=D), torch.tensor([1.5]))
