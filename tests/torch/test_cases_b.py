"""Inputs that broke backends like this one, section B: device index, guards, current device."""

import collections
import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check
from conftest import run_python

import torch_fl

D = "flagos"
flagos = torch.flagos
COUNT = flagos.device_count()
LAST = f"{D}:{COUNT - 1}"
PLATFORM = torch_fl.platform()["name"]
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


@pytest.fixture(autouse=True)
def current_device_and_stream_stay():
    before = flagos.current_device(), [flagos.current_stream(i) for i in range(COUNT)]
    yield
    assert before == (flagos.current_device(), [flagos.current_stream(i) for i in range(COUNT)])


def on_last(program):
    """`program` on the device of the highest index, while the first is current."""

    def run(device):
        result = program("cpu" if device == "cpu" else LAST)
        assert flagos.current_device() == 0
        return result

    return check(run)


# --- one current device --------------------------------------------------------------------------


def readings():
    with_index = torch.empty(0, device=D).device.index
    stream = torch.accelerator.current_stream().device_index
    generic = torch.accelerator.current_device_index()
    assert flagos.current_device() == generic == with_index == stream
    assert flagos.current_stream().device_index == generic == torch.Stream(D).device_index
    return generic


def test_every_way_to_set_the_current_device_is_seen_by_every_way_to_read_it():
    setters = [
        flagos.set_device,
        torch.accelerator.set_device_index,
        lambda index: flagos.set_device(f"{D}:{index}"),
        lambda index: flagos.set_device(torch.device(D, index)),
        lambda index: torch._C._accelerator_setDeviceIndex(index),
        lambda index: torch._C._accelerator_exchangeDevice(index),
    ]
    try:
        for number, setter in enumerate(setters * 2):
            index = (number + 1) % COUNT
            setter(index)
            assert readings() == index
            for other in range(COUNT):
                torch.ones(3, device=f"{D}:{other}").sum().item()
                assert readings() == index
    finally:
        flagos.set_device(0)


def test_guards_of_both_interfaces_nest_and_restore_what_was_there():
    for outer in range(COUNT):
        for inner in range(COUNT):
            with flagos.device(outer):
                with torch.accelerator.device_index(inner):
                    assert readings() == inner
                    with flagos.device_of(torch.ones(1, device=f"{D}:{outer}")):
                        assert readings() == outer
                        with flagos.device(-1), torch.accelerator.device_index(None):
                            assert readings() == outer
                    assert readings() == inner
                    flagos.set_device(outer)  # Inside a guard: it restores all the same.
                assert readings() == outer
    assert readings() == 0


# --- the operands' device ------------------------------------------------------------------------

