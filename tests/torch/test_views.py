"""Views: metadata on the same memory, on every platform; a copy is never given in place of one."""

import random

import pytest
import torch
from against_cpu import check

from torch_fl import routes

D = "flagos"


def base(device, dtype=torch.float32):
    return torch.arange(24).view(2, 3, 4).to(dtype).clone().to(device)


VIEWS = {
    "view": lambda x: x.view(6, 4),
    "view -1": lambda x: x.view(-1, 2),
    "view dtype": lambda x: x.view(torch.int32),
    "view smaller dtype": lambda x: x.view(torch.int8),
    "view_as": lambda x: x.view_as(torch.empty(4, 6, device=x.device)),
    "reshape": lambda x: x.reshape(3, 8),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze dim": lambda x: x[:1].squeeze(0),
    "squeeze dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "t": lambda x: x[0].t(),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x.select(1, 2),
    "index number": lambda x: x[1, 2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "expand": lambda x: x[:1].expand(5, 3, 4),
    "expand_as": lambda x: x[:1].expand_as(torch.empty(5, 3, 4, device=x.device)),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 2, 3, 4)),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "unfold step": lambda x: x.unfold(1, 3, 2),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "diagonal offset": lambda x: x.diagonal(1, 1, 2),
    "as_strided": lambda x: x.as_strided((2, 5), (3, 2), 1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "real": lambda x: x.real,
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: x.split(2, 2)[1],
    "split sizes": lambda x: x.split([1, 3], 2)[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "tensor_split": lambda x: x.tensor_split(3, 2)[1],
    "hsplit": lambda x: x.hsplit(3)[1],
    "unsafe_split": lambda x: torch.unsafe_split(x, 1)[1],
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2)[1],
    "_unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, (6, 4)),
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, (4, 6), (6, 1)),
    "contiguous of contiguous": lambda x: x.contiguous(),
    "to of the same": lambda x: x.to(x.device, x.dtype),
    "adjoint": lambda x: x.adjoint(),
    "ravel": lambda x: x.ravel(),
    "view of a view": lambda x: x.transpose(0, 1)[1:].select(2, 3),
    "view of strided": lambda x: x[:, ::2].view(2, 2, 2, 2),
    "atleast_3d": lambda x: torch.atleast_3d(x[0]),
    "zero elements": lambda x: x[2:],
}
COMPLEX_VIEWS = {
    "view_as_real": torch.view_as_real,
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "conj": torch.conj,
    "conj.imag": lambda z: z.conj().imag,
    "mH": lambda z: z.mH,
    "adjoint": lambda z: z.adjoint(),
    "_neg_view": torch._neg_view,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_a_view(name):
    make = VIEWS[name]
    check(lambda device: make(base(device)))
    x = base(D)
    version = x._version
    view = make(x)
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert view.device == x.device and view._version == version
    if view.numel():
        assert view.data_ptr() == x.data_ptr() + view.storage_offset() * view.element_size()
    assert (view._base is x) == (make(base("cpu"))._base is not None) or view is x


@pytest.mark.parametrize("name", VIEWS)
def test_writing_through_a_view_changes_its_base(name):
    if "expand" in name or "broadcast" in name or "unfold" in name or "as_strided" == name:
        pytest.skip("its elements overlap")

    def program(device):
        x = base(device)
        view = VIEWS[name](x)
        before = x._version
        view.fill_(1)
        return x, view, x._version - before

    check(program)


@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_views_of_complex_numbers(name):
    make = COMPLEX_VIEWS[name]

    def program(device):
        z = torch.complex(torch.arange(6.0), torch.arange(6.0).flip(0)).view(2, 3).to(device)
        view = make(z)
        results = [view.clone(), view * 2]
        view.mul_(3)
        return [*results, z, view.resolve_conj().resolve_neg()]

    check(program)
    z = torch.randn(2, 3, dtype=torch.complex64, device=D)
    assert make(z).untyped_storage()._cdata == z.untyped_storage()._cdata


def test_view_as_complex():
    def program(device):
        x = torch.arange(8.0).to(device).view(4, 2)
        z = torch.view_as_complex(x)
        z.mul_(2)
        return x, z

    check(program)
    for wrong in (
        lambda device: torch.ones(3, device=device),
        lambda device: torch.ones(4, 3, device=device),
        lambda device: torch.ones(2, 4, device=device)[:, ::2],
        lambda device: torch.ones(2, 2, dtype=torch.int32, device=device),
    ):
        assert isinstance(check(lambda device: torch.view_as_complex(wrong(device))), RuntimeError)


WRONG = {
    "view": lambda x: x.transpose(0, 1).view(24),
    "view sizes": lambda x: x.view(5, 5),
    "view -1 -1": lambda x: x.view(-1, -1),
    "view negative": lambda x: x.view(-2, 12),
    "view dtype": lambda x: x.transpose(1, 2).view(torch.int64),
    "expand": lambda x: x.expand(3, 3, 4),
    "unfold": lambda x: x.unfold(2, 5, 1),
    "unfold step": lambda x: x.unfold(2, 2, 0),
    "as_strided": lambda x: x.as_strided((100,), (1,)),
    "as_strided negative": lambda x: x.as_strided((2,), (-1,)),
    "as_strided offset": lambda x: x.as_strided((1,), (1,), 24),
    "select": lambda x: x.select(0, 2),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "permute": lambda x: x.permute(0, 0, 1),
    "squeeze": lambda x: x.squeeze(5),
    "diagonal": lambda x: x.diagonal(0, 1, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_a_view_raises_and_never_copies(name):
    def program(device):
        return WRONG[name](base(device))

    assert isinstance(check(program), Exception)


@pytest.mark.parametrize("name", [name for name in VIEWS if "zero" not in name])
def test_gradients_flow_through_views(name):
    if "dtype" in name or name == "detach":
        pytest.skip("has no gradient")

    def program(device):
        x = (base(device) / 7).requires_grad_()
        view = VIEWS[name](x * 1)
        (view * view).sum().backward()
        return x.grad

    check(program)


def test_a_view_never_goes_through_the_cpu():
    """No view has a route that copies, and none of the calls above took one."""
    routes.reset_counts()
    x = base(D)
    before = routes.report().calls.get("cpu", 0)
    for make in VIEWS.values():
        make(x)
    assert routes.report().calls.get("cpu", 0) == before
    for name in (
        "view",
        "as_strided",
        "unfold",
        "_reshape_alias",
        "view_as_real",
        "view_as_complex",
    ):
        assert routes.read(name).possible == ("view",)


def test_every_operator_whose_result_aliases_is_served_without_a_copy():
    """By schema, not by a list: an operator that returns an alias it does not write has no route
    `cpu`, and no kernel of the twin stands in for a view."""
    wrong = []
    for name in routes.operators():
        if not name.startswith("aten::"):
            continue
        base_name, _, overload = name[len("aten::") :].partition(".")
        packet = getattr(torch.ops.aten, base_name, None)
        if packet is None or (overload or "default") not in packet.overloads():
            continue
        schema = getattr(packet, overload or "default")._schema
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
        if base_name.startswith("_nested") or not has_kernel:
            continue  # A composite, or one for nested and sparse tensors only.
        aliases = any(
            result.alias_info is not None and not result.alias_info.is_write
            for result in schema.returns
        )
        if aliases and routes.read(name).initial == "cpu":
            wrong.append(name)
    assert wrong == []


def test_unfold_writes_into_its_base():
    """Written through windows that do not overlap."""

    def program(device):
        x = torch.zeros(6, device=device)
        x.unfold(0, 2, 2).copy_(torch.arange(6.0).view(3, 2))
        y = torch.zeros(6, device=device)
        y.unfold(0, 2, 2)[1] = 5
        return x, y

    check(program)


def test_repeat_and_unfold_values():
    def program(device):
        x = torch.arange(6.0).to(device)
        m = x.view(2, 3)
        return [
            x.repeat(2),
            x.repeat(2, 3),
            m.repeat(2, 1, 2),
            m.t().repeat(1, 2),
            x.repeat(0),
            x[::2].repeat(3),
            m.expand(4, 2, 3).repeat(1, 1, 2),
            x.unfold(0, 2, 1),
            m.t().unfold(0, 2, 1),
            m.tile((2, 2)),
            x.repeat_interleave(2),
            x.repeat_interleave(torch.tensor([1, 0, 2, 1, 0, 3], device=device)),
            torch.nn.functional.unfold(m.view(1, 1, 2, 3), (2, 2)),
        ]

    check(program)


def test_views_and_in_place_share_autograd_state():
    def program(device):
        x = torch.arange(6.0).to(device).requires_grad_()
        y = x * 2
        y[1:3].mul_(3)
        y.view(2, 3)[1].add_(y[:3])
        y.sum().backward()
        return y, x.grad

    check(program)

    def saved_and_changed(device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x * 1
        z = y * y
        y.view(3)[0] = 5
        z.sum().backward()

    assert isinstance(check(saved_and_changed, text=False), RuntimeError)


def test_views_in_no_grad_and_inference_mode():
    def program(device):
        x = base(device)
        with torch.no_grad():
            y = x.view(6, 4)
            y[0] = 9
        with torch.inference_mode():
            z = x.view(4, 6)
            w = torch.ones(4, device=device)[1:]
            w.add_(1)
        return x, y, z, w, z.is_inference(), w.is_inference(), y._base is x

    check(program)


# --- layouts at random ---------------------------------------------------------------------------


def random_layout(rng):
    """A host tensor, contiguous, permuted, or of strides that overlap and leave gaps."""
    shape = [rng.choice([0, 1, 1, 2, 3, 4, 6]) for _ in range(rng.randint(0, 4))]
    kind = rng.choice(["contiguous", "permuted", "strided"])
    if kind == "strided":
        strides = [rng.choice([0, 1, 2, 5, 12]) for _ in shape]
        return torch.arange(400.0).as_strided(shape, strides, rng.randint(0, 3))
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return x.permute(rng.sample(range(len(shape)), len(shape))) if kind == "permuted" else x


def random_size(rng, numel):
    if numel == 0 or rng.random() < 0.4:
        return [rng.choice([-1, 0, 1, 2, 3, 4, 6, 12]) for _ in range(rng.randint(0, 4))]
    size = []
    while numel > 1 and len(size) < 4:
        size.append(rng.choice([d for d in range(1, numel + 1) if numel % d == 0]))
        numel //= size[-1]
    size.append(numel)
    if rng.random() < 0.4:
        size[rng.randrange(len(size))] = -1
    return size


def random_view(rng, x):
    """A view of a tensor, right or wrong, as a function of the tensor alone."""
    kind = rng.choice(["view", "slice", "as_strided"])
    if kind == "view":
        size = random_size(rng, x.numel())
        return lambda z: z.view(size)
    if kind == "slice":
        places = [None, -7, -2, -1, 0, 1, 2, 3, 9, 2**63 - 1]
        arguments = (rng.randint(-5, 4), rng.choice(places), rng.choice(places))
        step = rng.choice([1, 1, 2, 3, 0, -1, 2**62])
        return lambda z: torch.ops.aten.slice(z, *arguments, step)
    dims = rng.randint(0, 4)
    size = [rng.choice([0, 1, 2, 3]) for _ in range(dims)]
    stride = [rng.choice([-1, 0, 1, 3, 50, 5000]) for _ in range(rng.choice([dims, dims, dims + 1]))]
    offset = rng.choice([None, 0, 3, -1, 4000])
    return lambda z: z.as_strided(size, stride, offset)


def seen(view, x):
    """What a view is, or how it was refused."""
    try:
        made = view(x)
    except Exception as error:
        return type(error), str(error).split("\n")[0].replace("flagos:0", "cpu")
    assert made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return made.shape, made.stride(), made.storage_offset(), made.cpu().tolist()


def test_random_layouts_are_viewed_and_refused_as_on_the_host(full):
    for seed in range(6000 if full else 1500):
        rng = random.Random(seed)
        host = random_layout(rng)
        whole = torch.empty(0).set_(host.untyped_storage())
        x = whole.to(D).as_strided(host.shape, host.stride(), host.storage_offset())
        view = random_view(rng, host)
        assert seen(view, x) == seen(view, host), f"seed {seed}"
