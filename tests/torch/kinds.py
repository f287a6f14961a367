"""Compare tensors that hold other tensors: sparse, quantized and nested ones.

A tensor is taken apart into plain tensors and numbers, each of which must equal the CPU's; and every
part of a flagos tensor must say that it lies on flagos, whatever serves it. Where an accelerator is
the twin its strides are not the CPU's; opinfo/ compares those with the twin's own.
"""

import torch
from against_cpu import EXACT, plain, run
from torch.utils._pytree import tree_map

import torch_fl

HAS_TWIN = torch_fl.platform()["twin"] is not None

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
COMPRESSED = (*BY_ROW, torch.sparse_csc, torch.sparse_bsc)
LAYOUTS = (torch.sparse_coo, *COMPRESSED)


def name_of(layout):
    return str(layout).removeprefix("torch.")


def blocks(layout, size=(2, 2)):
    """The argument `blocksize` for a layout: those without blocks take none."""
    return size if layout in (torch.sparse_bsr, torch.sparse_bsc) else None


def parts(tensor):
    """What a tensor consists of: the facts about it, and the tensors that it holds, by name."""
    raw = tensor.detach()
    facts = {
        "class": type(tensor),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_quantized": tensor.is_quantized,
        "is_nested": tensor.is_nested,
    }
    if tensor.is_nested and tensor.layout is torch.jagged:
        facts["dim"] = raw.dim()
        held = {"values": raw.values(), "offsets": raw.offsets(), "lengths": raw.lengths()}
    elif tensor.is_nested:
        # The tables lie on the host, whatever the device.
        tables = (
            raw._nested_tensor_size(),
            raw._nested_tensor_strides(),
            raw._nested_tensor_storage_offsets(),
        )
        facts["tables"] = [(table.device.type, table.tolist()) for table in tables]
        held = {f"row {i}": row for i, row in enumerate(raw.unbind())}
        if raw.is_contiguous():
            held["values"] = raw.values()
    elif tensor.layout is torch.sparse_coo:
        if not EXACT:
            raw = raw.coalesce()  # When entries are merged is each kernel's own affair.
        facts["size"] = tuple(raw.shape)
        facts["dims"] = (raw.sparse_dim(), raw.dense_dim())
        facts["is_coalesced"] = tensor.is_coalesced()
        held = {"indices": raw._indices(), "values": raw._values()}
    elif tensor.layout in COMPRESSED:
        facts["size"] = tuple(raw.shape)
        facts["dims"] = (raw.sparse_dim(), raw.dense_dim())
        by_row = tensor.layout in BY_ROW
        held = {
            "compressed": raw.crow_indices() if by_row else raw.ccol_indices(),
            "plain": raw.col_indices() if by_row else raw.row_indices(),
            "values": raw.values(),
        }
    else:
        facts["size"] = tuple(raw.shape)
        # A copy from the host fills its memory; other kernels lay their results out in their way.
        if HAS_TWIN and EXACT:
            facts["stride"] = raw.stride()
            facts["offset"] = raw.storage_offset()
        facts["lazy"] = (raw.is_conj(), raw.is_neg())
        held = {}
    if tensor.is_quantized:
        facts["scheme"] = raw.qscheme()
        held["integers"] = raw.int_repr()
        if raw.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            facts["parameters"] = (raw.q_scale(), raw.q_zero_point())
        else:
            facts["parameters"] = raw.q_per_channel_axis()
            held["scales"] = raw.q_per_channel_scales()
            held["zero points"] = raw.q_per_channel_zero_points()
    return facts, {name: part for name, part in held.items() if part is not None}


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