FAMILIES = {
    "pointwise": lambda x: [x + 1, x * x, x.exp(), torch.where(x > 0, x, -x), x.clone().add_(1)],
    "cast": lambda x: [x.to(torch.int32), x.half(), x.bool(), x.double(), x.to(torch.complex64)],
    "reduction": lambda x: [x.sum(), x.mean(0), x.std(1), x.norm(), x.argmax(), x.amax(0), x.any()],
    "scan": lambda x: [x.cumsum(0), x.cumprod(1), x.cummax(0).values, x.logcumsumexp(0)],
    "sort": lambda x: [x.sort().indices, x.topk(2).values, x.argsort(), x.kthvalue(2).values],
    "selection": lambda x: [x.median(), x.mode().values, x.nanmedian(0).values, x.quantile(0.5)],
    "index": lambda x: [x[x > 0], x[[1, 0]], x.nonzero(), x.take(torch.arange(3).to(x.device))],
    "scatter": lambda x: [
        x.clone().index_add_(0, torch.tensor([1, 1]).to(x.device), x[:2]),
        x.clone().scatter_(1, torch.zeros(3, 1, dtype=torch.int64).to(x.device), 7.0),
        x.clone().masked_fill_(x > 0, -1.0),
        x.clone().index_put_((torch.tensor([0, 1]).to(x.device),), x[0], accumulate=True),
    ],
    "matrix": lambda x: [x @ x.t(), torch.addmm(x[:, :3], x, x.t()), torch.einsum("ij,kj", x, x)],
    "solver": lambda x: [torch.linalg.inv(x @ x.t() + 5 * torch.eye(3).to(x.device)), x.svd().S],
    "cat": lambda x: [torch.cat([x, x]), torch.stack([x, x]), x.repeat(2, 1), x.roll(1), x.flip(0)],
    "unique": lambda x: [x.unique(), x.int().flatten().bincount(minlength=3), x.histc(4)],
    "fourier": lambda x: [torch.fft.rfft(x), torch.fft.ifft(torch.fft.fft(x)).real],
    "network": lambda x: [
        F.conv1d(x[None], torch.ones(1, 3, 2).to(x.device)),
        F.max_pool1d(x[None], 2),
        F.layer_norm(x, [4]),
        F.batch_norm(x, None, None, training=True),
        F.softmax(x, -1),
        F.interpolate(x[None], scale_factor=2, mode="linear"),
        F.embedding(torch.tensor([0, 2]).to(x.device), x),
        F.cross_entropy(x, torch.tensor([0, 1, 3]).to(x.device)),
        F.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
    "list": lambda x: [*torch._foreach_add([x, x[0]], 1), *torch._foreach_norm([x, x[0]])],
    "sparse": lambda x: [x.to_sparse().to_dense(), torch.sparse.mm(x.to_sparse(), x.t())],
    "view": lambda x: [x.t(), x[1:, ::2], x.unfold(1, 2, 1), x.diagonal(), x.expand(2, 3, 4)],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_operator_of_each_family_runs_where_its_operands_are(name):
    def program(device):
        x = (torch.arange(12.0) % 5 - 2).view(3, 4).to(device)
        results = FAMILIES[name](x)
        if device != "cpu":
            assert {str(result.device) for result in results} == {LAST}
        return results

    on_last(program)


DRAWS = {
    "multinomial": lambda d, g: torch.multinomial(torch.ones(10, device=d), 5, generator=g),
    "randperm": lambda d, g: torch.randperm(9, device=d, generator=g),
    "rand": lambda d, g: torch.rand(5, device=d, generator=g),
    "normal_": lambda d, g: torch.empty(5, device=d).normal_(generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((9,), 0.5, device=d), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_uses_the_generator_of_its_operands_device(name):
    flagos.manual_seed_all(7)
    wanted = [flagos.get_rng_state(index) for index in range(COUNT)]
    first = DRAWS[name](LAST, None)
    assert str(first.device) == LAST and flagos.current_device() == 0
    for index in range(COUNT - 1):
        assert torch.equal(flagos.get_rng_state(index), wanted[index])
    assert not torch.equal(flagos.get_rng_state(COUNT - 1), wanted[-1])
    assert torch.equal(DRAWS[name](LAST, torch.Generator(LAST).manual_seed(7)), first)


EMPTIES = {
    "empty": lambda d: torch.empty(0, device=d),
    "zeros": lambda d: torch.zeros(0, 3, device=d),
    "arange": lambda d: torch.arange(0, device=d),
    "eye": lambda d: torch.eye(0, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 0, device=d),
    "tensor": lambda d: torch.tensor([], device=d),
    "randperm": lambda d: torch.randperm(0, device=d),
    "empty_strided": lambda d: torch.empty_strided((0, 2), (2, 1), device=d),
    "to": lambda d: torch.empty(0).to(d),
    "to, dtype": lambda d: torch.empty(0, device=d).to(torch.int32),
    "slice": lambda d: torch.ones(3, device=d)[0:0],
    "empty_like": lambda d: torch.empty_like(torch.empty(0, device=d)),
    "clone": lambda d: torch.empty(0, device=d).clone(),
    "add": lambda d: torch.empty(0, device=d) + 1,
    "sum of a dimension": lambda d: torch.empty(0, 3, device=d).sum(1),
    "nonzero": lambda d: torch.zeros(3, device=d).nonzero(),
    "masked_select": lambda d: torch.ones(3, device=d)[torch.zeros(3, device=d) > 0],
    "cat": lambda d: torch.cat([torch.empty(0, device=d)] * 2),
    "split": lambda d: torch.empty(0, device=d).split(1)[0],
    "mm": lambda d: torch.empty(0, 3, device=d) @ torch.empty(3, 0, device=d),
    "unique": lambda d: torch.empty(0, device=d).unique(),
    "resized": lambda d: torch.ones(3, device=d).resize_(0),
    "set": lambda d: torch.ones(3, device=d).set_(),
    "new": lambda d: torch.ones(3, device=d).new_empty(0),
    "detached": lambda d: torch.empty(0, device=d, requires_grad=True).detach(),
    "gradient": lambda d: torch.autograd.grad(
        (y := torch.empty(0, device=d, requires_grad=True)).sum(), y
    )[0],
}


@pytest.mark.parametrize("name", EMPTIES)
def test_a_tensor_of_no_bytes_keeps_its_device(name):
    for index in range(COUNT):
        x = EMPTIES[name](f"{D}:{index}")
        assert x.numel() == 0 and x.device == torch.device(D, index)
        assert x.untyped_storage().device == x.device and x.get_device() == index
        assert (x + 1).device == x.device and x.cpu().device.type == "cpu"


HOLDERS = {
    "coo": lambda d: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), device=d),
    "coo, of its device": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0], [1]], device=d), torch.tensor([1.0], device=d), (2, 2)
    ),
    "coo, of sizes": lambda d: torch.sparse_coo_tensor((2, 2), device=d),
    "coo, zeros": lambda d: torch.zeros(2, 2, layout=torch.sparse_coo, device=d),
    "coo, empty_like": lambda d: torch.empty_like(torch.eye(2, device=d).to_sparse()),
    "coo, moved": lambda d: torch.eye(2).to_sparse().to(d),
    "coo, made": lambda d: torch.eye(2, device=d).to_sparse().coalesce(),
    "coo, product": lambda d: torch.eye(2, device=d).to_sparse() * 2,
    "coo, sum": lambda d: torch.eye(2, device=d).to_sparse() + torch.eye(2, device=d).to_sparse(),
    "csr, zeros": lambda d: torch.zeros(2, 2, layout=torch.sparse_csr, device=d),
    "csr, moved": lambda d: torch.eye(2).to_sparse_csr().to(d),
    "csc": lambda d: torch.eye(2, device=d).to_sparse_csc(),
    "bsr": lambda d: torch.eye(2, device=d).to_sparse_bsr((1, 1)),
    "gradient": lambda d: torch.autograd.grad(
        F.embedding(
            torch.tensor([0], device=d),
            (w := torch.ones(2, 2, device=d, requires_grad=True)),
            sparse=True,
        ).sum(),
        w,
    )[0],
    "nested": lambda d: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=d) * 2,
    "jagged": lambda d: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged, device=d
    ).sin(),
    "quantized": lambda d: torch.quantize_per_tensor(torch.ones(3, device=d), 0.1, 0, torch.qint8),
    "quantized, moved": lambda d: torch.quantize_per_tensor(
        torch.ones(3), 0.1, 0, torch.qint8
    ).to(d),
}


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_holds_others_has_them_on_its_device(name):
    """Whichever is current: constructors make their first members on the current device."""
    for current, index in itertools.product(range(COUNT), repeat=2):
        with flagos.device(current):
            x = HOLDERS[name](f"{D}:{index}")
            assert x.device == torch.device(D, index)
            if x.layout == torch.sparse_coo:
                assert x._indices().device == x._values().device == x.device
            elif x.layout != torch.strided and not x.is_nested:
                assert x.values().device == x.device
            assert x.cpu().device.type == "cpu" and x.clone().device == x.device
            other = x.to(f"{D}:{current}")
            assert other.device == torch.device(D, current)
            assert flagos.current_device() == current


