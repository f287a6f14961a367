"""Gradients through sparse tensors, sparse gradients of embeddings and the optimisers that take
them, on flagos as on the CPU."""

import pytest
import torch
from kinds import COMPRESSED, LAYOUTS, blocks, check, name_of
from test_sparse import coo, dense, sparse
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.platforms("cpu", "sim", "cuda")


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_to_sparse_and_back(layout):
    def program(device):
        x = dense(4, 4).to(device).requires_grad_()
        made = x.to_sparse(layout=layout, blocksize=blocks(layout))
        made.to_dense().pow(2).sum().backward()
        return made, x.grad

    check(program)


def test_product_with_coo():
    def program(device):
        s, x = coo(device).requires_grad_(), dense(3, 4).to(device).requires_grad_()
        result = torch.sparse.mm(s, x)
        result.sum().backward()
        return result, x.grad, s.grad

    check(program)


@pytest.mark.parametrize("layout", COMPRESSED, ids=name_of)
def test_product_with_compressed(layout):
    def program(device):
        s, x = sparse(device, layout).requires_grad_(), dense(6, 2).to(device).requires_grad_()
        (s @ x).sum().backward()
        return x.grad, s.grad

    check(program)


def test_sum_softmax_coalesce_and_mask():
    def program(device):
        s = coo(device).requires_grad_()
        torch.sparse.sum(s.coalesce(), 0).to_dense().sum().backward()
        t = coo(device).requires_grad_()
        torch.sparse.softmax(t, 1).to_dense().pow(2).sum().backward()
        x = dense(2, 3).to(device).requires_grad_()
        x.sparse_mask(coo(device).coalesce()).to_dense().sum().backward()
        return s.grad, t.grad, x.grad

    check(program)


def test_hooks_and_leaves():
    def program(device):
        seen = []
        x = dense(3, 3).to(device).requires_grad_()
        s = x.to_sparse()
        s.register_hook(seen.append)
        s.to_dense().sum().backward()
        return seen, x.grad

    check(program)


def test_gradcheck():
    s = coo("flagos", torch.float64)
    x = dense(3, 2, dtype=torch.float64).to("flagos").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: torch.sparse.mm(s, x), x)
    assert torch.autograd.gradgradcheck(lambda x: torch.sparse.mm(s, x), x)


# --- embeddings ----------------------------------------------------------------------------------


def embedding_steps(device, module, optimiser, arguments, **options):
    module, gradients = module.to(device), []
    arguments = [argument.to(device) for argument in arguments]
    optimiser = optimiser(list(module.parameters()), **options)
    for _ in range(5):
        optimiser.zero_grad()
        module(*arguments).pow(2).sum().backward()
        gradients.append(module.weight.grad.clone())
        optimiser.step()
    return gradients, module.weight.detach()


@pytest.mark.parametrize(
    "optimiser, options",
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SparseAdam, {"lr": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.1}),
    ],
    ids=["SGD", "SparseAdam", "Adagrad"],
)
def test_embedding_trained(optimiser, options):
    def program(device):
        rows = torch.tensor([1, 1, 4])
        bag = nn.EmbeddingBag(5, 3, sparse=True, mode="sum")
        return (
            embedding_steps(device, nn.Embedding(5, 3, sparse=True), optimiser, [rows], **options),
            embedding_steps(device, bag, optimiser, [rows, torch.tensor([0, 2])], **options),
        )

    check(program)


def test_sparse_gradients_accumulate():
    def program(device):
        sparse_only, mixed = (torch.ones(5, 3).to(device).requires_grad_() for _ in range(2))
        for row in range(3):
            F.embedding(
                torch.tensor([row, 1]).to(device), sparse_only, sparse=True
            ).sum().backward()
        F.embedding(torch.tensor([0]).to(device), mixed, sparse=True).sum().backward()
        mixed.sum().backward()
        return sparse_only.grad.coalesce(), mixed.grad

    check(program)


def test_sparse_gradients_are_clipped():
    def program(device):
        module = nn.Embedding(5, 3, sparse=True).to(device)
        module(torch.tensor([1, 1]).to(device)).sum().backward()
        return nn.utils.clip_grad_norm_(module.parameters(), 0.1), module.weight.grad

    check(program)


def test_modules_hold_sparse_tensors():
    def program(device):
        module = nn.Module()
        module.register_buffer("buffer", coo("cpu"))
        module.parameter = nn.Parameter(coo("cpu").coalesce().clone())
        module.to(device)
        return module.buffer, module.state_dict()["buffer"], module.parameter.detach()

    check(program)
