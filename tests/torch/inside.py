"""Looking at a call from the inside: operators whose kernel for the twin is written in Python, so
that it can say what it was given, and do what no real kernel should do, while the caller's tensors
are watched."""

import itertools

import pytest
import torch

_numbers = itertools.count()


@pytest.fixture
def operator():
    """operator("(Tensor x) -> Tensor", kernel): a new operator with that kernel for the twin."""
    libraries = []

    def make(signature, kernel, key="CPU"):
        name = f"op{next(_numbers)}"
        library = torch.library.Library("fl_boxing", "FRAGMENT")
        libraries.append(library)
        library.define(name + signature)
        library.impl(name, kernel, key)
        return getattr(torch.ops.fl_boxing, name)

    yield make
    for library in libraries:
        library._destroy()
