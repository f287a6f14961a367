"""Files of tensors: every form of place and of file, between flagos, the host and `cuda`."""

import copy
import io
import pickle

import pytest
import torch

D = "flagos"
COUNT = torch.flagos.device_count()
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


def things(device):
    base = torch.arange(6.0, device=device)
    return {
        "base": base,
        "view": base[2:].view(2, 2).t(),
        "parameter": torch.nn.Parameter(torch.ones(2, 2, device=device)),
        "half": torch.ones(3, dtype=torch.bfloat16, device=device),
        "empty": torch.empty(0, 3, device=device),
        "scalar": torch.tensor(True, device=device),
    }


def saved(objects, **how):
    file = io.BytesIO()
    torch.save(objects, file, **how)
    return file.getvalue()


def assert_loaded(loaded, device):
    """The things of `things` on a device, still sharing what they shared."""
    for name, wanted in things("cpu").items():
        found = loaded[name]
        assert found.device == torch.device(device) and type(found) is type(wanted), name
        assert found.dtype == wanted.dtype and found.stride() == wanted.stride()
        assert torch.equal(found.cpu(), wanted) and found.requires_grad == wanted.requires_grad
    loaded["base"][2] = 9
    assert loaded["view"][0, 0] == 9


PLACES = {
    "none": (None, None),
    "str": (D, f"{D}:0"),
    "indexed": (f"{D}:0", f"{D}:0"),
    "device": (torch.device(D), f"{D}:0"),
    "cpu": ("cpu", "cpu"),
    "dict": ({"cpu": D, f"{D}:0": "cpu"}, "swapped"),
    "function": (lambda storage, place: storage.flagos(), f"{D}:0"),
    "function that declines": (lambda storage, place: None, None),
}


@pytest.mark.parametrize("source", ["cpu", D])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("weights_only", [True, False])
def test_every_place(source, name, zipped, weights_only):
    place, wanted = PLACES[name]
    own = "cpu" if source == "cpu" else f"{D}:0"
    if wanted == "swapped":
        wanted = "cpu" if own != "cpu" else f"{D}:0"
    data = saved(things(source), _use_new_zipfile_serialization=zipped)
    loaded = torch.load(io.BytesIO(data), map_location=place, weights_only=weights_only)
    assert_loaded(loaded, wanted or own)


@pytest.mark.parametrize("source, place", [("cpu", D), (D, "cpu"), (D, None), (D, D)])
def test_files_that_are_mapped(source, place, tmp_path):
    torch.save(things(source), tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt", map_location=place, mmap=True)
    assert_loaded(loaded, f"{D}:0" if D in (source, place) and place != "cpu" else "cpu")


@pytest.mark.parametrize("tag", ["cuda", "cuda:0", "cuda:7"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", [D, "cpu", "dict"])
def test_files_that_were_written_on_cuda(tag, zipped, place, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: tag)
    data = saved(things("cpu"), _use_new_zipfile_serialization=zipped)
    monkeypatch.undo()
    assert tag.encode() in data
    if place == "dict":
        place = {tag: f"{D}:0"}
    loaded = torch.load(io.BytesIO(data), map_location=place)
    assert_loaded(loaded, "cpu" if place == "cpu" else f"{D}:0")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="map_location"):
            torch.load(io.BytesIO(data))


@two_devices
def test_the_index_is_kept():
    data = saved(things(f"{D}:1"))
    for place, wanted in ((None, 1), (f"{D}:1", 1), (f"{D}:0", 0), ({f"{D}:1": f"{D}:0"}, 0)):
        assert_loaded(torch.load(io.BytesIO(data), map_location=place), f"{D}:{wanted}")
    with torch.flagos.device(1):
        assert_loaded(torch.load(io.BytesIO(data), map_location=D), f"{D}:1")


def test_a_device_that_there_is_not_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: f"{D}:{COUNT + 3}")
    data = saved(things("cpu"))
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=f"{COUNT + 3}.*{COUNT}.*map_location"):
        torch.load(io.BytesIO(data))


def test_saving_through_pinned_memory():
    from torch.utils.serialization import config

    with config.patch({"save.use_pinned_memory_for_d2h": True}):
        assert_loaded(torch.load(io.BytesIO(saved(things(D)))), f"{D}:0")