def test_bare_integers_are_devices_of_their_number_whichever_is_current():
    for current in range(COUNT):
        with flagos.device(current):
            for number in range(COUNT):
                x = torch.zeros(2, device=number)
                made = [
                    x,
                    torch.ones(2).to(number),
                    torch.ones(2).flagos(number),
                    x.new_zeros(2, device=number),
                    torch.zeros_like(torch.ones(2), device=number),
                    torch.as_tensor([1], device=number),
                    torch.nn.Linear(1, 1).to(number).weight,
                    torch.nn.Linear(1, 1).flagos(number).weight,
                    torch.nn.Linear(1, 1, device=number).weight,
                ]
                assert {str(one.device) for one in made} == {f"{D}:{number}"}
                assert torch.device(number) == torch.device(D, number)
                assert torch.Generator(torch.device(number)).device == torch.device(D, number)
                assert torch.Stream(number).device == torch.device(D, number)
                with torch.device(number):
                    assert torch.ones(1).device == torch.device(D, number)
    for wrong in (COUNT, 77):
        with pytest.raises(RuntimeError):
            torch.ones(2).to(wrong)


# --- gradients -----------------------------------------------------------------------------------

BACKWARDS = {
    "min": lambda x: x.min(dim=0).values,
    "max": lambda x: x.max(dim=1).values,
    "max of all": lambda x: x.max(),
    "amax": lambda x: x.amax(1),
    "sort": lambda x: x.sort(descending=True).values[:2],
    "topk": lambda x: x.topk(2).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "median": lambda x: x.median(dim=0).values,
    "mode": lambda x: x.mode(0).values,
    "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64).to(x.device)),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1),
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 1]).to(x.device)),
    "index": lambda x: x[[2, 0, 2]],
    "masked_select": lambda x: x[x > 0],
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1::2],
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 2), 1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "expand": lambda x: x.expand(2, 3, 4),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cummin": lambda x: x.cummin(1).values,
    "prod": lambda x: x.prod(1),
    "norm": lambda x: x.norm(dim=1),
    "svd": lambda x: torch.linalg.svdvals(x),
    "cat": lambda x: torch.cat([x, x[:1]]),
    "split": lambda x: x.split(2, 1)[1],
    "unbind": lambda x: x.unbind()[1],
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "conv": lambda x: F.conv1d(x[None], torch.ones(1, 3, 2).to(x.device)),
    "embedding": lambda x: F.embedding(torch.tensor([0, 2, 0]).to(x.device), x),
    "layer_norm": lambda x: F.layer_norm(x, [4]).cumsum(0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True).cumsum(0),
    "nll_loss": lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([0, 1, 3]).to(x.device)),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"),
    "pad": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "checked out of the graph": lambda x: x.to(torch.float64),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_gradients_lie_where_the_tensor_does(name):
    def program(device):
        x = (torch.tensor([3.0, -1, 4, 1, -5, 9, 2, -6, 5, 3.5, 8, -7]).view(3, 4)).to(device)
        x.requires_grad_()
        BACKWARDS[name](x).square().sum().backward()
        assert x.grad.device == x.device
        return x.grad

    on_last(program)


