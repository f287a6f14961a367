"""Inputs that broke backends like this one, section D: conversion of modules, copies, pinned
memory, the memory's numbers. Files and sharing are in test_serialization.py and test_sharing.py."""

import copy
import gc

import pytest
import torch
from against_cpu import assert_same_values, check

import torch_fl

D = "flagos"
flagos = torch.flagos
COUNT = flagos.device_count()
PLATFORM = torch_fl.platform()["name"]
counted = pytest.mark.platforms("sim", "cuda")
MIB = 1 << 20


# --- conversion of modules -----------------------------------------------------------------------


def net(kind):
    torch.manual_seed(0)
    nn = torch.nn
    model = {
        "linear": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)),
        "norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)),
        "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0, batch_first=True),
    }[kind]()
    model.register_buffer("shared", next(model.parameters()).detach()[:1])
    return model


KINDS = ["linear", "norm", "parametrized", "spectral", "attention"]


def forward(model, device):
    x = torch.arange(12.0).sin().view(3, 4).to(device)
    x = x[None] if isinstance(model, torch.nn.TransformerEncoderLayer) else x
    return model(x).square().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_goes_to_and_fro_between_passes(kind):
    """Loops of offloading, with graphs alive and gradients kept; a Parameter stays the object."""
    moved, stayed = net(kind), net(kind)
    ids = [id(p) for p in moved.parameters()]
    hooks = []
    next(moved.parameters()).register_hook(lambda grad: hooks.append(grad.device.type))
    alive = []
    for _ in range(3):
        moved.to(D)
        loss, wanted = forward(moved, D), forward(stayed, "cpu")
        loss.backward(retain_graph=True)
        wanted.backward()
        alive.append(loss)
        assert all(p.grad.device.type == D for p in moved.parameters())
        moved.cpu()
        assert all(p.device.type == p.grad.device.type == "cpu" for p in moved.parameters())
        assert all(b.device.type == "cpu" for b in moved.buffers())
        torch.testing.assert_close(loss.detach().cpu(), wanted.detach())
    assert ids == [id(p) for p in moved.parameters()] and hooks == [D] * 3
    for left, right in zip(moved.parameters(), stayed.parameters()):
        torch.testing.assert_close(left.grad, right.grad)
    for left, right in zip(moved.state_dict().values(), stayed.state_dict().values()):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to(D, torch.float64).to("cpu", torch.float32),
        lambda m: m.to(D).half().float().bfloat16().to("cpu").float(),
        lambda m: m.flagos().double().cpu().float(),
        lambda m: m.to(torch.ones(1, device=D)).to(torch.ones(1)),
        lambda m: m.to(D, non_blocking=True).to("cpu", non_blocking=True),
        lambda m: m.to_empty(device=D).to_empty(device="cpu"),
        lambda m: m.apply(lambda part: part.to(D)).cpu(),
        lambda m: m._apply(lambda t: t.to(D)).cpu(),
        lambda m: m.requires_grad_(False).to(D).cpu().requires_grad_(True),
    ],
)
def test_every_way_to_convert(convert):
    model = net("norm")
    ids = [id(p) for p in model.parameters()]
    other = convert(model)
    flagos.synchronize()
    if other is model:
        assert ids == [id(p) for p in model.parameters()]
    assert {p.device.type for p in other.parameters()} == {"cpu"}
    assert all(p.dtype == torch.float32 and p.requires_grad for p in other.parameters())


@pytest.mark.parametrize("swap, overwrite", [(True, False), (False, True), (False, False)])
def test_torchs_settings_for_conversion(swap, overwrite):
    future = torch.__future__
    before = (
        future.get_swap_module_params_on_conversion(),
        future.get_overwrite_module_params_on_conversion(),
    )
    try:
        future.set_swap_module_params_on_conversion(swap)
        future.set_overwrite_module_params_on_conversion(overwrite)
        model = net("linear")
        ids = [id(p) for p in model.parameters()]
        state = {name: value.to(D) for name, value in model.state_dict().items()}
        model.to(D)
        assert (ids == [id(p) for p in model.parameters()]) == (not overwrite)
        model.load_state_dict(state)
        forward(model, D).backward()
        model.cpu()
        assert {p.device.type for p in model.parameters()} == {"cpu"}
        if not overwrite:
            assert {p.grad.device.type for p in model.parameters()} == {"cpu"}
        forward(model, "cpu").backward()
    finally:
        future.set_swap_module_params_on_conversion(before[0])
        future.set_overwrite_module_params_on_conversion(before[1])


