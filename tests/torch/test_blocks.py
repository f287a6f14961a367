"""Blocks of torch_fl.as_cuda in several threads at once, one after the other and many times."""

import concurrent.futures
import gc
import threading

import pytest
import torch
from test_as_cuda import everything, exercise

import torch_fl

D = "flagos"


@pytest.fixture
def worker():
    """worker(call): in a thread that was started before and is not inside."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield lambda call: pool.submit(call).result()


def inside_view():
    """Whether every name means flagos."""
    x = torch.ones(2, device="cuda", requires_grad=True)
    y, seen = x * 2, []
    y.register_hook(lambda grad: seen.append(grad.to("cuda").is_cuda))
    y.sum().backward()
    return seen == [True] and x.device.type == "cuda" and torch.cuda.is_available()


def test_a_thread_that_outlives_its_block_is_in_no_other():
    ready, go, seen = threading.Event(), threading.Event(), []

    def run():
        seen.append(torch.ones(1, device="cuda").is_cuda)
        ready.set()
        go.wait()
        seen.append(torch.ones(1, device=D).device.type)

    with torch_fl.as_cuda():
        thread = threading.Thread(target=run)
        thread.start()
        ready.wait()
    with torch_fl.as_cuda():
        go.set()
        thread.join()
    assert seen == [True, D]


def test_threads_of_a_pool_that_is_made_inside():
    with torch_fl.as_cuda(), concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: inside_view(), range(4)))


def test_blocks_of_two_threads_that_overlap(worker):
    """The names come back with the last block; the default device is each thread's own."""
    with torch_fl.as_cuda():
        torch.set_default_device("cuda")
        context = torch_fl.as_cuda()
        worker(context.__enter__)
        assert worker(inside_view) and worker(lambda: torch.ones(1).device.type) == "cpu"
    assert torch.ones(1).device.type == "cpu" and torch.ones(1, device=D).device.type == D
    assert worker(inside_view)
    worker(lambda: context.__exit__(None, None, None))
    assert worker(lambda: torch.ones(1, device=D).device.type) == D
    assert "device" not in vars(torch.Tensor)


def test_thousands_of_blocks_leave_nothing(full):
    def cycles(count):
        for _ in range(count):
            with torch_fl.as_cuda():
                torch.ones(1, device="cuda")
        gc.collect()
        return len(gc.get_objects())

    with torch_fl.as_cuda():
        exercise()
    before, objects = everything(), cycles(100)
    assert abs(cycles(10000 if full else 1000) - objects) < 20
    assert everything() == before
