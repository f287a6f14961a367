"""Which tensors may meet: the rules are CUDA's, though on some platforms every tensor looks like a
CPU tensor to the kernel."""

import pytest
import torch
from against_cpu import EXACT, state

D = "flagos"
COUNT = torch.flagos.device_count()
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


def dev(*shape):
    return torch.ones(*shape, device=D)


def cpu(*shape):
    return torch.ones(*shape)


def index(*values):
    return torch.tensor(values)


# --- a plain CPU tensor beside a flagos one ------------------------------------------------------

REFUSED = {
    "add": lambda: dev(3) + cpu(3),
    "add, reversed": lambda: cpu(3) + dev(3),
    "one element is not 0-dim": lambda: dev(3) + cpu(1),
    "0-dim of flagos beside a CPU vector": lambda: cpu(3) + dev(()),
    "mul": lambda: torch.mul(dev(2, 3), cpu(3)),
    "add_": lambda: dev(3).add_(cpu(3)),
    "CPU add_": lambda: cpu(3).add_(dev(3)),
    "CPU 0-dim add_": lambda: cpu(()).add_(dev(())),
    "dot": lambda: torch.dot(dev(3), cpu(3)),
    "dot, reversed": lambda: torch.dot(cpu(3), dev(3)),
    "mm": lambda: torch.mm(dev(2, 3), cpu(3, 2)),
    "mm, reversed": lambda: torch.mm(cpu(2, 3), dev(3, 2)),
    "bmm": lambda: torch.bmm(dev(1, 2, 3), cpu(1, 3, 2)),
    "addmm": lambda: torch.addmm(cpu(2, 2), dev(2, 3), dev(3, 2)),
    "linear": lambda: torch.nn.functional.linear(dev(2, 3), cpu(4, 3)),
    "linear bias": lambda: torch.nn.functional.linear(dev(2, 3), dev(4, 3), cpu(4)),
    "conv": lambda: torch.conv2d(dev(1, 1, 4, 4), cpu(1, 1, 2, 2)),
    "cat": lambda: torch.cat([dev(3), cpu(3)]),
    "cat, reversed": lambda: torch.cat([cpu(3), dev(3)]),
    "stack": lambda: torch.stack([dev(3), cpu(3)]),
    "where": lambda: torch.where(dev(3) > 0, dev(3), cpu(3)),
    "where, CPU condition": lambda: torch.where(cpu(3) > 0, dev(3), dev(3)),
    "index_select": lambda: torch.index_select(dev(4), 0, index(1)),
    "gather": lambda: torch.gather(dev(4), 0, index(1)),
    "scatter_": lambda: dev(4).scatter_(0, index(1), dev(1)),
    "masked_fill": lambda: dev(4).masked_fill(cpu(4) > 0, 1.0),
    "masked_select": lambda: torch.masked_select(dev(4), cpu(4) > 0),
    "embedding": lambda: torch.nn.functional.embedding(index(1), dev(4, 3)),
    "embedding, reversed": lambda: torch.nn.functional.embedding(index(1).to(D), cpu(4, 3)),
    "layer_norm": lambda: torch.nn.functional.layer_norm(dev(2, 3), [3], cpu(3), cpu(3)),
    "batch_norm": lambda: torch.nn.functional.batch_norm(dev(2, 3), cpu(3), cpu(3)),
    "addcmul": lambda: torch.addcmul(dev(3), dev(3), cpu(3)),
    "clamp": lambda: torch.clamp(dev(3), min=cpu(3)),
    "lerp": lambda: torch.lerp(dev(3), dev(3), cpu(3)),
    "foreach": lambda: torch._foreach_add([dev(3)], [cpu(3)]),
    "foreach_": lambda: torch._foreach_add_([dev(3), cpu(3)], [dev(3), dev(3)]),
    "out on the CPU": lambda: torch.add(dev(3), dev(3), out=cpu(3)),
    "out on flagos": lambda: torch.add(cpu(3), cpu(3), out=dev(3)),
    "out of topk": lambda: torch.topk(dev(3), 1, out=(dev(1), torch.zeros(1, dtype=torch.long))),
    "nll_loss": lambda: torch.nn.functional.nll_loss(dev(2, 3), index(0, 1)),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(dev(2, 3), index(0, 1)),
    "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(
        dev(1, 1, 2, 4), cpu(1, 1, 2, 4), dev(1, 1, 2, 4)
    ),
    "lstm": lambda: torch.nn.LSTM(3, 3)(dev(2, 1, 3)),
    "equal": lambda: torch.equal(dev(3), cpu(3)),
    "allclose": lambda: torch.allclose(dev(3), cpu(3)),
    "isin": lambda: torch.isin(dev(3), cpu(3)),
    "searchsorted": lambda: torch.searchsorted(dev(3), cpu(3)),
    "bucketize": lambda: torch.bucketize(dev(3), cpu(3)),
    "cdist": lambda: torch.cdist(dev(2, 3), cpu(2, 3)),
    "einsum": lambda: torch.einsum("ij,jk->ik", dev(2, 3), cpu(3, 2)),
    "index_add_": lambda: dev(3).index_add_(0, index(0), dev(1)),
    "index_copy_": lambda: dev(3).index_copy_(0, index(0), dev(1)),
    "take": lambda: torch.take(dev(3), index(0)),
    "kl_div": lambda: torch.nn.functional.kl_div(dev(3), cpu(3)),
    "CPU tensor, flagos index": lambda: cpu(4)[torch.tensor([1], device=D)],
    "CPU tensor, flagos mask": lambda: cpu(4)[torch.ones(4, dtype=torch.bool, device=D)],
    "CPU index_put_": lambda: cpu(4).index_put_((torch.tensor([1], device=D),), cpu(1)),
    "a CPU value for flagos": lambda: dev(4).index_put_((index(1).to(D),), cpu(1, 1)[0].expand(1)),
    "set_": lambda: dev(3).set_(cpu(3)),
    "CPU set_": lambda: cpu(3).set_(dev(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    if name == "CPU index_put_" and not EXACT:
        # CUDA's kernel moves the indices to where it writes.
        assert REFUSED[name]().tolist() == [1, 1, 1, 1]
        return
    with pytest.raises(RuntimeError) as caught:
        REFUSED[name]()
    text = str(caught.value).lower()
    assert "device" in text or "flagos" in text, text
    assert "cuda" not in text and "privateuse" not in text, text


@pytest.mark.parametrize("name", ["add", "add, reversed", "mm", "cat", "index_select"])
def test_the_message_names_both_devices_and_the_operator(name):
    with pytest.raises(RuntimeError) as caught:
        REFUSED[name]()
    text = str(caught.value)
    assert "Expected all tensors to be on the same device" in text
    assert "flagos:0" in text and "cpu" in text
    assert name.split(",")[0] in text


def test_a_refused_call_changes_nothing():
    a, b, out = dev(3), cpu(3), torch.empty(0, device=D)
    before = [state(tensor) for tensor in (a, b, out)]
    for call in (
        lambda: torch.add(a, b, out=out),
        lambda: torch.mul(a, b),
        lambda: torch.cat([a, b], out=out),
        lambda: torch.dot(a, b),
    ):
        with pytest.raises(RuntimeError):
            call()
        assert [state(tensor)[:8] for tensor in (a, b, out)] == [entry[:8] for entry in before]
    assert a.tolist() == b.tolist() == [1, 1, 1]


ACCEPTED = {
    "add": (lambda: dev(3) + torch.tensor(2.0), [3, 3, 3]),
    "add, reversed": (lambda: torch.tensor(2.0) + dev(3), [3, 3, 3]),
    "add_": (lambda: dev(3).add_(torch.tensor(2.0)), [3, 3, 3]),
    "sub alpha": (lambda: torch.sub(dev(2), torch.tensor(2.0), alpha=3), [-5, -5]),
    "div": (lambda: dev(2) / torch.tensor(4.0), [0.25, 0.25]),
    "pow": (lambda: torch.pow(torch.tensor(2.0), dev(2) * 3), [8, 8]),
    "pow, reversed": (lambda: torch.pow(dev(2) * 3, torch.tensor(2.0)), [9, 9]),
    "eq": (lambda: dev(2) == torch.tensor(1.0), [True, True]),
    "bitwise_and": (lambda: torch.tensor([3], device=D) & torch.tensor(2), [2]),
    "where": (lambda: torch.where(dev(2) > 5, torch.tensor(1.0), dev(2) * 7), [7, 7]),
    "where, both": (
        lambda: torch.where(dev(2) > 0, torch.tensor(1.0), torch.tensor(2.0)),
        [1, 1],
    ),
    "masked_fill": (lambda: dev(2).masked_fill(dev(2) > 0, torch.tensor(5.0)), [5, 5]),
    "masked_fill_": (lambda: dev(2).masked_fill_(dev(2) > 0, torch.tensor(5.0)), [5, 5]),
    "index_put_": (lambda: dev(2).index_put_((index(0).to(D),), torch.tensor(5.0)), [5, 1]),
    "setitem": (lambda: _set(dev(3), 1, torch.tensor(5.0)), [1, 5, 1]),
    "fill_": (lambda: dev(2).fill_(torch.tensor(5.0)), [5, 5]),
    "full_like": (lambda: torch.full_like(dev(2), torch.tensor(5.0)), [5, 5]),
    "copysign": (lambda: torch.copysign(dev(2), torch.tensor(-1.0)), [-1, -1]),
    "maximum": (lambda: torch.maximum(dev(2), torch.tensor(5.0)), [5, 5]),
    "atan2": (lambda: torch.atan2(dev(2) * 0, torch.tensor(1.0)), [0, 0]),
    "foreach": (lambda: torch._foreach_add([dev(2)], torch.tensor(5.0))[0], [6, 6]),
    "out": (
        lambda: torch.add(torch.tensor(1.0), torch.tensor(1.0), out=torch.empty((), device=D)),
        2,
    ),
    "fractional": (lambda: torch.float_power(dev(2) * 2, torch.tensor(2.0)), [4, 4]),
    "remainder": (lambda: torch.remainder(dev(2) * 7, torch.tensor(4.0)), [3, 3]),
    "heaviside": (lambda: torch.heaviside(dev(2) * 0, torch.tensor(0.5)), [0.5, 0.5]),
    "xlogy": (lambda: torch.xlogy(dev(2) * 0, torch.tensor(0.5)), [0, 0]),
    "copy_": (lambda: dev(2).copy_(cpu(2) * 3), [3, 3]),
    "CPU copy_": (lambda: cpu(2).copy_(dev(2) * 3), [3, 3]),
    "index, CPU": (lambda: (dev(3) * 2)[index(0, 1)], [2, 2]),
    "mask, CPU": (lambda: dev(3)[torch.tensor([True, False, True])], [1, 1]),
    "index_put_, CPU index": (lambda: dev(3).index_put_((index(1),), dev(1) * 4), [1, 4, 1]),
    "item index": (lambda: dev(3)[torch.tensor(1)], 1),
}


def _set(tensor, where, value):
    tensor[where] = value
    return tensor


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    """A 0-dim CPU tensor that is only read is a number; indices and copies may lie on the host."""
    program, wanted = ACCEPTED[name]
    if name == "out" and not EXACT:
        with pytest.raises(RuntimeError, match="too many CPU scalars"):  # CUDA takes one of them.
            program()
        return
    result = program()
    assert result.device.type == ("cpu" if name == "CPU copy_" else D)
    assert result.tolist() == wanted


def test_a_0_dim_cpu_tensor_decides_dtypes_as_on_cuda():
    half = torch.ones(2, dtype=torch.float16, device=D)
    assert (half * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float16
    assert (torch.ones(2, dtype=torch.int8, device=D) + torch.tensor(2.5)).dtype == torch.float32


def test_meta_tensors_do_not_mix():
    for call in (
        lambda: dev(3) + torch.ones(3, device="meta"),
        lambda: torch.ones(3, device="meta") + dev(3),
    ):
        with pytest.raises(RuntimeError):
            call()


# --- generators ----------------------------------------------------------------------------------

DRAWS = {
    "randn": lambda d, g: torch.randn(4, device=d, generator=g),
    "rand": lambda d, g: torch.rand(4, device=d, generator=g),
    "randint": lambda d, g: torch.randint(100, (4,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(4, device=d, generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(4, device=d), 1.0, generator=g),
    "normal, both": lambda d, g: torch.normal(
        torch.zeros(4, device=d), torch.ones(4, device=d), generator=g
    ),
    "normal, size": lambda d, g: torch.normal(0.0, 1.0, (4,), device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((4,), 0.5, device=d), generator=g),
    "bernoulli, p": lambda d, g: torch.bernoulli(torch.zeros(4, device=d), 0.5, generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(4, device=d), 2, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.ones(4, device=d), generator=g),
    "normal_": lambda d, g: torch.zeros(4, device=d).normal_(generator=g),
    "uniform_": lambda d, g: torch.zeros(4, device=d).uniform_(generator=g),
    "random_": lambda d, g: torch.zeros(4, device=d).random_(generator=g),
    "random_, to": lambda d, g: torch.zeros(4, device=d).random_(7, generator=g),
    "random_, range": lambda d, g: torch.zeros(4, device=d).random_(2, 7, generator=g),
    "bernoulli_": lambda d, g: torch.zeros(4, device=d).bernoulli_(0.5, generator=g),
    "bernoulli_, p": lambda d, g: torch.zeros(4, device=d).bernoulli_(
        torch.full((4,), 0.5, device=d), generator=g
    ),
    "exponential_": lambda d, g: torch.zeros(4, device=d).exponential_(generator=g),
    "cauchy_": lambda d, g: torch.zeros(4, device=d).cauchy_(generator=g),
    "log_normal_": lambda d, g: torch.zeros(4, device=d).log_normal_(generator=g),
    "geometric_": lambda d, g: torch.zeros(4, device=d).geometric_(0.5, generator=g),
    "rrelu": lambda d, g: torch.ops.aten.rrelu_with_noise(
        -torch.ones(4, device=d), torch.zeros(4, device=d), 0.1, 0.3, True, g
    ),
    "randn out": lambda d, g: torch.randn(4, out=torch.empty(4, device=d), generator=g),
    "trunc_normal_": lambda d, g: torch.nn.init.trunc_normal_(
        torch.zeros(4, device=d), generator=g
    ),
    "kaiming_uniform_": lambda d, g: torch.nn.init.kaiming_uniform_(
        torch.zeros(4, 2, device=d), generator=g
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_the_device_draws_the_twins_numbers(name):
    draw = DRAWS[name]
    first = draw(D, torch.Generator(D).manual_seed(3))
    again = draw(D, torch.Generator(D).manual_seed(3))
    assert first.device.type == D and torch.equal(first, again)
    if EXACT:
        assert torch.equal(first.cpu(), draw("cpu", torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_another_device_is_refused(name):
    draw = DRAWS[name]
    with pytest.raises(RuntimeError, match=r"(?i)expected a 'flagos' .*generator but found 'cpu'"):
        draw(D, torch.Generator())
    with pytest.raises(RuntimeError, match=r"(?i)expected a 'cpu' .*generator but found 'flagos'"):
        draw("cpu", torch.Generator(D))


@pytest.mark.parametrize("name", DRAWS)
def test_the_default_generator_is_the_devices_own(name):
    draw = DRAWS[name]
    torch.flagos.manual_seed(11)
    before = torch.get_rng_state()
    first = draw(D, None)
    assert torch.equal(torch.get_rng_state(), before), "a draw on the device moved the host's state"
    torch.flagos.manual_seed(11)
    torch.rand(3)  # Nor does a draw on the host move the device's.
    assert torch.equal(draw(D, None), first)


def test_a_generator_knows_its_device_and_keeps_its_state():
    generator = torch.Generator(D)
    assert generator.device == torch.device(D, 0)
    generator.manual_seed(9)
    assert generator.initial_seed() == 9
    saved = generator.get_state()
    assert saved.device.type == "cpu" and saved.dtype == torch.uint8
    first = torch.rand(5, device=D, generator=generator)
    assert not torch.equal(torch.rand(5, device=D, generator=generator), first)
    generator.set_state(saved)
    assert torch.equal(torch.rand(5, device=D, generator=generator), first)
    other = generator.clone_state() if hasattr(generator, "clone_state") else None
    if other is not None:
        after = torch.rand(5, device=D, generator=other)
        assert torch.equal(torch.rand(5, device=D, generator=generator), after)


# --- devices -------------------------------------------------------------------------------------

MAKERS = {
    "empty": lambda d: torch.empty(2, device=d),
    "zeros": lambda d: torch.zeros(2, device=d),
    "ones": lambda d: torch.ones(2, device=d),
    "full": lambda d: torch.full((2,), 3.0, device=d),
    "arange": lambda d: torch.arange(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "tensor": lambda d: torch.tensor([1, 2], device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 2], device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 2), (1, 2), device=d),
    "rand": lambda d: torch.rand(2, device=d),
    "randperm": lambda d: torch.randperm(3, device=d),
    "randint": lambda d: torch.randint(3, (2,), device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "hann_window": lambda d: torch.hann_window(4, device=d),
    "zero elements": lambda d: torch.empty(0, device=d),
    "zero elements, zeros": lambda d: torch.zeros(0, device=d),
    "to": lambda d: torch.ones(2).to(d),
    "to, from the device": lambda d: torch.ones(2, device=D).to(d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "empty_like": lambda d: torch.empty_like(torch.ones(2), device=d),
    "new_zeros": lambda d: torch.ones(2).new_zeros(2, device=d),
    "module": lambda d: next(torch.nn.Linear(2, 2, device=d).parameters()),
    "module.to": lambda d: next(torch.nn.Linear(2, 2).to(d).parameters()),
    "generator": lambda d: torch.Generator(d),
    "device context": lambda d: _in_context(d),
}


def _in_context(device):
    with torch.device(device):
        return torch.ones(2)


@pytest.mark.parametrize("name", MAKERS)
def test_each_device_that_there_is(name):
    make = MAKERS[name]
    for number in range(COUNT):
        before = torch.flagos.current_device()
        assert make(f"{D}:{number}").device == torch.device(D, number)
        assert torch.flagos.current_device() == before
    assert make(D).device == torch.device(D, torch.flagos.current_device())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("number", [77, 127])
def test_an_index_out_of_range_says_how_many_devices_there_are(name, number):
    before = torch.flagos.current_device()
    with pytest.raises(RuntimeError, match=rf"\b{number}\b.*\b{COUNT} device"):
        MAKERS[name](f"{D}:{number}")
    assert torch.flagos.current_device() == before


def test_bare_integers_mean_the_accelerator():
    """torch.device(0), .to(0): the current accelerator, which is flagos."""
    assert torch.device(0) == torch.device(D, 0)
    assert torch.ones(2).to(0).device == torch.device(D, 0)
    assert torch.zeros(2, device=0).device == torch.device(D, 0)
    assert next(torch.nn.Linear(1, 1).to(0).parameters()).device == torch.device(D, 0)


@two_devices
def test_operands_of_two_devices_are_refused():
    a, b = torch.ones(3, device=f"{D}:0"), torch.ones(3, device=f"{D}:1")
    calls = {
        "add": lambda: a + b,
        "add_": lambda: a.add_(b),
        "mm": lambda: torch.mm(a.view(1, 3), b.view(3, 1)),
        "cat": lambda: torch.cat([a, b]),
        "out": lambda: torch.add(a, a, out=b),
        "0-dim": lambda: a + b[0],
        "where": lambda: torch.where(a > 0, a, b),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=f"{D}:0.*{D}:1|{D}:1.*{D}:0"):
            call()
    assert a.tolist() == b.tolist() == [1, 1, 1]


@two_devices
def test_an_operator_runs_on_its_operands_device_and_leaves_the_current_one():
    for current in range(2):
        with torch.flagos.device(current):
            x = torch.ones(3, device=f"{D}:1")
            for call in (
                lambda: x + 1,
                lambda: x.sum(),
                lambda: torch.multinomial(x, 2),
                lambda: x.to(torch.int64),
                lambda: x.to(f"{D}:0"),
                lambda: torch.cat([x, x]),
                lambda: x.clone(),
                lambda: x.sort().values,
                lambda: x[:0],
                lambda: torch.empty_like(x[:0]),
                lambda: x.cpu(),
                lambda: x.tolist(),
                lambda: x.add_(1),
            ):
                result = call()
                assert torch.flagos.current_device() == current
                if isinstance(result, torch.Tensor) and result.device.type == D:
                    assert result.device.index in (0, 1)
            assert (x + 1).device.index == x.sum().device.index == x[:0].device.index == 1
            assert torch.empty(0, device=f"{D}:1").device.index == 1
            assert torch.arange(3, device=f"{D}:1").device.index == 1


def test_autograd_gives_gradients_on_the_device():
    number = COUNT - 1
    x = torch.randn(4, 5, device=f"{D}:{number}", requires_grad=True)
    for function in (
        lambda: x.min(dim=0).values,
        lambda: x.max(dim=1).values,
        lambda: x.sort().values,
        lambda: x.topk(2).values,
        lambda: x.gather(0, torch.zeros(1, 5, dtype=torch.long, device=x.device)),
        lambda: x.index_select(0, torch.tensor([1], device=x.device)),
        lambda: x.cumprod(0),
        lambda: x.median(dim=0).values,
    ):
        x.grad = None
        function().sum().backward()
        assert x.grad.device == x.device and x.grad.shape == x.shape