def test_data_is_exchanged_in_every_direction():
    for start, end in (("cpu", D), (D, "cpu"), (D, f"{D}:{COUNT - 1}")):
        p = torch.nn.Parameter(torch.arange(3.0).to(start))
        view = p.detach()
        y = (p * p).sum()
        p.data = torch.full((3,), 5.0).to(end)
        assert p.device == torch.empty(0, device=end).device and p.tolist() == [5, 5, 5]
        assert p.requires_grad and p.is_leaf and view.tolist() == [0, 1, 2]
        (p * 2).sum().backward()
        assert p.grad.device == p.device and p.grad.tolist() == [2, 2, 2]
        assert y.item() == 5
        p.grad.data = torch.zeros(3).to(end)
        with pytest.raises(RuntimeError):
            p.grad = torch.zeros(3, device="cpu" if p.device.type == D else D)
        with pytest.raises(RuntimeError):
            p.data = torch.ones(3).to_sparse().to(end)


def test_state_goes_into_a_module_of_another_device():
    for here, there in ((D, "cpu"), ("cpu", D)):
        model, other = net("norm").to(here), net("norm").to(there)
        with torch.no_grad():
            [p.add_(1) for p in other.parameters()]
        model.load_state_dict(other.state_dict())
        for left, right in zip(model.parameters(), other.parameters()):
            assert left.device.type == torch.device(here).type
            assert_same_values(left, right)
        model.load_state_dict(other.state_dict(), assign=True)
        assert {p.device.type for p in model.parameters()} == {torch.device(there).type}
        optimizer = torch.optim.Adam(net("norm").to(here).parameters())
        source = torch.optim.Adam(other.parameters())
        forward(other, there).backward()
        source.step()
        optimizer.load_state_dict(source.state_dict())
        for p, s in optimizer.state.items():
            assert s["exp_avg"].device == p.device and s["step"].device.type == "cpu"
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(net("linear").to(D).parameters()),
        (fresh := net("linear").to(D)).parameters(),
    )
    assert {p.device.type for p in fresh.parameters()} == {D}


# --- deepcopy ------------------------------------------------------------------------------------


def test_deepcopy_of_what_holds_tensors():
    def program(device):
        base = torch.arange(8.0).to(device)
        tied = torch.nn.Linear(3, 3).to(device)
        model = torch.nn.ModuleDict({"one": tied, "same": tied})
        optimizer = torch.optim.Adam(model.parameters())
        model["one"](torch.ones(2, 3, device=device)).sum().backward()
        optimizer.step()
        things = {
            "base": base,
            "view": base[2:6],
            "transposed": base.view(2, 4).t(),
            "expanded": base[:1].expand(4),
            "conj": torch.complex(base, base).conj(),
            "neg": torch._neg_view(base),
            "empty": base[:0],
            "bool": base > 3,
            "no memory": torch.empty(0, device=device),
            "model": model,
            "optimizer": optimizer.state_dict(),
            "frozen": torch.nn.Parameter(base.clone(), requires_grad=False),
            "buffer": torch.nn.Buffer(base.clone()),
            "storage": base.untyped_storage(),
        }
        if device != "cpu":
            things["generator"] = torch.Generator(device).get_state()
        twice = copy.deepcopy(things)
        twice["base"][2] = 100
        twice["model"]["one"].weight.data.zero_()
        with pytest.raises(RuntimeError, match="explicitly by the user"):
            copy.deepcopy(base.requires_grad_() * 2)
        base.requires_grad_(False)
        results = [v for v in twice.values() if type(v) is torch.Tensor and v.dtype != torch.uint8]
        state = twice["optimizer"]["state"][0]
        return [
            results,
            [v for v in things.values() if type(v) is torch.Tensor and v.dtype != torch.uint8],
            state["exp_avg"],
            state["step"],
            twice["model"]["one"] is twice["model"]["same"],
            twice["model"]["same"].weight.data,
            twice["model"]["one"].weight.grad,
            tied.weight.data,
            isinstance(twice["buffer"], torch.nn.Buffer),
            twice["frozen"].requires_grad,
            twice["storage"].data_ptr() == twice["base"].untyped_storage().data_ptr(),
            copy.copy(base).data_ptr() == base.data_ptr(),
        ]

    check(program)


