"""Tensors that hold other tensors, taken apart; and what is done to sparse ones in the tests.

Knows nothing of torch_fl, so that its functions of a device are cases for twins.py.
"""

import torch

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
COMPRESSED = (*BY_ROW, torch.sparse_csc, torch.sparse_bsc)
LAYOUTS = (torch.sparse_coo, *COMPRESSED)


def name_of(layout):
    return str(layout).removeprefix("torch.")


def blocks(layout, size=(2, 2)):
    """The argument `blocksize` for a layout: those without blocks take none."""
    return size if layout in (torch.sparse_bsr, torch.sparse_bsc) else None


def parts(tensor, strides=True, merged=False):
    """What a tensor consists of: the facts about it, and the tensors that it holds, by name.
    `merged` merges entries of a COO tensor that have one index."""
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
        raw = raw.coalesce() if merged else raw
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
        if strides:
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


def taken_apart(value, device):
    """A nesting of tensors that were made on `device`, as plain tensors and values."""
    if isinstance(value, (tuple, list)):
        return [taken_apart(item, device) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    facts, held = parts(value)
    facts = {name: str(fact) for name, fact in facts.items()}
    facts["where it was made"] = value.device.type == device
    if not held:
        return [facts, value.detach().resolve_conj()]
    return [facts, {name: taken_apart(part, device) for name, part in held.items()}]


# --- sparse tensors ------------------------------------------------------------------------------


def dense(*shape, dtype=torch.float32):
    numbers = torch.arange(1, 1 + torch.Size(shape).numel()) * 5 % 7
    return (numbers * (numbers > 2)).view(shape).to(dtype)


def coo(device, dtype=torch.float32):
    """Not coalesced: one index comes twice."""
    indices = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]])
    values = torch.tensor([3, 4, 5, 6], dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (2, 3)).to(device, copy=True)


def hybrid(device):
    values = torch.arange(12.0).view(3, 2, 2)
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]]), values, (4, 2, 2)).to(
        device, copy=True
    )


def sparse(device, layout, shape=(4, 6), dtype=torch.float32):
    made = dense(*shape, dtype=dtype).to_sparse(layout=layout, blocksize=blocks(layout))
    return made.to(device, copy=True)


OPERATORS = {
    "coalesce": lambda s: (s.coalesce(), s.coalesce().coalesce(), s.is_coalesced()),
    "members": lambda s: (s.coalesce().indices(), s.coalesce().values(), s._nnz(), s.sparse_dim()),
    "arithmetic": lambda s: (
        s + s,
        s - s,
        s * s,
        s * 2,
        s / 2,
        -s,
        s * torch.ones(2, 3).to(s.device),
    ),
    "dense with sparse": lambda s: (torch.ones(2, 3).to(s.device) + s,),
    "unary": lambda s: (s.abs(), s.sin(), s.sqrt(), s.pow(2), s.isnan(), s.sign()),
    "reduce": lambda s: (s.sum(), s.sum(1), torch.sparse.sum(s, 0), s.norm(), s.any()),
    "softmax": lambda s: (torch.sparse.softmax(s, 1), torch.sparse.log_softmax(s, 0)),
    "shape": lambda s: (
        s.t(),
        s.unsqueeze(0),
        s.transpose(0, 1),
        torch.cat([s, s]),
        torch.stack([s, s]),
    ),
    "index": lambda s: (
        s[1],
        s.index_select(0, torch.tensor([1, 0]).to(s.device)),
        s.narrow_copy(0, 0, 1),
    ),
    "mask": lambda s: torch.ones(2, 3).to(s.device).sparse_mask(s.coalesce()),
    "dense product": lambda s: (
        s @ torch.ones(3, 4).to(s.device),
        torch.mv(s, torch.ones(3).to(s.device)),
    ),
    "sparse product": lambda s: torch.sparse.mm(s, s.t()),
    "addmm": lambda s: torch.sparse.addmm(
        torch.ones(2, 2).to(s.device), s, torch.ones(3, 2).to(s.device), beta=0.5, alpha=2
    ),
    "bmm": lambda s: torch.bmm(torch.stack([s, s]).coalesce(), torch.ones(2, 3, 2).to(s.device)),
    "hspmm": lambda s: torch.hspmm(s, torch.ones(3, 2).to(s.device)),
    "like": lambda s: (torch.zeros_like(s), torch.empty_like(s)),
    "not served": lambda s: s.cumsum(0),
}


def on_coo(device, name):
    return OPERATORS[name](coo(device))


COMPRESSED_OPERATORS = {
    "dense product": lambda s: (s @ torch.ones(6, 3).to(s.device), s @ torch.ones(6).to(s.device)),
    "sparse product": lambda s: s @ s.t(),
    "to another layout": lambda s: (s.to_sparse(), s.to_dense()),
    "arithmetic": lambda s: (s * 2, s / 2, -s),
    "unary": lambda s: (s.sin(), s.abs(), s.sqrt()),
    "sum of two": lambda s: s + s,
    "dense with sparse": lambda s: torch.ones(4, 6).to(s.device) + s,
    "product": lambda s: s * s,
    "select": lambda s: (s[1], s.select(1, 2)),
    "sum": lambda s: s.sum(),
    "transpose": lambda s: (s.t(), s.transpose(0, 1)),
    "zeros_like": torch.zeros_like,
    "sampled product": lambda s: torch.sparse.sampled_addmm(
        s, torch.ones(4, 3).to(s.device), torch.ones(3, 6).to(s.device)
    ),
}


def on_compressed(device, name, layout):
    return COMPRESSED_OPERATORS[name](sparse(device, layout))


def on_hybrid(device):
    s = hybrid(device)
    return (
        s,
        s.coalesce(),
        s.to_dense(),
        s.sum(0),
        torch.sparse.sum(s),
        s[2],
        s.transpose(1, 2),
        s * 2,
    )


def on_complex(device):
    s = coo(device, torch.complex64) * 1j
    return s, torch.view_as_real(s), s.conj(), s.conj_physical(), s.abs()


def in_place_on_coo(device):
    s = coo(device)
    same = s.mul_(3)
    s.add_(coo(device))
    s.neg_()
    return same is s, s, s._version, coo(device).zero_(), coo(device).coalesce().abs_()


def into_out(device):
    fresh, itself, product = (
        torch.sparse_coo_tensor((2, 3), device=device),
        coo(device),
        torch.empty(0, device=device),
    )
    torch.add(coo(device), coo(device), out=fresh)
    torch.add(itself, coo(device), out=itself)
    torch.mm(coo(device), torch.ones(3, 2, device=device), out=product)
    return fresh, itself, product


def described_case(device, name, *arguments):
    """One of the cases above, in plain tensors and values, or the class of what it raises."""
    try:
        return taken_apart(globals()[name](device, *arguments), device)
    except Exception as error:
        return type(error).__name__
