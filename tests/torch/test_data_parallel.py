"""torch.nn.DataParallel, and the copies between devices that it is made of."""

import contextlib
import copy
import importlib

import pytest
import torch

import torch_fl

COUNT = torch.flagos.device_count()
several = pytest.mark.skipif(COUNT < 2, reason="needs two devices")
blocks = pytest.mark.parametrize("word, block", [("flagos", contextlib.nullcontext), ("cuda", torch_fl.as_cuda)])


def made():
    torch.manual_seed(3)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers)


@blocks
@pytest.mark.parametrize("of_host", [True, False])
def test_gradients_are_those_of_one_device(word, block, of_host):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(4))
    with block():
        alone = made().to(word)
        model = torch.nn.DataParallel(copy.deepcopy(alone))
        assert model.device_ids == list(range(COUNT))
        seen = []
        model.module.register_forward_hook(lambda module, args, out: seen.append(args[0].device.index))
        y, expected = model(x if of_host else x.to(word)), alone(x.to(word))
        assert sorted(seen) == list(range(COUNT)) and y.device == torch.device(word, 0)
        assert {parameter.device for parameter in model.parameters()} == {torch.device(word, 0)}
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        for ours, theirs in zip(model.module.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


@several
@blocks
def test_copies_between_devices(word, block):
    with block():
        comm = torch.cuda.comm if word == "cuda" else torch.flagos.comm
        if word == "cuda":
            assert importlib.import_module("torch.cuda.comm").scatter is not None
        zero, one = torch.device(word, 0), torch.device(word, 1)
        x = torch.arange(6.0, device=zero).view(2, 3)
        first, second = comm.broadcast(x, [zero, one])
        assert first is x and second.device == one and second.cpu().equal(x.cpu())
        out = [torch.zeros(2, 3, device=zero), torch.zeros(2, 3, device=one)]
        assert comm.broadcast(x, out=out)[1] is out[1] and out[1].cpu().equal(x.cpu())
        same, other = comm.broadcast_coalesced([x, x[0]], [0, 1])
        assert same[0] is x and [t.device for t in other] == [one, one]
        assert other[1].tolist() == [0, 1, 2]
        a, b = comm.scatter(x.cpu(), [0, 1], chunk_sizes=[1, 2], dim=1)
        assert a.tolist() == [[0], [3]] and b.tolist() == [[1, 2], [4, 5]] and b.device == one
        assert comm.gather([a, b], dim=1).equal(x) and comm.gather([a, b], 1, one).device == one
        assert comm.gather([a, b], 1, "cpu").tolist() == x.tolist()
        parts = [torch.zeros(2, 1, device=one), torch.zeros(2, 2, device=zero)]
        comm.scatter(x, dim=1, out=parts)
        assert parts[0].tolist() == a.tolist() and parts[1].tolist() == b.tolist()
        whole = torch.zeros(2, 3)
        assert comm.gather(parts, 1, out=whole) is whole and whole.tolist() == x.tolist()
        assert comm.reduce_add([x, second], 1).tolist() == (x * 2).tolist()
        total = comm.reduce_add_coalesced([[x], [second]], 0)[0]
        assert total.device == zero and total.equal(x * 2)


def test_copies_are_made_on_the_streams_given():
    stream = torch.flagos.Stream()
    (part,) = torch.flagos.comm.scatter(torch.arange(4.0), [0], streams=[stream])
    stream.synchronize()
    assert part.device == torch.device("flagos", 0) and part.tolist() == [0, 1, 2, 3]


@several
def test_wrong_sizes_and_places_raise():
    x = torch.zeros(4, device="flagos:0")
    with pytest.raises(RuntimeError, match="sum"):
        torch.flagos.comm.scatter(x, [0, 1], chunk_sizes=[1, 2])
    with pytest.raises(RuntimeError, match=r"devices\[0\]"):
        torch.flagos.comm.broadcast_coalesced([x], [1, 0])
    with pytest.raises(RuntimeError):
        torch.flagos.comm.gather([x, x.to("flagos:1")], out=torch.zeros(7))