# --- pinned memory -------------------------------------------------------------------------------


def test_pinned_memory_in_every_form():
    x = torch.arange(24.0).view(4, 6)
    assert not x.is_pinned() and not x.to(D).is_pinned() and not x.untyped_storage().is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and torch.equal(pinned, x) and pinned.data_ptr() != x.data_ptr()
    assert pinned.pin_memory() is pinned or pinned.pin_memory().data_ptr() == pinned.data_ptr()
    for view in (pinned[1], pinned[:, ::2], pinned.t(), pinned[1:2].expand(3, 6), pinned.view(-1)):
        assert view.is_pinned() and torch.equal(view.to(D).cpu(), view)
        assert torch.equal(view.to(D, non_blocking=True).cpu(), view)
    for layout in (x.t(), x[1:, ::2], x[:0], x[0, 0], x.half(), x > 3):
        again = layout.pin_memory()
        assert torch.equal(again, layout) and again.dtype == layout.dtype
        assert again.is_pinned() or again.numel() == 0
    storage = x.untyped_storage().pin_memory()
    assert storage.is_pinned() and storage.nbytes() == x.untyped_storage().nbytes()
    assert x.storage().pin_memory().is_pinned()
    for made in (
        torch.empty(3, pin_memory=True),
        torch.zeros(3, pin_memory=True),
        torch.full((3,), 2.0, pin_memory=True),
        torch.arange(3, pin_memory=True),
        torch.rand(3, pin_memory=True),
        torch.tensor([1, 2], pin_memory=True),
        torch.empty_strided((2, 2), (1, 2), pin_memory=True),
        torch.empty_like(x, pin_memory=True),
        x.new_empty(3, pin_memory=True),
        torch.zeros_like(x, pin_memory=True),
    ):
        assert made.is_pinned() and made.device.type == "cpu"
    with torch.device(D):
        assert torch.empty(3, device="cpu", pin_memory=True).is_pinned()
    module = net("linear")
    module._apply(lambda t: t.pin_memory())
    assert all(p.is_pinned() for p in module.parameters())


def test_requests_for_a_pinned_copy_on_the_host():
    """What offloading parameters to the host asks for."""
    x = torch.arange(6.0, device=D).view(2, 3)
    for made in (
        torch.ops.aten._to_copy(x, device="cpu", pin_memory=True, non_blocking=True),
        torch.ops.aten._to_copy(x.t(), device="cpu", non_blocking=True),
        torch.empty_like(x, device="cpu", pin_memory=True).copy_(x),
        torch.zeros_like(x, device="cpu", pin_memory=True),
        x.new_empty(3, device="cpu", pin_memory=True),
        torch.empty_like(x.t(), device="cpu", pin_memory=True),
    ):
        assert made.is_pinned() and made.device.type == "cpu"
    flagos.synchronize()
    # PyTorch's _to_copy takes the request and pins what it does not wait for, on every device.
    for dtype in (torch.float32, torch.float64):
        copied = torch.ops.aten._to_copy(x.t(), dtype=dtype, device="cpu", pin_memory=True)
        assert torch.equal(copied, x.cpu().t().to(dtype)) and copied.device.type == "cpu"
    assert torch.ops.aten._to_copy(torch.ones(2), pin_memory=True).tolist() == [1, 1]
    for wrong in (
        lambda: torch.empty_like(x, pin_memory=True),
        lambda: torch.zeros(2, device=D, pin_memory=True),
        lambda: torch.rand(2, device=D, pin_memory=True),
        lambda: x.new_zeros(2, pin_memory=True),
        lambda: x.pin_memory(),
        lambda: x.untyped_storage().pin_memory(),
    ):
        with pytest.raises((RuntimeError, TypeError), match="(?i)pin"):
            wrong()