def test_a_gradient_that_nobody_gave_is_made_on_its_device():
    def program(device):
        x = torch.arange(9.0).view(3, 3).to(device).requires_grad_()  # Which of equals comes first
        values, indices = x.sort()  # is each kernel's own affair.
        first, second = x.split([1, 2])
        (first.sum() + values[0, 0]).backward()
        (unused,) = torch.autograd.grad(
            (x * 2).sum(), torch.ones(2, device=device, requires_grad=True), allow_unused=True
        ) or (None,)
        assert unused is None
        (zeros,) = torch.autograd.grad(
            (x * 2).sum(),
            torch.ones(2, device=device, requires_grad=True),
            allow_unused=True,
            materialize_grads=True,
        )
        assert zeros.device == x.device
        return [x.grad, zeros]

    on_last(program)


# --- no context elsewhere ------------------------------------------------------------------------


@pytest.mark.platforms("sim")
def test_a_process_of_one_device_leaves_the_others_alone():
    """It calls the driver as often as the same program does on the first device, so for nothing on
    another one, whose memory is untouched."""
    code = """
import sys, torch, torch_fl
device = int(sys.argv[1])
torch.flagos.set_device(device)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to("flagos")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 4, device="flagos")).sum().backward()
optimizer.step()
with torch.flagos.stream(torch.flagos.Stream()):
    torch.ones(3).pin_memory().to("flagos", non_blocking=True).cpu()
torch.flagos.Event().record()
torch.flagos.synchronize()
print([torch.flagos.memory_reserved(i) > 0 for i in range(2)])
"""
    calls = []
    for device in (0, 1):
        done = run_python(code, str(device), TORCH_FL_PLATFORM="sim", TORCH_FL_TRACE="call")
        assert done.stdout == f"{[device == 0, device == 1]}\n", done.stderr
        lines = [line for line in done.stderr.splitlines() if "[call]" in line]
        calls.append(collections.Counter(line for line in lines if "query" not in line))
    assert calls[0] == calls[1] and sum(calls[0].values()) > 20


# --- streams and events that name no index ------------------------------------------------------


def test_a_stream_without_an_index_is_of_the_current_device():
    for index in range(COUNT):
        with flagos.device(index):
            for stream in (torch.Stream(D), torch.Stream(device=D), torch.Stream(torch.device(D))):
                assert stream.device == torch.device(D, index)
            assert torch.Stream().device == torch.device(D, index)
            event = torch.Event(D)
            event.record()
            event.synchronize()
            assert event.device == torch.device(D, index)


def test_generic_streams_nest_and_cross_devices():
    streams = [torch.Stream(device=f"{D}:{index}") for index in range(COUNT)] + [torch.Stream(D)]
    before = [torch.accelerator.current_stream(index) for index in range(COUNT)]
    for _ in range(20):
        for outer in streams:
            with outer:
                assert readings() == outer.device_index
                for inner in streams:
                    with inner, inner:
                        assert torch.accelerator.current_stream() == inner
                        assert readings() == inner.device_index
                        x = torch.ones(10, device=D) * 2
                        event = torch.Event(D)
                        event.record()
                    assert torch.accelerator.current_stream() == outer
                    event.wait(outer)
                    assert x.sum().item() == 20 and x.device == inner.device
                event = torch.Event(D)
                event.record(outer)
                outer.record_event(event)
                outer.wait_event(event)
                event.synchronize()
        gc.collect()
    after = [torch.accelerator.current_stream(index) for index in range(COUNT)]
    assert before == after and readings() == 0


# --- a backend beside it -------------------------------------------------------------------------


def test_the_accelerator_is_asked_in_every_way():
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == COUNT
    assert torch.accelerator.current_accelerator() == torch.device(D)
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device(D)
    torch.accelerator.synchronize()
    # What asks for CUDA without a device of it gets what it got before.
    if PLATFORM in ("cpu", "sim") and not torch.cuda.is_available():
        assert torch.cuda.device_count() == 0 and not torch.cuda.is_initialized()
        with pytest.raises((RuntimeError, AssertionError), match="(?i)cuda|nvidia"):
            torch.ones(1, device="cuda")
