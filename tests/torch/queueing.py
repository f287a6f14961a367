"""What the tests of the launch queue share: the queue is on while they run, and as it was afterwards."""

import functools

import pytest
import torch

import torch_fl
from torch_fl import queue

D = "flagos"
PLATFORM = torch_fl.platform()["name"]
TWIN = torch_fl.platform()["twin"]
with_twin = pytest.mark.platforms("cpu", "cuda")


@pytest.fixture(autouse=True)
def as_it_was():
    before = queue.is_on()
    if TWIN is not None:
        queue.set(True)
    yield
    if TWIN is not None:
        queue.drain()
        queue.set(before)


def warm_up(program):
    """The first call of an operator with some dtypes is never queued."""
    program()
    queue.drain()


def keep_busy(times=4):
    """Queue work that takes the worker some time."""
    large = large_matrix()
    for _ in range(times):
        torch.mm(large, large)


@functools.cache
def large_matrix():
    """Made when it is first asked for, and its product called once, which is never queued."""
    large = torch.randn(700, 700, device=D)
    torch.mm(large, large)
    queue.drain()
    return large


def queued(program):
    """How many tasks the program queued."""
    before = queue.stats()["queued"]
    program()
    return queue.stats()["queued"] - before