class Batch:
    def __init__(self, items):
        self.x = torch.stack(items)

    def pin_memory(self):
        self.x = self.x.pin_memory()
        return self


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_pins_its_batches(workers):
    data = [torch.full((2,), float(i)) for i in range(8)]
    options = dict(batch_size=4, pin_memory=True, num_workers=workers)
    torch.ones(1, device=D)  # In use before the workers start.
    for batch in torch.utils.data.DataLoader(data, **options):
        assert batch.is_pinned() and batch.to(D, non_blocking=True).shape == (4, 2)
    for batch in torch.utils.data.DataLoader(data, collate_fn=Batch, **options):
        assert isinstance(batch, Batch) and batch.x.is_pinned()
    nested = [{"x": t, "pair": (t, [t, "text", 3])} for t in data]
    for batch in torch.utils.data.DataLoader(nested, **options):
        assert batch["x"].is_pinned() and batch["pair"][1][0].is_pinned()
        assert batch["pair"][1][1][0] == "text"


# --- numbers of the memory -----------------------------------------------------------------------


@counted
def test_only_peaks_are_reset():
    gc.collect()
    before = flagos.memory_allocated()
    peak = torch.empty(8 * MIB, dtype=torch.uint8, device=D)
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=D)
    del peak
    assert flagos.max_memory_allocated() >= before + 12 * MIB
    for reset in (flagos.reset_peak_memory_stats, flagos.reset_accumulated_memory_stats):
        reset()
        assert flagos.memory_allocated() == before + 4 * MIB
        stats = flagos.memory_stats()
        assert stats["allocated_bytes.all.current"] == stats["active_bytes.all.current"]
        assert stats["allocated_bytes.all.current"] == before + 4 * MIB
        assert flagos.max_memory_allocated() == before + 4 * MIB
    y = torch.empty(2 * MIB, dtype=torch.uint8, device=D)
    assert flagos.max_memory_allocated() == before + 6 * MIB
    del x, y
    assert flagos.memory_allocated() == before
    assert min(v for k, v in flagos.memory_stats().items() if k.endswith("current")) >= 0


@counted
def test_every_form_of_a_device_has_numbers():
    torch.empty(1, device=f"{D}:{COUNT - 1}")
    for form in (None, 0, D, f"{D}:0", torch.device(D, 0), COUNT - 1, f"{D}:{COUNT - 1}"):
        stats = flagos.memory_stats(form)
        for key in ("allocated_bytes", "reserved_bytes", "active_bytes", "segment", "allocation"):
            for pool in ("all", "small_pool", "large_pool"):
                for what in ("current", "peak", "allocated", "freed"):
                    assert stats[f"{key}.{pool}.{what}"] >= 0
        assert flagos.memory_stats_as_nested_dict(form)["allocated_bytes"]["all"]["peak"] >= 0
        assert f"{D}:{0 if form in (None, D) else torch.device(form).index}" in (
            flagos.memory_summary(form)
        )
        assert 0 < flagos.mem_get_info(form)[0] <= flagos.mem_get_info(form)[1]
        assert flagos.max_memory_reserved(form) >= flagos.memory_reserved(form) >= 0
        flagos.reset_peak_memory_stats(form)
        flagos.reset_accumulated_memory_stats(form)
        if form is not None:
            assert torch.accelerator.memory_allocated(form) == flagos.memory_allocated(form)
    flagos.empty_cache()


@counted
def test_what_lies_in_the_cache_in_pieces_serves_a_large_request():
    """After an out-of-memory error, too: nothing is lost, the next request that fits succeeds."""
    flagos.empty_cache()
    limit = 96 * MIB
    total = flagos.get_device_properties().total_memory
    flagos.set_per_process_memory_fraction((flagos.memory_reserved() + limit) / total)
    try:
        before = flagos.memory_allocated()
        pieces = [torch.empty(3 * MIB, dtype=torch.uint8, device=D) for _ in range(24)]
        del pieces[::2]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(90 * MIB, dtype=torch.uint8, device=D)
        assert isinstance(caught.value, RuntimeError) and not isinstance(caught.value, MemoryError)
        del caught
        reused = [torch.empty(3 * MIB, dtype=torch.uint8, device=D) for _ in range(12)]
        del pieces, reused
        gc.collect()
        assert flagos.memory_allocated() == before
        large = torch.empty(80 * MIB, dtype=torch.uint8, device=D)  # Cached pieces are given back.
        del large
    finally:
        flagos.set_per_process_memory_fraction(1.0)
        flagos.empty_cache()
    assert flagos.memory_reserved() <= flagos.memory_allocated() + 20 * MIB
