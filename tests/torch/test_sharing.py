"""Tensors of several processes. Where the host is the twin they share memory as CPU tensors do;
without a twin they cannot, and the error names the cure."""

import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp

import torch_fl

D = "flagos"
TWIN = torch_fl.platform()["twin"]
host_twin = pytest.mark.skipif(TWIN != "cpu", reason="needs the host as the twin")
no_twin = pytest.mark.skipif(TWIN is not None, reason="there is a twin")


def through(value):
    return ForkingPickler.loads(bytes(ForkingPickler.dumps(value)))


def double(numbers, answers):
    """In the other process: double what comes, in place, until None comes."""
    for tensor in iter(numbers.get, None):
        with torch.no_grad():
            tensor.mul_(2)
        answers.put((str(tensor.device), type(tensor).__name__, tensor.is_shared()))
    answers.put(torch.arange(3, device=D))
    numbers.get()  # Until the tensor has arrived.


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


# --- one process ---------------------------------------------------------------------------------


@host_twin
def test_memory_moves_into_shared_memory_once(strategy):
    x = torch.arange(6.0, device=D)
    view, pointer = x[2:], x.data_ptr()
    assert not x.is_shared() and x.share_memory_() is x
    assert x.is_shared() and view.is_shared() and x.data_ptr() != pointer
    pointer = x.data_ptr()
    assert x.share_memory_().data_ptr() == pointer
    view[0] = 9
    assert x.tolist() == [0, 1, 9, 3, 4, 5] and (x + 1).device == x.device
    assert not (x + 1).is_shared() and not x.clone().is_shared()
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1000)
    assert torch.empty(0, device=D).share_memory_().numel() == 0


@host_twin
def test_modules_share_their_memory(strategy):
    model = torch.nn.Linear(3, 2).to(D)
    result = model(torch.ones(1, 3, device=D))
    assert model.share_memory() is model
    assert all(p.is_shared() and p.device.type == D for p in model.parameters())
    assert torch.equal(model(torch.ones(1, 3, device=D)), result)
    model(torch.ones(1, 3, device=D)).sum().backward()


@host_twin
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0, device=D)[1:].view(5, 1),
        lambda: torch.nn.Parameter(torch.ones(3, device=D)),
        lambda: torch.eye(3, device=D).to_sparse(),
        lambda: torch.eye(3, device=D).to_sparse_csr(),
        lambda: torch.empty(0, 2, device=D),
        lambda: torch.ones(2, dtype=torch.bfloat16, device=D),
    ],
)
def test_what_arrives_is_what_was_sent(make, strategy):
    x = make()
    y = through(x)
    assert type(y) is type(x) and y.device == x.device and y.layout == x.layout
    assert y.dtype == x.dtype and y.requires_grad == x.requires_grad
    assert torch.equal(y.to_dense(), x.to_dense()) if x.is_sparse else True
    if x.layout == torch.strided and x.numel():
        assert y.stride() == x.stride() and torch.equal(x, y)
        x.detach().fill_(7)
        assert (y == 7).all()


@host_twin
def test_a_storage_that_is_sent_twice_arrives_once():
    x = torch.arange(6.0, device=D)
    first, second = through(x), through(x[3:])
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    a, b = through([x, x[:2]])
    a[0] = 5
    assert b[0] == 5 and second.storage_offset() == 3
    again = through(through(x))
    again[1] = 8
    assert x[1] == 8


@host_twin
def test_only_leaves_are_sent():
    with pytest.raises(RuntimeError, match="non-leaf"):
        through(torch.ones(2, device=D, requires_grad=True) * 2)


@host_twin
def test_threads_share_one_storage_at_once():
    for _ in range(20):
        x = torch.arange(4.0, device=D)
        threads = [threading.Thread(target=x.share_memory_) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert x.is_shared() and x.tolist() == [0, 1, 2, 3]


@no_twin
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.share_memory_(),
        lambda x: torch.nn.Parameter(x).share_memory_(),
        lambda x: torch.nn.ParameterList([x]).share_memory(),
        through,
        lambda x: through(x.untyped_storage()),
        lambda x: through([torch.nn.Parameter(x)]),
        lambda x: through(torch.diag(x).to_sparse()),
        lambda x: mp.get_context("spawn").SimpleQueue().put(x),
    ],
)
def test_without_a_twin_the_error_names_the_cure(call):
    x = torch.ones(2, device=D)
    with pytest.raises(RuntimeError, match=r"flagos.*'sim'.*tensor\.cpu\(\).*\.to\('flagos'\)"):
        call(x)
    assert not x.is_shared()


def test_tensors_of_the_host_are_sent_as_before():
    x = torch.arange(3.0)
    y = through(x)
    y[0] = 5
    assert x[0] == 5 and x.is_shared() and y.device.type == "cpu"
    assert through(torch.empty(2, device="meta")).device.type == "meta"


# --- two processes -------------------------------------------------------------------------------


@host_twin
def test_another_process_writes_into_the_same_memory():
    context = mp.get_context("spawn")
    numbers, answers = context.Queue(), context.Queue()
    process = context.Process(target=double, args=(numbers, answers))
    process.start()
    x, p = torch.arange(3.0, device=D), torch.nn.Parameter(torch.ones(2, device=D))
    for tensor in (x, p):
        numbers.put(tensor)
        assert answers.get(timeout=200) == ("flagos:0", type(tensor).__name__, True)
    numbers.put(None)
    arrived = answers.get(timeout=200)
    numbers.put(None)
    process.join(60)
    assert process.exitcode == 0
    assert x.tolist() == [0, 2, 4] and p.tolist() == [2, 2]
    assert arrived.tolist() == [0, 1, 2] and arrived.device == torch.device(D, 0)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index), device=D)


@host_twin
def test_workers_of_a_loader_give_flagos_tensors():
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    batches = list(loader)
    assert [batch.device.type for batch in batches] == [D, D]
    assert torch.cat(batches)[:, 0].tolist() == list(range(8))


@no_twin
def test_a_reader_of_a_queue_does_not_wait_for_ever():
    queue = mp.get_context("spawn").Queue()
    queue.put(torch.ones(2, device=D))
    with pytest.raises(RuntimeError, match=r"tensor\.cpu\(\)"):
        queue.get(timeout=100)
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn", timeout=100
    )
    with pytest.raises(RuntimeError, match=r"tensor\.cpu\(\)"):
        list(loader)
