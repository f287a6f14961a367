"""Inputs that broke backends like this one, section F: random numbers."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import ON_A_CARD
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_fl

D = "flagos"
flagos = torch.flagos
COUNT = flagos.device_count()
LAST = f"{D}:{COUNT - 1}"
PLATFORM = torch_fl.platform()["name"]


def same(left, right):
    if isinstance(left, (tuple, list)):
        return all(map(same, left, right))
    return torch.equal(left.detach().cpu(), right.detach().cpu())


# --- one seed, one sequence, for every operator that draws ---------------------------------------


def empty(device, dtype=torch.float32, size=64):
    return torch.empty(size, device=device, dtype=dtype)


def half(device):
    return torch.full((64,), 0.5, device=device)


DRAWS = {
    "rand": lambda d: torch.rand(64, device=d),
    "rand, names": lambda d: torch.rand(8, 8, names=("N", "C"), device=d).rename(None),
    "rand, out": lambda d: torch.rand(64, out=empty(d)),
    "rand, dtype": lambda d: torch.rand(64, dtype=torch.float64, device=d),
    "rand_like": lambda d: torch.rand_like(empty(d)),
    "randn": lambda d: torch.randn(64, device=d),
    "randn, names": lambda d: torch.randn(8, 8, names=("N", "C"), device=d).rename(None),
    "randn, out": lambda d: torch.randn(64, out=empty(d)),
    "randn, complex": lambda d: torch.randn(64, dtype=torch.complex64, device=d),
    "randn_like": lambda d: torch.randn_like(empty(d)),
    "randn_like, dtype": lambda d: torch.randn_like(empty(d), dtype=torch.bfloat16),
    "randint": lambda d: torch.randint(1000, (64,), device=d),
    "randint, low": lambda d: torch.randint(-500, 500, (64,), device=d),
    "randint, out": lambda d: torch.randint(1000, (64,), out=empty(d, torch.int64)),
    "randint, float": lambda d: torch.randint(1000, (64,), dtype=torch.float32, device=d),
    "randint_like": lambda d: torch.randint_like(empty(d), 1000),
    "randint_like, low": lambda d: torch.randint_like(empty(d, torch.int32), -500, 500),
    "randint_like, tensor": lambda d: torch.randint_like(
        empty(d, torch.int64), torch.tensor(900)
    ),
    "randperm": lambda d: torch.randperm(64, device=d),
    "randperm, out": lambda d: torch.randperm(64, out=empty(d, torch.int64)),
    "randperm, dtype": lambda d: torch.randperm(64, dtype=torch.int32, device=d),
    "normal, tensors": lambda d: torch.normal(half(d), half(d)),
    "normal, mean": lambda d: torch.normal(half(d), 2.0),
    "normal, std": lambda d: torch.normal(2.0, half(d)),
    "normal, size": lambda d: torch.normal(0.0, 1.0, (64,), device=d),
    "normal, out": lambda d: torch.normal(half(d), half(d), out=empty(d)),
    "normal, size, out": lambda d: torch.normal(0.0, 1.0, (64,), out=empty(d)),
    "normal, functional": lambda d: torch.ops.aten.normal_functional(empty(d).zero_()),
    "normal_": lambda d: empty(d).normal_(1, 2),
    "uniform_": lambda d: empty(d).uniform_(1, 2),
    "uniform": lambda d: torch.ops.aten.uniform(empty(d)),
    "exponential_": lambda d: empty(d).exponential_(2),
    "geometric_": lambda d: empty(d).geometric_(0.1),
    "cauchy_": lambda d: empty(d).cauchy_(),
    "log_normal_": lambda d: empty(d).log_normal_(),
    "random_": lambda d: empty(d, torch.int64).random_(),
    "random_, to": lambda d: empty(d, torch.int16).random_(1000),
    "random_, from": lambda d: empty(d, torch.int32).random_(-500, 500),
    "random_, out": lambda d: torch.ops.aten.random.out(empty(d), out=empty(d)),
    "bernoulli": lambda d: torch.bernoulli(half(d)),
    "bernoulli, p": lambda d: torch.bernoulli(empty(d), 0.5),
    "bernoulli, out": lambda d: torch.bernoulli(half(d), out=empty(d)),
    "bernoulli_": lambda d: empty(d).bernoulli_(),
    "bernoulli_, tensor": lambda d: empty(d).bernoulli_(half(d)),
    "multinomial": lambda d: torch.multinomial(half(d), 20),
    "multinomial, replacement": lambda d: torch.multinomial(half(d), 90, replacement=True),
    "multinomial, out": lambda d: torch.multinomial(half(d), 20, out=empty(d, torch.int64)),
    "poisson": lambda d: torch.poisson(half(d) * 20),
    "binomial": lambda d: torch.binomial(half(d) * 40, half(d)),
    "_sample_dirichlet": lambda d: torch._sample_dirichlet(half(d).view(8, 8)),
    "_standard_gamma": lambda d: torch._standard_gamma(half(d)),
    "rrelu": lambda d: F.rrelu(-half(d), training=True),
    "rrelu_": lambda d: F.rrelu_(-half(d), training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(half(d).view(8, 8)),
    "fractional_max_pool2d": lambda d: F.fractional_max_pool2d(
        torch.arange(4096.0).view(1, 4, 32, 32).to(d), 2, output_size=(13, 13)
    ),
    "fractional_max_pool3d": lambda d: F.fractional_max_pool3d(
        torch.arange(32768.0).view(1, 64, 8, 8, 8).to(d), 2, output_size=(5, 5, 5)
    ),
    "init": lambda d: torch.nn.init.orthogonal_(empty(d, size=(8, 8))),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(empty(d)),
    "module": lambda d: torch.nn.Linear(8, 8, device=d).weight,
    "distribution": lambda d: torch.distributions.Gamma(half(d), half(d)).sample(),
    "categorical": lambda d: torch.distributions.Categorical(half(d)).sample((20,)),
    "von mises": lambda d: torch.distributions.VonMises(half(d), half(d)).sample(),
    "svd_lowrank": lambda d: torch.svd_lowrank(torch.arange(256.0).view(16, 16).to(d), q=3)[1],
    # What has no generator in its schema.
    "dropout": lambda d: F.dropout(half(d)),
    "dropout, in place": lambda d: F.dropout(half(d), inplace=True),
    "native_dropout": lambda d: torch.native_dropout(half(d), 0.5, True)[0],
    "native_dropout, out": lambda d: torch.ops.aten.native_dropout.out(
        half(d), 0.5, True, out0=empty(d), out1=empty(d, torch.bool)
    )[1],
    "dropout, module": lambda d: torch.nn.Dropout(0.3)(half(d)),
    "dropout1d": lambda d: F.dropout1d(half(d).view(2, 32, 1)),
    "dropout2d": lambda d: F.dropout2d(half(d).view(1, 64, 1, 1)),
    "dropout3d": lambda d: F.dropout3d(half(d).view(1, 64, 1, 1, 1)),
    "alpha_dropout": lambda d: F.alpha_dropout(half(d), training=True),
    "alpha_dropout_": lambda d: torch.alpha_dropout_(half(d), 0.5, True),
    "feature_alpha_dropout": lambda d: F.feature_alpha_dropout(
        half(d).view(1, 64, 1), training=True
    ),
    "attention": lambda d: F.scaled_dot_product_attention(
        *(half(d).view(1, 1, 8, 8),) * 3, dropout_p=0.5
    ),
    "attention, mask": lambda d: F.scaled_dot_product_attention(
        *(half(d).view(1, 1, 8, 8),) * 3, attn_mask=torch.ones(8, 8, device=d), dropout_p=0.5
    ),
    "multihead": lambda d: F.multi_head_attention_forward(
        *(half(d).view(8, 1, 8),) * 3,
        embed_dim_to_check=8,
        num_heads=2,
        in_proj_weight=torch.full((24, 8), 0.1, device=d),
        in_proj_bias=None,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.5,
        out_proj_weight=torch.full((8, 8), 0.1, device=d),
        out_proj_bias=None,
    )[1],
    "lstm": lambda d: torch._VF.lstm(
        torch.ones(6, 2, 4, device=d),
        (torch.zeros(2, 2, 4, device=d),) * 2,
        [torch.full((16, 4), 0.1, device=d)] * 4,
        False,
        2,
        0.5,
        True,
        False,
        False,
    )[0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_reaches_every_operator_that_draws(name):
    draw = DRAWS[name]
    for device in dict.fromkeys((f"{D}:0", LAST)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            host = torch.get_rng_state()
            torch.manual_seed(5)
            first, next_one = draw(device), draw(device)
            torch.manual_seed(5)
            again = draw(device)
            flagos.manual_seed_all(6)
            other = draw(device)
            torch.set_rng_state(host)
            generator = flagos.default_generators[int(device[-1])]
            before = generator.get_state()
            kept = draw(device)
            assert torch.equal(torch.get_rng_state(), host), "drew from the host's sequence"
            generator.set_state(before)
            if name == "lstm" and ON_A_CARD:
                # cuDNN's dropout has a state of its own, which begins anew, with a seed that the
                # host draws, when a seed or a state is set.
                kept = draw(device)
                generator.set_state(before)
                torch.set_rng_state(host)
            restored = draw(device)
        assert same(first, again) and not same(first, next_one) and not same(first, other)
        assert same(kept, restored)
        made = first[0] if isinstance(first, (tuple, list)) else first
        assert str(made.device) == device


def test_seeds_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        assert torch.initial_seed() == 0 and flagos.initial_seed() == 0
        assert torch.seed() == torch.initial_seed()
        torch.random.manual_seed(3)
        torch.default_generator.manual_seed(3)
        flagos.manual_seed(4)
        flagos.manual_seed_all(4)
        flagos.seed()
        flagos.seed_all()
        with torch.random.fork_rng(devices=range(COUNT), device_type=D):
            torch.manual_seed(0)
    assert hasattr(flagos, "_is_in_bad_fork") and hasattr(flagos, "manual_seed_all")


def test_fork_rng_keeps_the_states_of_all_devices_and_of_those_named():
    for devices in (None, range(COUNT), [0], [f"{D}:{COUNT - 1}"]):
        torch.manual_seed(1)
        wanted = [torch.rand(3), *(torch.rand(3, device=f"{D}:{i}") for i in range(COUNT))]
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Says so when there are many devices.
            with torch.random.fork_rng(devices=devices, device_type=D):
                torch.manual_seed(2)
                torch.rand(3)
                for index in range(COUNT):
                    torch.rand(3, device=f"{D}:{index}")
        assert torch.equal(torch.rand(3), wanted[0])
        kept = range(COUNT) if devices is None else [torch.device(d).index for d in devices]
        for index in kept:
            assert same(torch.rand(3, device=f"{D}:{index}"), wanted[1 + index])
    flagos.manual_seed_all(3)
    with torch.random.fork_rng(devices=range(COUNT), device_type=D, enabled=False):
        torch.rand(1, device=D)
    drawn = torch.rand(1, device=D)
    flagos.manual_seed_all(3)
    assert not same(drawn, torch.rand(1, device=D))


# --- checkpointed activations --------------------------------------------------------------------


def block(x, weight):
    y = F.dropout(x @ weight, 0.4, training=True)
    return F.rrelu(y.sin(), training=True) + torch.rand_like(y) + F.alpha_dropout(y, training=True)


def gradients(device, run):
    weight = torch.linspace(-1, 1, 16, device=device).view(4, 4).requires_grad_()
    x = torch.linspace(-1, 1, 12, device=device).view(3, 4).requires_grad_()
    torch.manual_seed(11)
    run(x, weight).square().sum().backward()
    return [x.grad, weight.grad, torch.rand(2, device=device)]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("device", dict.fromkeys([f"{D}:0", LAST]))
def test_a_checkpoint_draws_again_what_it_drew(reentrant, device):
    wanted = gradients(device, block)
    got = gradients(device, lambda *a: checkpoint(block, *a, use_reentrant=reentrant))
    assert same(got, wanted)

    def nested(x, weight):
        inner = checkpoint(block, x, weight, use_reentrant=reentrant)
        return block(inner, weight)

    def unnested(x, weight):
        return block(block(x, weight), weight)

    wanted = gradients(device, unnested)
    got = gradients(device, lambda *a: checkpoint(nested, *a, use_reentrant=reentrant))
    assert same(got, wanted)
    model = torch.nn.Sequential(*[torch.nn.Dropout(0.3) for _ in range(4)])
    wanted = gradients(device, lambda x, w: model(x @ w))
    got = gradients(
        device, lambda x, w: checkpoint_sequential(model, 2, x @ w, use_reentrant=reentrant)
    )
    assert same(got, wanted)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_may_forget_the_state(reentrant):
    def run(x, weight):
        return checkpoint(block, x, weight, use_reentrant=reentrant, preserve_rng_state=False)

    kept, forgotten = gradients(D, block), gradients(D, run)
    assert not same(kept[:2], forgotten[:2])


def test_a_checkpoint_with_autocast_and_operands_of_two_devices():
    # A device's state is kept if an argument lies there, as on CUDA.
    third = torch.ones(3, 4, device="cpu" if COUNT == 1 else LAST)

    def both(x, weight, third):
        with torch.autocast(D, torch.bfloat16):
            y = F.dropout(x @ weight, 0.5)
        z = F.dropout(x.to(third.device) * third, 0.5)
        return y.float() + z.to(x.device)

    wanted = gradients(D, lambda *a: both(*a, third))
    # PyTorch's other kind recomputes in whichever device's thread asks first, twice if both do.
    got = gradients(D, lambda *a: checkpoint(both, *a, third, use_reentrant=True))
    assert same(got, wanted)


def test_what_checkpoints_ask_of_the_device_module():
    torch.rand(1, device=D)
    module = torch.get_device_module(D)
    assert module._initialized and not module._is_in_bad_fork()
    state = module.get_rng_state(LAST)
    with module.device(COUNT - 1):
        assert same(module.get_rng_state(), state)
        module.set_rng_state(state)
    module.set_rng_state(state, COUNT - 1)
    from torch.utils.checkpoint import get_device_states, set_device_states

    devices, states = get_device_states(torch.ones(1, device=LAST), 3, "text")
    assert devices == [COUNT - 1] and same(states[0], state)
    set_device_states(devices, states, device_type=D)


# --- the first call of a process -----------------------------------------------------------------


FIRST = [
    "torch.randn(2, device='flagos')",
    "torch.randperm(3, device='flagos')",
    "torch.empty(2, device='flagos').normal_()",
    "torch.nn.functional.dropout(torch.ones(2, device='flagos'))",
    "torch.randn(2, device='flagos', generator=torch.Generator('flagos').manual_seed(2))",
    "torch.flagos.get_rng_state()",
    "torch.flagos.default_generators[0] if torch.flagos.init() is None else 0",
    "in_thread(lambda: torch.rand(2, device='flagos'))",
    "in_thread(lambda: torch.nn.Linear(2, 2, device='flagos'))",
]


def test_the_first_statement_of_a_process_may_draw(python):
    """Each in a child of its own, forked before anything of the device was used."""
    code = f"""
import os, threading, torch, torch_fl
def in_thread(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start(), thread.join()
    return results[0]
for call in {FIRST}:
    child = os.fork()
    if child == 0:
        try:
            eval(call)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        print(call)
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == ""


def draw_in_a_child(seed):
    torch.manual_seed(seed)
    return torch.rand(3, device=D).tolist()


def test_a_spawned_child_draws_the_parents_numbers():
    wanted = draw_in_a_child(4)
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(draw_in_a_child, [4]) == [wanted]