def test_training_goes_on_from_a_file():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(8, 4, device=D)

    def steps(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.state_dict().values()]

    steps(model, optimizer)
    data = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    again = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(D)
    other = torch.optim.AdamW(again.parameters())
    for place in (None, "cpu"):  # From the host as well: load_state_dict moves what it is given.
        state = torch.load(io.BytesIO(data), map_location=place)
        again.load_state_dict(state["model"])
        other.load_state_dict(state["optimizer"])
        moments = [state["exp_avg"] for state in other.state.values()]
        assert moments and all(moment.device.type == D for moment in moments)
    assert all(map(torch.equal, steps(model, optimizer), steps(again, other)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_modules_are_tied_as_the_originals(copied):
    embed, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    model = torch.nn.Sequential(embed, head).to(D)
    other = copied(model)
    assert other[0].weight is other[1].weight and other[0].weight.device.type == D
    assert torch.equal(other[0].weight, model[0].weight)
    assert other[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_storages_are_copied_and_written():
    storage = torch.arange(3.0, device=D).untyped_storage()
    for other in (copy.copy(storage), copy.deepcopy(storage)):
        assert other.device == storage.device and other.tolist() == storage.tolist()
        assert other.data_ptr() != storage.data_ptr()
    typed = torch.arange(3.0, device=D).storage()
    other = torch.load(io.BytesIO(saved(typed)), weights_only=False)
    assert other.device == typed.device and other.tolist() == [0, 1, 2]


def test_safetensors(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = {"a": torch.arange(6.0, device=D).view(2, 3), "b": torch.ones(2, device=D).half()}
    save_file(tensors, tmp_path / "file.safetensors")
    for device in (D, f"{D}:0", torch.device(D)):
        loaded = load_file(tmp_path / "file.safetensors", device=device)
        assert all(loaded[name].device == torch.device(D, 0) for name in tensors)
        assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    for device in ("cpu", 0):
        loaded = load_file(tmp_path / "file.safetensors", device=device)
        assert loaded["a"].device.type == ("cpu" if device == "cpu" else D)
    with safe_open(tmp_path / "file.safetensors", framework="pt", device=D) as file:
        assert file.get_slice("a")[:, 1:].tolist() == [[1, 2], [4, 5]]
        assert file.get_tensor("b").device == torch.device(D, 0)


# --- constructors --------------------------------------------------------------------------------


def test_a_tensor_makes_others_of_its_kind():
    x = torch.ones(2, dtype=torch.half, device=D)
    for made, shape in (
        (x.new(2, 3), (2, 3)),
        (x.new([1, 2, 3]), (3,)),
        (x.new(), (0,)),
        (x.new(torch.Size([4])), (4,)),
        (x.new_empty(2), (2,)),
        (x.new_zeros((1, 2)), (1, 2)),
        (x.new_full((2,), 3), (2,)),
        (x.new_tensor([1.0]), (1,)),
        (x.new_empty_strided((2, 2), (1, 2)), (2, 2)),
    ):
        assert (made.device, made.dtype, tuple(made.shape)) == (x.device, torch.half, shape)


def test_names_of_types():
    x = torch.ones(2, device=D)
    assert x.type() == "torch.flagos.FloatTensor"
    assert x.type("torch.flagos.HalfTensor").dtype == torch.half
    assert x.type(torch.int32).device == x.device
    assert x.type("torch.DoubleTensor").device.type == "cpu"
    assert torch.ones(2).type("torch.flagos.LongTensor").device == x.device
    assert x.type_as(torch.ones(1, dtype=torch.int8)).device.type == "cpu"
    assert torch.ones(2).type_as(x).device == x.device
    assert x.to_sparse().type() == "torch.flagos.sparse.FloatTensor"


@pytest.mark.parametrize("name", [n for n in torch.cuda.__all__ if n.endswith("Tensor")])
def test_typed_constructors(name):
    typed, plain = getattr(torch.flagos, name), getattr(torch, name)
    for arguments in ((2, 3), ([1, 0],), (), (torch.Size([2]),)):
        made = typed(*arguments)
        assert made.device == torch.device(D, 0) and made.shape == plain(*arguments).shape
        assert made.dtype == typed.dtype == plain.dtype and isinstance(made, typed)
    assert typed([1, 0]).tolist() == plain([1, 0]).tolist()
    assert torch.ones(2).type(typed).dtype == typed.dtype and not isinstance(plain(2), typed)
    assert repr(typed) == f"<class 'torch.flagos.{name}'>" and pickle.loads(pickle.dumps(typed))
