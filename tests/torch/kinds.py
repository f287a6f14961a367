"""Compare tensors that hold other tensors: sparse, quantized and nested ones.

A tensor is taken apart into plain tensors and numbers, each of which must equal the CPU's; and every
part of a flagos tensor must say that it lies on flagos, whatever serves it. Where an accelerator is
the twin its strides are not the CPU's; opinfo/ compares those with the twin's own.
"""

import torch
from against_cpu import EXACT, plain, run
from parts import BY_ROW, COMPRESSED, LAYOUTS, blocks, name_of  # noqa: F401 (for the tests)
from parts import parts as taken
from torch.utils._pytree import tree_map

import torch_fl

HAS_TWIN = torch_fl.platform()["twin"] is not None


def parts(tensor):
    """As in parts.py, with what can be compared with the CPU. A copy from the host fills its memory
    where there is no twin. Other kernels than the CPU's lay results out, and merge entries, in their
    own way."""
    return taken(tensor, strides=HAS_TWIN and EXACT, merged=not EXACT)


def is_plain(tensor):
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def assert_same_values(got, wanted):
    """Equal values, NaN where the other has NaN; rounding is forgiven where kernels differ."""
    got, wanted = got.detach().cpu(), wanted.detach()
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if not EXACT:
        torch.testing.assert_close(got, wanted, equal_nan=True)
        return
    if got.is_complex():
        got, wanted = torch.view_as_real(got.resolve_conj()), torch.view_as_real(
            wanted.resolve_conj()
        )
    equal = got == wanted
    if got.is_floating_point():
        equal |= (got != got) & (wanted != wanted)
    assert bool(equal.all()), (got, wanted)


def assert_same(got, wanted, device="flagos"):
    """`got` was made on `device` and `wanted` in the same way on the CPU."""
    if isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted) and len(got) == len(wanted)
        for one, other in zip(got, wanted):
            assert_same(one, other, device)
    elif not isinstance(wanted, torch.Tensor):
        assert type(got) is type(wanted)
        assert got == wanted or (got != got and wanted != wanted)
    else:
        assert isinstance(got, torch.Tensor), got
        assert got.device.type == device
        facts, held = parts(got)
        wanted_facts, wanted_held = parts(wanted)
        other = {
            fact: (facts[fact], wanted_facts[fact])
            for fact in facts
            if facts[fact] != wanted_facts[fact]
        }
        assert not other
        assert list(held) == list(wanted_held)
        if is_plain(wanted):
            assert_same_values(got, wanted)
        for name in held:
            assert_same(held[name], wanted_held[name], device)


def check(program):
    """`program(device)` gives on flagos what it gives on the CPU, or raises the same class of
    error. Answers what flagos gave."""
    wanted, wanted_error = run(program, "cpu")
    got, error = run(program, "flagos")
    if wanted_error is not None:
        assert error is not None, f"no error, but the CPU says: {wanted_error}"
        assert type(error) is type(wanted_error), (error, wanted_error)
        return error
    if error is not None:
        raise error
    assert_same(got, wanted)
    return got


def check_error(program, match):
    """The same, for a program that must raise, with a sentence that contains `match`."""
    error = check(program)
    assert isinstance(error, Exception), error
    assert match in plain(error)
    return error


def moved(value, device):
    """A copy of a nesting of tensors on `device`. Leaves that want a gradient still do; arguments
    that name the CPU name `device`."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            copy = leaf.detach().to(device, copy=True)
            if is_plain(leaf) and copy.stride() != leaf.stride() and 0 not in leaf.stride():
                copy = torch.empty_strided(
                    leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device
                ).copy_(copy)
            return copy.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device(device)
        return device if isinstance(leaf, str) and leaf == "cpu" else leaf

    return tree_map(move, value)
