"""How a flagos tensor is shown to its twin for one call, and what comes back as results. What a
call writes and what happens when it fails is in test_boxing_writes.py, arguments of every kind are
in test_boxing_arguments.py."""

import gc
import weakref

import pytest
import torch
from against_cpu import assert_same_values, check, state
from inside import operator  # noqa: F401: a fixture

pytestmark = pytest.mark.platforms("cpu")

D = "flagos"


def keys(tensor):
    return torch._C._dispatch_keys(tensor)


# --- during the call -----------------------------------------------------------------------------


def test_the_callers_tensor_keeps_its_label_while_the_kernel_runs(operator):
    x = torch.arange(6.0, device=D).view(2, 3)
    before = state(x)
    seen = []

    def kernel(shown):
        seen.append((shown.device.type, shown is x, shown.data_ptr() == x.data_ptr(), state(x)))
        return shown + 1

    result = operator("(Tensor x) -> Tensor", kernel)(x)
    assert seen == [("cpu", False, True, before)]
    assert state(x) == before
    assert result.device == x.device and torch.equal(result.cpu(), x.cpu() + 1)


def test_a_shadow_shows_layout_dtype_and_lazy_bits(operator):
    seen = []

    def kernel(shown):
        seen.append(
            (
                tuple(shown.shape),
                shown.stride(),
                shown.storage_offset(),
                shown.dtype,
                shown.is_conj(),
                shown.is_neg(),
                shown.is_contiguous(),
                shown.is_contiguous(memory_format=torch.channels_last),
            )
        )
        return shown.sum()

    show = operator("(Tensor x) -> Tensor", kernel)
    z = torch.randn(3, 4, dtype=torch.complex64)
    tensors = [
        torch.randn(4, 5)[1:, ::2],
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3).t(),
        torch.randn(1).expand(7),
        torch.tensor(3),
        torch.empty(0, 3),
        torch.randn(2, 1, 2, 1, 2, 1, 2, 3),
        torch.randint(5, (3,), dtype=torch.int16),
        z.imag,
    ]
    for tensor in tensors:
        seen.clear()
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        device = torch.empty(elements, dtype=tensor.dtype, device=D)
        show(device.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
        kernel(tensor)
        assert seen[0] == seen[1]


def test_lazy_bits_reach_operators_that_handle_them(operator):
    """mm reads a conjugated operand as it is; an operator that cannot gets it resolved."""
    z = torch.randn(3, 3, dtype=torch.complex64, device=D)
    assert_same_values(torch.mm(z.conj(), z.mH), torch.mm(z.cpu().conj(), z.cpu().mH))
    seen = []

    def kernel(shown):
        seen.append((shown.is_conj(), shown.is_neg(), shown.clone()))
        return shown.clone()

    show = operator("(Tensor x) -> Tensor", kernel)
    assert torch.equal(show(z.conj()).cpu(), z.cpu().conj())
    assert torch.equal(show(z.conj().imag).cpu(), z.cpu().conj().imag)
    assert all((conj, neg) == (False, False) for conj, neg, _ in seen)


@pytest.mark.parametrize("dimensions", [0, 1, 5, 6, 7, 12, 25])
def test_any_number_of_dimensions(dimensions):
    """Up to five dimensions sizes lie in the tensor, above that on the heap."""

    def program(device):
        shape = [2 if i % 3 == 0 else 1 for i in range(dimensions)]
        x = torch.randn(shape, device="cpu").to(device)
        y = x * 2 + x
        z = torch.empty(0, device=device)
        torch.sub(y, 1, out=z)
        return [y, z, y.sum(), x.flip(list(range(dimensions))), z.add_(x)]

    check(program)


def test_shadows_of_many_dimensions_and_few_do_not_disturb_each_other():
    def program(device):
        big = torch.randn([1, 2] * 4).to(device)
        small = torch.randn(2).to(device)
        results = []
        for _ in range(3):
            results += [big + small, small + 1, small * big, small.sum()]
        return results

    check(program)


def test_a_shadow_borrows_and_does_not_hold():
    """No reference is left on a tensor or its memory after a call."""
    x = torch.ones(1000, device=D)
    storage = x.untyped_storage()
    before = storage._use_count() if hasattr(storage, "_use_count") else None
    alive = weakref.ref(x)
    for _ in range(3):
        x + x
        torch.cat([x, x])
        x.add_(1)
    if before is not None:
        assert storage._use_count() == before
    del x
    gc.collect()
    assert alive() is None


# --- the same tensor twice, and shared storage ---------------------------------------------------


def test_the_same_tensor_twice_gets_one_shadow(operator):
    seen = []

    def kernel(a, b, many):
        seen.append((a is b, all(one is a for one in many)))
        return a + b

    same = operator("(Tensor a, Tensor b, Tensor[] many) -> Tensor", kernel)
    x = torch.ones(3, device=D)
    same(x, x, [x, x])
    same(x, torch.ones(3, device=D), [torch.ones(3, device=D)])
    assert seen == [(True, True), (False, False)]


def test_the_same_tensor_in_a_long_list_gets_one_shadow(operator):
    seen = []

    def kernel(many):
        seen.extend({id(one) for one in many})
        return many[0].clone()

    x, y = torch.ones(3, device=D), torch.ones(3, device=D)
    operator("(Tensor[] many) -> Tensor", kernel)([x, y] * 100)
    assert len(seen) == 2


def test_read_and_written_at_once():
    def program(device):
        x = torch.arange(4.0, device=device)
        x.add_(x)
        y = torch.arange(4.0, device=device)
        torch.mul(y, y, out=y)
        z = torch.arange(9.0, device=device).view(3, 3)
        torch._foreach_add_([x, y], [y, x])
        return [x, y, z.addmm_(z.clone(), z.clone())]

    check(program)


OVERLAPS = {
    "add.out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "mul.out": lambda x: torch.mul(x[:-1], x[1:], out=x[1:]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "add_": lambda x: x[1:].add_(x[:-1]),
    "expanded": lambda x: x[:1].expand(5).add_(1),
    "index_fill_": lambda x: x[:1].expand(5).index_fill_(0, torch.tensor([0], device=x.device), 1),
    "cat.out": lambda x: torch.cat([x[:2], x[2:4]], out=x[1:5]),
    "where.out": lambda x: torch.where(x[1:] > 2, x[1:], x[:-1], out=x[:-1]),
    "gather.out": lambda x: torch.gather(x, 0, torch.tensor([1, 0], device=x.device), out=x[:2]),
    "scatter_": lambda x: x[:4].scatter_(0, torch.tensor([0], device=x.device), x[2:]),
    "mm.out": lambda x: torch.mm(x[:4].view(2, 2), x[:4].view(2, 2), out=x[2:6].view(2, 2)),
    "masked_fill_": lambda x: x[:1].expand(3).masked_fill_(x[:3] > 0, 5),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap_of_operands_is_seen(name):
    """Two tensors on one storage must look so to the twin: it refuses what it would refuse, and
    leaves the memory alone."""

    def program(device):
        x = torch.arange(6.0, device=device)
        return OVERLAPS[name](x), x

    check(program)


def test_overlap_is_seen_in_long_lists():
    def program(device):
        x = torch.arange(100.0, device=device)
        torch.cat([x[i : i + 1] for i in range(50)], out=x[1:51])

    check(program)


def test_operands_of_one_storage_share_memory_inside(operator):
    seen = []

    def kernel(a, b):
        seen.append(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
        a.add_(1)
        return b.clone()

    x = torch.zeros(4, device=D)
    result = operator("(Tensor(a!) a, Tensor b) -> Tensor", kernel)(x[:3], x[1:])
    assert seen == [True]
    assert result.tolist() == [1, 1, 0] and x.tolist() == [1, 1, 1, 0]


# --- results -------------------------------------------------------------------------------------


def test_a_result_that_is_an_operand_is_the_callers_object(operator):
    x = torch.ones(3, device=D)
    in_place = operator("(Tensor(a!) x) -> Tensor(a!)", lambda shown: shown.add_(1))
    assert in_place(x) is x and x.tolist() == [2, 2, 2]
    passed = operator("(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (y, x))
    y = torch.zeros(3, device=D)
    first, second = passed(x, y)
    assert first.data_ptr() == y.data_ptr() and second.data_ptr() == x.data_ptr()
    assert first.device == second.device == x.device


def test_a_result_that_is_a_view_lies_on_the_callers_storage(operator):
    x = torch.arange(6.0, device=D)
    view = operator("(Tensor(a) x) -> Tensor(a)", lambda shown: shown[1:5:2])(x)
    assert view.device == x.device and view.tolist() == [1, 3]
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert (view.stride(), view.storage_offset()) == ((2,), 1)
    view.fill_(9)
    assert x.tolist() == [0, 9, 2, 9, 4, 5]


def test_a_view_keeps_the_keys_of_autograd_and_autocast(operator):
    x = torch.arange(6.0, device=D)
    view = operator("(Tensor x) -> Tensor", lambda shown: shown.view(2, 3))(x)
    assert keys(view).has(torch.DispatchKey.AutogradPrivateUse1)
    assert keys(view).has(torch.DispatchKey.AutocastPrivateUse1)
    assert not keys(view).has(torch.DispatchKey.AutocastCPU)
    assert not keys(view).has(torch.DispatchKey.AutogradCPU)
    view.requires_grad_()
    (view * 2).sum().backward()
    assert view.grad.tolist() == [[2, 2, 2]] * 2
    with torch.autocast(D, dtype=torch.bfloat16):
        assert torch.mm(view, view.t()).dtype == torch.bfloat16


def test_views_that_no_schema_announces():
    """unsafe_split and _unsafe_view give views though their schemas promise none."""

    def program(device):
        x = torch.arange(12.0).to(device).requires_grad_()
        parts = torch.unsafe_split(x * 1, 5)
        whole = torch.ops.aten._unsafe_view(x * 1, [3, 4])
        loss = sum((part * (i + 1)).sum() for i, part in enumerate(parts)) + (whole * whole).sum()
        loss.backward()
        return [*parts, whole, x.grad]

    check(program)
    x = torch.arange(12.0, device=D)
    for part in torch.unsafe_split(x, 5):
        assert part.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert keys(part) == keys(x)


def test_a_view_of_a_shared_storage_lies_on_it(operator):
    """The second operand shares the first one's storage; its view belongs to the same storage."""
    base = torch.arange(6.0, device=D)
    pick = operator("(Tensor a, Tensor b) -> Tensor", lambda a, b: b[1:])
    view = pick(base[:2], base[2:])
    assert view.tolist() == [3, 4, 5]
    view.zero_()
    assert base.tolist() == [0, 1, 2, 0, 0, 0]


def test_a_view_of_another_dtype(operator):
    x = torch.arange(3.0, device=D)
    view = operator("(Tensor x) -> Tensor", lambda shown: shown.view(torch.int32))(x)
    assert view.dtype == torch.int32 and view.tolist() == x.cpu().view(torch.int32).tolist()
    z = torch.randn(3, dtype=torch.complex64, device=D)
    for name, make in {"conj": torch.conj, "real": torch.view_as_real}.items():
        shown = operator("(Tensor x) -> Tensor", make)(z)
        assert torch.equal(shown.cpu(), make(z.cpu())), name
        assert shown.device.type == D and shown.data_ptr() == z.data_ptr()


def test_a_fresh_result_is_relabelled_in_place(operator):
    """No copy: the memory that the kernel made is the memory that the caller gets."""
    made = []

    def kernel(shown):
        fresh = shown * 2
        made.append(fresh.data_ptr())
        return fresh

    result = operator("(Tensor x) -> Tensor", kernel)(torch.ones(5, device=D))
    assert result.data_ptr() == made[0] and result.device == torch.device(D, 0)
    assert result.untyped_storage().device == result.device


def test_a_result_that_somebody_else_holds_is_wrapped(operator):
    """The kernel's own object keeps its label; the caller gets another on the same memory."""
    kept = []

    def kernel(shown):
        kept.append(shown * 2)
        return kept[-1]

    result = operator("(Tensor x) -> Tensor", kernel)(torch.ones(5, device=D))
    assert kept[0].device.type == "cpu" and result.device.type == D
    assert result.untyped_storage().device == result.device
    assert kept[0].untyped_storage().device.type == "cpu"
    result.add_(1)
    assert kept[0].tolist() == [3] * 5
    pointer = result.data_ptr()
    kept.clear()
    gc.collect()
    assert result.data_ptr() == pointer and (result + 1).tolist() == [4] * 5


def test_a_view_of_a_fresh_tensor_that_somebody_else_holds_is_wrapped(operator):
    kept = []

    def kernel(shown):
        kept.append(shown * 2)
        return kept[-1][1:3], kept[-1][2:]

    one, other = operator("(Tensor x) -> (Tensor, Tensor)", kernel)(torch.arange(5.0, device=D))
    assert kept[0].device.type == "cpu" and one.device.type == other.device.type == D
    assert one.tolist() == [2, 4] and other.tolist() == [4, 6, 8]
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    assert kept[0].untyped_storage().device.type == "cpu"
    one[1] = 0
    assert other.tolist() == [0, 6, 8] and kept[0].tolist() == [0, 2, 0, 6, 8]


def test_a_view_that_only_its_storage_shares_is_wrapped(operator):
    """A view whose object nobody else holds, on a storage that the program holds on the CPU."""
    table = torch.arange(6.0)
    result = operator("(Tensor x) -> Tensor", lambda shown: table[2:])(torch.ones(1, device=D))
    assert result.device.type == D and result.untyped_storage().device == result.device
    assert table.device.type == table.untyped_storage().device.type == "cpu"


def test_a_plain_cpu_tensor_of_the_program_is_not_relabelled(operator):
    """A kernel may give back a tensor that the program holds on the CPU: that one stays there."""
    table = torch.arange(4.0)
    result = operator("(Tensor x) -> Tensor", lambda shown: table)(torch.ones(1, device=D))
    assert result.device.type == D and table.device.type == "cpu"
    assert table.untyped_storage().device.type == "cpu"
    assert (table + 1).tolist() == [1, 2, 3, 4]


def test_one_fresh_tensor_in_several_results(operator):
    def kernel(shown):
        fresh = shown + 1
        return fresh, fresh, [fresh[:1], fresh[1:]]

    signature = "(Tensor x) -> (Tensor, Tensor, Tensor[])"
    one, two, parts = operator(signature, kernel)(torch.zeros(3, device=D))
    for tensor in (one, two, *parts):
        assert tensor.device.type == D
        assert tensor.untyped_storage()._cdata == one.untyped_storage()._cdata
    one.fill_(7)
    assert two.tolist() == [7, 7, 7] and parts[1].tolist() == [7, 7]


def test_results_that_belong_to_the_host_stay_there():
    lengths = torch.tensor([3, 2])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4, device=D), lengths)
    assert packed.data.device.type == D and packed.batch_sizes.device.type == "cpu"
    assert packed.batch_sizes.tolist() == [2, 2, 1]


def test_results_that_are_not_there():
    """A gradient that nobody asked for is an undefined tensor."""
    x = torch.randn(2, 3, 5, 5, device=D)
    weight = torch.randn(4, 3, 3, 3, device=D)
    grad = torch.randn(2, 4, 3, 3, device=D)
    arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    results = torch.ops.aten.convolution_backward(
        grad, x, weight, [4], *arguments, [False, True, False]
    )
    assert results[0] is None and results[2] is None and results[1].device.type == D


def test_no_result_keeps_the_twins_label(operator):
    """Tensors, lists, optional tensors, devices."""
    signature = "(Tensor x) -> (Tensor, Tensor[], Tensor?, Tensor?, Device, int)"

    def kernel(x):
        return x + 1, [x + 2, x[1:]], x + 3, None, x.device, 5

    one, many, some, none, device, number = operator(signature, kernel)(torch.ones(3, device=D))
    assert {tensor.device for tensor in (one, *many, some)} == {torch.device(D, 0)}
    assert none is None and number == 5 and device == torch.device(D, 0)
