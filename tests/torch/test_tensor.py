"""Tensors: making, moving, storage, metadata, lazy bits, text, copies of Python objects."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from against_cpu import assert_same_values, check, state

import torch_fl
from torch_fl import routes

D = "flagos"
HAS_TWIN = torch_fl.platform()["twin"] not in (None, "none", "")
with_twin = pytest.mark.skipif(not HAS_TWIN, reason="one native pass needs a twin")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def values(dtype, shape=(2, 3, 4)):
    count = torch.Size(shape).numel()
    numbers = torch.arange(count) % 5
    if dtype.is_complex:
        return torch.complex(numbers.float(), numbers.flip(0).float()).to(dtype).view(shape)
    return numbers.to(dtype).view(shape)


# --- making and moving ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_there_and_back(dtype):
    x = values(dtype)
    for host in (x, x.transpose(0, 2), x[:, 1], x[..., ::2], x[:0], x[0, 0, 0], x[:1].expand(4, 3, 4)):
        device = host.to(D)
        assert device.device == torch.device(D, 0) and device.dtype == dtype
        assert device.stride() == host.to("cpu", copy=True).stride()
        back = device.cpu()
        assert back.device.type == "cpu" and torch.equal(back, host)
        assert host.numel() == 0 or back.data_ptr() != host.data_ptr()


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source):
    """On the device, on the way there and on the way back; strides are read, not assumed."""

    def program(device):
        x = values(source)
        results = []
        for target in DTYPES:
            for layout in (x, x.transpose(0, 2), x[:, ::2], x[:1].expand(4, 3, 4), x[0, 0, 0]):
                on_device = layout.to(device, copy=True)
                results += [on_device.to(target), layout.to(device, target, copy=True)]
                results.append(on_device.to("cpu", target, copy=True))
                other = torch.empty(layout.shape, dtype=target, device=device)
                results.append(other.copy_(layout))
                results.append(other.copy_(on_device))
                results.append(torch.empty(layout.shape, dtype=target).copy_(on_device))
        return results

    check(program)


@with_twin
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.half(),
        lambda x: x.t().half(),
        lambda x: x[::2].to(torch.int32),
        lambda x: x.expand(3, 4, 5).to(torch.complex64),
        lambda x: x.t().to(x.dtype, copy=True),
        lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
    ],
)
def test_a_cast_on_the_device_is_one_native_pass(make):
    """No contiguous copy before it, no second tensor behind it."""
    x = torch.randn(4, 5).to(D)
    routes.reset_counts()
    make(x)
    calls = {row.name: sum(row.calls.values()) for row in routes.report().rows}
    calls = {name: number for name, number in calls.items() if name.split("::")[1] not in VIEWS}
    assert calls == {"aten::_to_copy": 1}


VIEWS = ("as_strided", "view", "_reshape_alias")


def test_lazy_bits_are_resolved_by_casts_and_moves():
    def program(device):
        z = torch.complex(torch.arange(4.0), torch.arange(4.0).flip(0)).to(device)
        real = torch._neg_view(torch.arange(4.0).to(device))
        return [
            z.conj().to("cpu", copy=True),
            z.conj().to(torch.complex128),
            z.conj().clone(),
            z.conj().resolve_conj(),
            z.conj().contiguous(),
            (z.conj() + 1).imag,
            z.conj().imag.to(torch.float64),
            z.conj().imag.clone(),
            real.to(torch.float64),
            real.to("cpu", copy=True),
            real.resolve_neg(),
            real + 1,
            z.conj() @ z,
            torch.vdot(z, z.conj()),
            torch.empty(4, dtype=torch.complex64, device=device).copy_(z.conj()),
            torch.empty(4, dtype=torch.complex64).copy_(z.conj()),
            torch.zeros(4, dtype=torch.complex64, device=device).conj().copy_(z),
            z.conj().mul_(2j),
            z.conj().sum(),
            torch.cat([z.conj(), z]),
            torch.view_as_real(z.conj().resolve_conj()),
        ]

    check(program)


def test_zero_tensors():
    """Gradients that are known to be zero have no memory at all."""

    def program(device):
        zero = torch._efficientzerotensor((2, 3), device=device)
        x = torch.arange(6.0).to(device).view(2, 3)
        return [
            x + zero,
            zero + x,
            zero * x,
            zero.clone(),
            zero.to(torch.float64),
            zero.cpu(),
            torch.empty(2, 3, device=device).copy_(zero),
            zero.t() @ x,
            zero.sum(),
        ]

    check(program)
    import torch.autograd.forward_ad as forward

    def dual(device):
        with forward.dual_level():
            x = forward.make_dual(torch.ones(3, device=device), torch.arange(3.0).to(device))
            y = torch.cat([x * 2, torch.ones(1, device=device)])
            return list(forward.unpack_dual(y))

    check(dual)


def test_make_like_on_the_cpu():
    def program(device):
        x = torch.randn(2, 3, 4, 5).to(device)
        last = x.to(memory_format=torch.channels_last)
        return [
            torch.zeros(2, 3, device=device),
            torch.full((2,), 7, device=device),
            torch.arange(0.0, 3.0, 0.5, device=device),
            torch.arange(5, device=device),
            torch.linspace(0, 1, 5, device=device),
            torch.eye(3, 4, device=device),
            torch.tril_indices(3, 3, device=device),
            torch.zeros_like(last),
            torch.ones_like(x.transpose(1, 2)),
            torch.zeros_like(x, memory_format=torch.channels_last),
            x.new_zeros(3),
            x.new_full((2,), 1.5, dtype=torch.float64),
            x.new_tensor([1, 2]),
            torch.tensor([[1.5, 2], [3, 4]], device=device),
            torch.tensor(True, device=device),
            torch.zeros((), device=device),
            torch.zeros(0, 3, device=device),
            torch.empty_strided((2, 2), (1, 2), device=device).zero_(),
            torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).zero_(),
            torch.scalar_tensor(3, device=device),
            torch.asarray([1.0, 2.0], device=device),
            torch.full_like(last, 3),
            last.contiguous(),
            last.clone(),
            x.contiguous(memory_format=torch.channels_last),
            torch.complex(x, x),
            torch.zeros(3, device=device, dtype=torch.bfloat16),
        ]

    check(program)


def test_wrong_requests_are_refused_as_on_cuda():
    for call, words in {
        lambda: torch.empty(2, device=D, pin_memory=True): "pinned",
        lambda: torch.empty(2).to(D).pin_memory(): "pin",
        lambda: torch.ones(2, device=D).numpy(): r"Tensor\.cpu\(\)",
        lambda: torch.empty(-1, device=D): "negative",
        lambda: torch.from_numpy(torch.ones(2, device=D)): "ndarray|Tensor",
        lambda: torch.ones(2, device=D).to("nosuch"): "nosuch",
    }.items():
        with pytest.raises((RuntimeError, TypeError), match=f"(?i){words}"):
            call()


def test_an_impossible_size_is_an_error_and_leaves_the_device_working():
    for call in (
        lambda: torch.empty(2**62, device=D),
        lambda: torch.empty(2**55, dtype=torch.uint8, device=D),
        lambda: torch.ones(3, device=D).resize_(2**55),
    ):
        with pytest.raises(RuntimeError):
            call()
    assert (torch.ones(2, device=D) + 1).tolist() == [2, 2]


def test_copies_convert_broadcast_and_keep_to_the_view():
    def program(device):
        results = []
        x = torch.zeros(3, 4).to(device)
        results.append(x.clone().copy_(torch.arange(4, dtype=torch.int64)))
        results.append(x.clone().copy_(torch.arange(4, dtype=torch.float64).to(device)))
        results.append(x.clone().copy_(torch.ones(1)))
        y = torch.arange(4.0).to(device)
        y.select(0, 2).copy_(torch.tensor(9.0).to(device))
        y[1::2] = torch.tensor([5.0, 6.0])
        results.append(y)
        z = torch.zeros(3, 4).to(device)
        z[:, 1].copy_(torch.arange(3.0))
        z.t()[2].copy_(torch.arange(3.0).to(device))
        z[1:, 2:] = 7
        z.unsqueeze(0)[..., 3] = torch.arange(3).to(device)
        results.append(z)
        results.append(torch.empty(2, 3).copy_(z[:2, ::2][:, :1]))
        results.append(torch.zeros(3, 4, dtype=torch.int32).copy_(z))
        results.append(y.expand(3, 4).to("cpu", copy=True))
        results.append(torch.broadcast_to(y.view(1, 4, 1), (1, 4, 3)).to("cpu", copy=True))
        results.append(z.flip(0).to("cpu", copy=True))
        results.append(z.t().to("cpu", copy=True))
        return results

    check(program)

    def wrong(device):
        torch.zeros(3, device=device).copy_(torch.ones(4))

    assert isinstance(check(wrong), RuntimeError)


def test_non_blocking_copies_are_right_once_waited_for():
    x = torch.arange(1 << 16, dtype=torch.float32)
    for _ in range(3):
        device = x.to(D, non_blocking=True)
        back = (device * 2).to("cpu", non_blocking=True)
        torch.flagos.synchronize()
        assert torch.equal(back, x * 2)


def test_copies_within_one_tensor():
    def program(device):
        x = torch.arange(6.0).to(device)
        x.copy_(x)
        y = torch.arange(6.0).to(device)
        y[:3].copy_(y[3:])
        return x, y

    check(program)


# --- storage -------------------------------------------------------------------------------------


def test_all_forms_of_set():
    def program(device):
        base = torch.arange(12.0).to(device)
        storage = base.untyped_storage()
        a = torch.empty(0, device=device).set_(storage)
        b = torch.empty(0, device=device).set_(storage, 2, (2, 3), (3, 1))
        c = torch.empty(0, device=device).set_(base[3:7])
        d = torch.ones(3, device=device).set_()
        e = torch.empty(0, device=device)
        e.data = base.view(3, 4)
        f = torch.empty(0, device=device).set_(storage, 1, (3,))
        g = torch.empty(0, device=device).set_(base, 4, (2, 2), (2, 1))
        b.fill_(-1)
        shared = [t.untyped_storage().data_ptr() == base.data_ptr() for t in (a, b, c, e, f, g)]
        return [a, b, c, d, e, f, g, shared, d.numel(), d.untyped_storage().nbytes()]

    check(program)
    base = torch.arange(12.0, device=D)
    assert torch.empty(0, device=D).set_(base.untyped_storage())._version == 1
    assert torch.ones(3, device=D).set_().device == torch.device(D, 0)


@pytest.mark.parametrize(
    "request_",
    [
        lambda t, s: t.set_(s, 0, (100,), (1,)),
        lambda t, s: t.set_(s, 8, (12,), (1,)),
        lambda t, s: t.set_(s, -1, (2,), (1,)),
        lambda t, s: t.set_(s, 0, (-2,), (1,)),
        lambda t, s: t.set_(s, 0, (2,), (-1,)),
        lambda t, s: t.set_(s, 0, (2, 2), (1,)),
        lambda t, s: t.set_(s, 0, (0,), (5,)),
    ],
)
def test_set_out_of_range_grows_or_raises_as_on_the_cpu(request_):
    def program(device):
        base = torch.arange(12.0).to(device)
        target = torch.empty(0, device=device)
        request_(target, base.untyped_storage())
        return target[:4].clone(), tuple(target.shape), target.stride(), base.untyped_storage().nbytes()

    check(program, text=False)


def test_set_never_reaches_past_the_end_of_its_storage():
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            x = torch.empty(0, device=D)
            x.set_(torch.arange(4.0, device=D).untyped_storage(), 0, (1000,), (1,))
            assert x.untyped_storage().nbytes() >= 4000 and x[:4].tolist() == [0, 1, 2, 3]


def test_set_to_a_storage_of_another_device_is_refused():
    for call in (
        lambda: torch.ones(2, device=D).set_(torch.ones(2).untyped_storage()),
        lambda: torch.ones(2).set_(torch.ones(2, device=D).untyped_storage()),
        lambda: torch.ones(2, device=D).set_(torch.ones(2)),
    ):
        with pytest.raises(RuntimeError, match="(?i)device|storage"):
            call()


def test_resize():
    def program(device):
        results = []
        x = torch.arange(6.0).to(device)
        view = x[1:3]
        pointer = x.data_ptr()
        x.resize_(2, 2)
        results += [x.clone(), x.data_ptr() == pointer]
        x.resize_(3)
        results.append(x.clone())
        x.resize_(100)
        x[6:] = 0
        results += [x[:4].clone(), view.clone(), x.untyped_storage().nbytes()]
        x.resize_(2, 3, 4, 4, memory_format=torch.channels_last)
        results += [x.stride()]
        x.resize_(0)
        results += [tuple(x.shape), x.untyped_storage().nbytes()]
        y = torch.arange(4.0).to(device)
        y.resize_as_(torch.empty(2, 2, device=device))
        results.append(y)
        z = torch.arange(4.0).to(device)[2:]
        z.resize_(4)
        z[2:] = 5
        results += [z, z.untyped_storage().nbytes()]
        return results

    check(program)
    for wrong in (
        lambda device: torch.ones(3, device=device).requires_grad_().resize_(4),
        lambda device: torch.ones(3, device=device).resize_(-1),
        lambda device: torch.ones(3, device=device).resize_(
            2, 3, memory_format=torch.channels_last
        ),
        lambda device: torch.ones(3, device=device).resize_(
            3, memory_format=torch.preserve_format
        ),
    ):
        assert isinstance(check(wrong), Exception)


def test_untyped_storage():
    def program(device):
        x = torch.arange(6.0).to(device)
        storage = x.untyped_storage()
        results = [storage.nbytes(), len(storage), storage.element_size()]
        storage.resize_(40)
        results.append(x.clone())
        storage.fill_(0)
        results.append(x.clone())
        other = torch.arange(10.0).to(device).untyped_storage()
        storage.copy_(other)
        results.append(x.clone())
        clone = storage.clone()
        results.append(torch.empty(0, device=device).set_(clone, 0, (6,)))
        results.append(bytes(storage.cpu().tolist()))
        return results

    check(program)
    storage = torch.ones(2, device=D).untyped_storage()
    assert storage.device == torch.device(D, 0) and storage.cpu().device.type == "cpu"
    assert storage.clone().device == storage.device
    assert torch.ones(2).untyped_storage().to(device=D).device == torch.device(D, 0)


def test_dead_storage():
    """Memory given back by hand, as FSDP does between uses of a parameter, and filled again."""
    x = torch.arange(4.0, device=D)
    storage = x.untyped_storage()
    nbytes = storage.nbytes()
    storage.resize_(0)
    assert x.shape == (4,) and storage.nbytes() == 0 and x.device == torch.device(D, 0)
    view = x.view(2, 2)
    assert view.untyped_storage()._cdata == storage._cdata
    storage.resize_(nbytes)
    x.copy_(torch.arange(4.0) * 2)
    assert view.tolist() == [[0, 2], [4, 6]] and (x + 1).tolist() == [1, 3, 5, 7]


def test_a_storage_of_no_bytes_serves_tensors_of_no_elements():
    def program(device):
        x = torch.empty(0, 3).to(device)
        return [x + 1, x.sum(), x.t(), torch.cat([x, x]), x.clone(), x.to(torch.int32), x.mean(0)]

    check(program)


def test_memory_lives_as_long_as_anything_uses_it():
    x = torch.ones(1000, device=D)
    view, alive = x[1:], weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    others = [torch.zeros(1000, device=D) for _ in range(20)]
    assert view.sum().item() == 999
    del others, view, alive


# --- lazy clones ---------------------------------------------------------------------------------


def test_lazy_clones():
    def program(device):
        x = torch.arange(4.0).to(device)
        y = torch._lazy_clone(x)
        z = torch._lazy_clone(y)
        results = [x + y, y.view(2, 2).t() @ z.view(2, 2), y.sum()]
        y[0] = 9
        results += [x.clone(), y.clone(), z.clone()]
        x.zero_()
        results += [x, y, z, y.detach(), y[1:], z.to(torch.int64)]
        return results

    check(program)


@pytest.mark.parametrize("touch", ["write", "read", "pointer", "view", "cpu"])
def test_a_lazy_clone_stays_on_its_device(touch):
    """Whatever materialises it, all of it keeps the label: tensor, storage, views."""
    x = torch.arange(4.0).to(D) + 0
    y = torch._lazy_clone(x)
    {
        "write": lambda: y.add_(1),
        "read": lambda: y + 1,
        "pointer": lambda: y.data_ptr(),
        "view": lambda: y[1:].zero_(),
        "cpu": lambda: y.copy_(torch.ones(4)),
    }[touch]()
    for tensor in (x, y, x.detach(), y.detach(), x[1:], y[1:], y.view(2, 2), y + x):
        assert tensor.device == tensor.untyped_storage().device == torch.device(D, 0)
    assert x.tolist() == [0, 1, 2, 3]


# --- names ---------------------------------------------------------------------------------------


def test_named_tensors():
    def program(device):
        x = torch.arange(6.0).to(device).view(2, 3).refine_names("N", "C")
        results = [
            x * 2,
            x.sum("C"),
            x.t(),
            x.align_to("C", "N"),
            x.softmax("C"),
            x.select("N", 1),
            x.rename(N="batch"),
            x + x.sum("N", keepdim=True),
            torch.zeros(2, 3, names=("N", "C"), device=device),
            x.transpose("N", "C").contiguous(),
            x.clone(),
            x.cpu().names,
            x.to(torch.float64),
            x.flatten(["N", "C"], "all"),
            x.mean("N"),
            x.rename(None).add_(1),
            x.add_(1),
            ]
        return results

    check(program)
    for wrong in (
        lambda x: x + x.rename(N="A"),
        lambda x: x.sum("nosuch"),
        lambda x: x.add_(x.rename("P", "Q")),
    ):
        program = lambda device, wrong=wrong: wrong(  # noqa: E731
            torch.zeros(2, 3, names=("N", "C"), device=device)
        )
        assert isinstance(check(program), RuntimeError)


def test_names_reach_an_out_tensor_and_no_other():
    def program(device):
        x = torch.ones(2, 3, names=("N", "C"), device=device)
        out = torch.empty(2, 3, device=device)
        torch.mul(x, 2, out=out)
        bystander = torch.ones(2, 3, device=device) + 1
        in_place = torch.ones(2, 3, device=device)
        in_place.add_(x)
        return [out, bystander, in_place, (bystander * 2).names]

    check(program)


# --- Python --------------------------------------------------------------------------------------


TEXTS = {
    "bool": torch.tensor([True, False]),
    "int8": torch.tensor([1, -2], dtype=torch.int8),
    "bfloat16": torch.tensor([1.5, 2.25], dtype=torch.bfloat16),
    "float": torch.tensor([1e-5, 1.0, 1e5]),
    "complex": torch.tensor([1 + 2j, -0.5j]),
    "0-dim": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "huge": torch.arange(10000.0).view(100, 100),
    "special": torch.tensor([float("nan"), float("inf"), -float("inf")]),
    "strided": torch.arange(12.0).view(3, 4).t(),
    "conj": torch.tensor([1 + 2j]).conj(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
    host = TEXTS[name]
    text = repr(host.to(D))
    assert "device='flagos:0'" in text
    plain = text.replace("device='flagos:0', ", "").replace(", device='flagos:0'", "")
    assert "".join(plain.split()) == "".join(repr(host).split())
    assert host.to(D).tolist() == host.tolist() or "special" == name


def test_text_of_what_requires_a_gradient():
    x = torch.ones(2, device=D, requires_grad=True)
    assert repr(x) == "tensor([1., 1.], device='flagos:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(x * 2)
    assert repr(torch.nn.Parameter(x)).startswith("Parameter containing:\ntensor([1., 1.], device=")
    assert f"{torch.tensor(1.5, device=D):.2f}" == "1.50"


def test_scalars():
    x = torch.tensor(2.5, device=D)
    assert float(x) == x.item() == 2.5 and int(x) == 2 and bool(x)
    assert torch.tensor(3, device=D).__index__() == 3
    assert [1, 2, 3][torch.tensor(1, device=D)] == 2
    assert len(torch.ones(3, device=D)) == 3 and torch.tensor(2, device=D) in torch.arange(5, device=D)
    for wrong in (torch.ones(2, device=D), torch.empty(0, device=D)):
        with pytest.raises(RuntimeError):
            wrong.item()
    assert [float(v) for v in torch.arange(3.0, device=D)] == [0, 1, 2]


def test_what_a_tensor_says_about_itself():
    x = torch.ones(2, 3, device=D)
    assert x.is_flagos and not x.is_cuda and not x.is_cpu
    assert x.type() == "torch.flagos.FloatTensor" and x.get_device() == 0
    assert x.device.type == D and str(x.device) == "flagos:0" and x.layout == torch.strided
    assert torch.ones(2).flagos().device == x.device
    assert isinstance(x, torch.Tensor) and x.is_leaf and x.is_contiguous()
    assert x.nbytes == 24 and x.element_size() == 4


def test_deepcopy_and_pickle():
    base = torch.arange(6.0, device=D)
    leaf = torch.ones(3, device=D, requires_grad=True)
    (leaf * 2).sum().backward()
    things = {
        "view": base[2:4],
        "whole": base,
        "leaf": leaf,
        "empty": torch.empty(0, device=D),
        "strided": base.view(2, 3).t(),
        "conj": torch.tensor([1 + 2j], device=D).conj(),
        "int8": torch.ones(2, dtype=torch.int8, device=D),
    }
    for make in (copy.deepcopy, lambda things: pickle.loads(pickle.dumps(things))):
        copied = make(things)
        for name, thing in things.items():
            assert copied[name].device == thing.device and copied[name].stride() == thing.stride()
            assert_same_values(copied[name], thing)
            assert copied[name].requires_grad == thing.requires_grad
        copied["whole"][2] = 100
        # What shared memory shares memory; pickle writes each storage by itself, as on the CPU.
        assert base[2] == 2 and copied["view"][0] == (100 if make is copy.deepcopy else 2)
    assert torch.equal(copy.deepcopy(leaf).grad.cpu(), leaf.grad.cpu())


@pytest.mark.parametrize("place", [None, "cpu", D, f"{D}:0", torch.device(D, 0), {f"{D}:0": "cpu"}])
@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(place, weights_only):
    base = torch.arange(6.0, device=D)
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:], "number": 3}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=place, weights_only=weights_only)
    wanted = "cpu" if place == "cpu" or isinstance(place, dict) else D
    assert loaded["base"].device.type == loaded["view"].device.type == wanted
    assert_same_values(loaded["base"], base)
    loaded["base"][2] = 9
    assert loaded["view"][0] == 9 and loaded["view"].storage_offset() == 2


def test_parameters_keep_their_identity():
    """Module.to changes a Parameter in place, so that ties and optimisers hold."""
    embed, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    model = torch.nn.Sequential(embed, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = [id(p) for p in model.parameters()]
    model.to(D)
    assert [id(p) for p in model.parameters()] == before
    assert head.weight is embed.weight and head.weight.device.type == D
    old = embed.weight.detach().clone()
    model(torch.tensor([1, 2], device=D)).sum().backward()
    optimizer.step()
    assert not torch.equal(embed.weight, old)
    loss = model(torch.tensor([1, 2], device=D)).sum()
    model.cpu()
    assert [id(p) for p in model.parameters()] == before and embed.weight.device.type == "cpu"
    assert embed.weight.grad.device.type == "cpu"
    del loss
    model.to(D).half().float().cpu().to(D)
    assert [id(p) for p in model.parameters()] == before


def test_data_may_be_exchanged_between_devices():
    p = torch.nn.Parameter(torch.ones(3))
    p.data = torch.zeros(3, device=D)
    assert p.device.type == D and p.tolist() == [0, 0, 0] and (p + 1).device.type == D
    p.data = torch.ones(2)
    assert p.device.type == "cpu" and p.tolist() == [1, 1]


def test_a_tensor_that_only_detach_gave_may_be_written_but_not_reshaped():
    def program(device):
        x = torch.ones(3, device=device)
        y = x.detach()
        torch.add(torch.ones(5, device=device), 1, out=y)
        return x, y

    check(program)


def test_state_of_both_operands_of_swap():
    a, b = torch.ones(2, device=D), torch.zeros(3)
    torch.utils.swap_tensors(a, b)
    assert a.device.type == "cpu" and b.device.type == D
    assert a.tolist() == [0, 0, 0] and (b + 1).tolist() == [2, 2]
    assert state(b)[0] == torch.device(D, 0)
