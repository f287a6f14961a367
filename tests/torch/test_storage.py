"""Storage of tensors: set_, resize_, memory that comes and goes, lazy clones."""

import gc
import weakref

import pytest
import torch
from against_cpu import check

D = "flagos"


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
        return (
            target[:4].clone(),
            tuple(target.shape),
            target.stride(),
            base.untyped_storage().nbytes(),
        )

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
        lambda device: torch.ones(3, device=device).resize_(3, memory_format=torch.preserve_format),
    ):
        assert isinstance(check(wrong, text=False), Exception)  # PyTorch speaks of overflow.


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
    # No kernel gets to read or write where there is nothing.
    for use in (
        lambda: x + 1,
        lambda: view.mul_(2),
        lambda: torch.add(torch.ones(4, device=D), 1, out=x),
        lambda: torch.cat([torch.ones(4, device=D), x]),
        lambda: torch._foreach_add_([x], 1),
        lambda: x.cpu(),
        lambda: x.copy_(torch.ones(4)),
        lambda: x.to(torch.int32),
    ):
        with pytest.raises(RuntimeError, match="has no memory: its storage was resized to 0 bytes"):
            use()
    assert x._version == 0 and storage.nbytes() == 0
    storage.resize_(nbytes)
    x.copy_(torch.arange(4.0) * 2)
    assert view.tolist() == [[0, 2], [4, 6]] and (x + 1).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize(
    "resize",
    (
        lambda x: x.resize_(3),
        lambda x: x.resize_(2, 3),
        lambda x: x.resize_as_(torch.ones(5, device=D)),
        lambda x: x.set_(torch.zeros(2, device=D)),
    ),
)
def test_another_size_gives_dead_storage_memory(resize):
    x = torch.arange(4.0, device=D)
    x.untyped_storage().resize_(0)
    resize(x).fill_(7)
    assert x.cpu().unique().tolist() == [7] and x.untyped_storage().nbytes() == 4 * x.numel()


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


def test_bytes_are_swapped():
    def program(device):
        x = torch.tensor([1.0, 2.5, -3.0], device=device)
        x.untyped_storage().byteswap(torch.float32)
        return x.view(torch.int32)

    check(program)
