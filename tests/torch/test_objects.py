"""Tensors as Python objects: text, numbers, what they say of themselves, copies, files, parameters."""

import copy
import io
import pickle

import pytest
import torch
from against_cpu import assert_same_values, check, state

D = "flagos"


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
    assert len(torch.ones(3, device=D)) == 3 and torch.tensor(2, device=D) in torch.arange(
        5, device=D
    )
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


STORAGES = sorted(name for name in torch.cuda.__all__ if name.endswith("Storage"))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", STORAGES)
def test_typed_storages_are_as_those_of_torch(name):
    ours, theirs = getattr(torch.flagos, name), getattr(torch, name)
    dtype = theirs.dtype
    x = torch.arange(4).to(dtype)
    storage, wanted = x.to(D).storage(), x.storage()
    assert ours.dtype == dtype and isinstance(storage, ours) and not isinstance(storage, theirs)
    assert not isinstance(wanted, ours)
    assert not isinstance(torch.empty(1, dtype=torch.uint16, device=D).storage(), ours)
    assert storage.type() == f"torch.flagos.{name}" and storage.tolist() == wanted.tolist()
    made = ours(3)
    assert made.device.type == D and len(made) == 3 and made.dtype == dtype
    assert ours(storage.tolist()).tolist() == wanted.tolist()
    assert ours(wrap_storage=storage.untyped()).data_ptr() == storage.data_ptr()
    kept = io.BytesIO()
    torch.save(storage, kept)
    kept.seek(0)
    assert isinstance(torch.load(kept, weights_only=False), ours)
    with pytest.raises(RuntimeError, match="flagos storage"):
        ours.from_buffer(b"1234")
    with pytest.raises(RuntimeError, match="must be flagos"):
        ours(wrap_storage=wanted.untyped())


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
