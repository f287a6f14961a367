"""How a flagos tensor is shown to its twin for one call, and what comes back.

Most tests here look at a call from the inside: they define an operator with a kernel for the twin
that is written in Python, so that the kernel can say what it was given and do what no real kernel
should do, at a moment when the caller's tensors can be watched.
"""

import gc
import itertools
import threading
import weakref

import pytest
import torch
from against_cpu import assert_same_values, check, state

import torch_fl

pytestmark = pytest.mark.platforms("cpu")

D = "flagos"
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


# --- the same tensor twice, and shared storage ------------------------------------------------------


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
    one[1] = 0
    assert other.tolist() == [0, 6, 8] and kept[0].tolist() == [0, 2, 0, 6, 8]


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


# --- what a call writes --------------------------------------------------------------------------


def test_out_of_another_size_is_resized_and_the_storage_grows():
    def program(device):
        a = torch.arange(12.0, device=device).view(3, 4)
        small, strided = torch.empty(0, device=device), torch.zeros(4, 3, device=device).t()
        view = torch.zeros(10, device=device)[2:2]
        torch.add(a, 1, out=small)
        torch.add(a, 1, out=strided)
        torch.add(a, 1, out=view)
        values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
        torch.topk(a, 2, out=(values, indices))
        return [small, strided, view, values, indices, view.untyped_storage().nbytes()]

    check(program)


def test_out_is_the_callers_object():
    a, out = torch.ones(3, device=D), torch.empty(3, device=D)
    assert torch.add(a, a, out=out) is out
    values, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    result = torch.max(torch.ones(2, 3, device=D), 0, out=(values, indices))
    assert result[0] is values and result[1] is indices and values.shape == (3,)


def test_a_view_of_the_out_tensor_sees_what_was_written():
    out = torch.zeros(6, device=D)
    view = out[2:4]
    torch.add(torch.arange(6.0, device=D), 1, out=out)
    assert view.tolist() == [3, 4]


def test_a_kernel_that_resizes_or_sets_its_operand(operator):
    grow = operator("(Tensor(a!) x) -> ()", lambda shown: (shown.resize_(6).fill_(1), None)[1])
    x = torch.zeros(2, device=D)
    storage, keeper = x.untyped_storage(), x.view(2)
    grow(x)
    assert x.tolist() == [1] * 6 and x.device == torch.device(D, 0)
    assert x.untyped_storage()._cdata == storage._cdata and storage.nbytes() == 24
    assert keeper.tolist() == [1, 1]  # On the same storage, whose memory moved.

    source = torch.arange(4.0)
    exchange = operator("(Tensor(a!) x) -> ()", lambda shown: (shown.set_(source), None)[1])
    exchange(x)
    assert x.tolist() == [0, 1, 2, 3] and x.device == torch.device(D, 0)
    assert (x + 1).device == torch.device(D, 0)

    layout = operator("(Tensor(a!) x) -> ()", lambda shown: (shown.t_(), None)[1])
    y = torch.arange(6.0, device=D).view(2, 3)
    layout(y)
    assert y.shape == (3, 2) and y.stride() == (1, 3)


def test_set_leaves_the_source_of_the_kernel_alone(operator):
    """The storage that a kernel gives to its operand may be one that the program holds too."""
    source = torch.arange(4.0)
    operator("(Tensor(a!) x) -> ()", lambda shown: (shown.set_(source), None)[1])(
        torch.zeros(2, device=D)
    )
    assert source.device.type == source.untyped_storage().device.type == "cpu"
    assert (source + 1).tolist() == [1, 2, 3, 4]


def test_version_counters_move_as_on_the_cpu():
    def program(device):
        x = torch.ones(4, device=device)
        versions = []
        for change in (
            lambda: x.add_(1),
            lambda: x[1:].mul_(2),
            lambda: torch.sub(x, 1, out=x),
            lambda: x + 1,
            lambda: x.copy_(torch.zeros(4)),
            lambda: x.zero_(),
            lambda: torch._foreach_add_([x], 1),
            lambda: x.resize_(8),
            lambda: x.set_(torch.ones(2, device=device)),
            lambda: x.uniform_(),
            lambda: x.detach().add_(1),
        ):
            change()
            versions.append(x._version)
        return versions

    check(program)


def test_copy_on_write_is_materialised_before_it_is_written():
    def program(device):
        x = torch.arange(4.0, device=device)
        results = []
        for write in (
            lambda y: y.add_(1),
            lambda y: torch.mul(y, 2, out=y),
            lambda y: y[1:].zero_(),
            lambda y: y.copy_(torch.ones(4)),
            lambda y: torch._foreach_mul_([y], 3),
            lambda y: y.index_put_((torch.tensor([0], device=device),), y.new_tensor(5.0)),
            lambda y: torch.add(y[:2], y[2:], out=y[:2]),
        ):
            y = torch._lazy_clone(x)
            write(y)
            results += [x.clone(), y]
        y = torch._lazy_clone(x)
        x.add_(10)
        return [*results, x, y]

    check(program)


def test_copy_on_write_stays_lazy_while_it_is_read():
    x = torch.arange(4.0, device=D)
    y = torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(y)
    assert (y + x).tolist() == [0, 2, 4, 6] and torch.mm(y.view(2, 2), x.view(2, 2)).shape == (2, 2)
    assert torch._C._is_cow_tensor(y) and torch._C._is_cow_tensor(x)
    assert torch._C._data_address(x) == torch._C._data_address(y)


@pytest.mark.xfail(strict=True, reason="schemas say that native_batch_norm only reads them")
def test_copy_on_write_of_what_a_kernel_writes_without_saying_so():
    """The running statistics of batch_norm are written though its schema promises not to."""

    def program(device):
        zeros = torch.zeros(3, device=device)
        mean, variance = torch._lazy_clone(zeros), torch.ones(3, device=device)
        x = torch.arange(6.0).to(device).view(2, 3)
        torch.nn.functional.batch_norm(x, mean, variance, training=True)
        return [zeros, mean, variance]

    check(program)


# --- escape, exceptions, inference mode ------------------------------------------------------------


def test_a_shadow_that_escapes_owns_what_it_shows(operator):
    kept = []
    keep = operator("(Tensor x) -> ()", lambda shown: kept.append(shown))
    x = torch.arange(1000.0, device=D)
    keep(x)
    keep(x[3:])
    pointer = x.data_ptr()
    del x
    gc.collect()
    # Other calls neither rebind the kept shadows nor get their memory.
    others = [torch.full((1000,), -1.0, device=D) for _ in range(50)]
    others = [other + 0 for other in others]
    assert [tensor.device.type for tensor in kept] == ["cpu", "cpu"]
    assert kept[0].data_ptr() == pointer
    assert torch.equal(kept[0], torch.arange(1000.0)) and torch.equal(kept[1], torch.arange(3.0, 1000))
    del others


def test_a_view_of_a_shadow_that_escapes_owns_what_it_shows(operator):
    kept = []
    keep = operator("(Tensor x) -> ()", lambda shown: kept.append(shown[500:]))
    x = torch.arange(1000.0, device=D)
    keep(x)
    del x
    gc.collect()
    others = [torch.full((1000,), -1.0, device=D) + 0 for _ in range(50)]
    assert torch.equal(kept[0], torch.arange(500.0, 1000))
    del others


def test_an_escaped_shadow_does_not_follow_a_later_resize_or_set(operator):
    kept = []
    keep = operator("(Tensor x) -> ()", lambda shown: kept.append(shown))
    x = torch.arange(4.0, device=D)
    keep(x)
    x.add_(1)
    assert kept[0].tolist() == [1, 2, 3, 4]  # The same memory...
    x.set_(torch.zeros(2, device=D))
    assert kept[0].tolist() == [1, 2, 3, 4]  # ... but not the same tensor.


def test_what_a_kernel_ties_to_a_shadow_stays_with_that_tensor(operator):
    """Shadows are used again: nothing that a kernel hung on one may appear on another tensor."""
    seen = []

    def kernel(shown):
        seen.append((hasattr(shown, "mark"), shown.grad, shown.names))
        shown.mark = True
        shown.grad = torch.ones(3)
        result = shown.clone()
        shown.rename_("kept")
        return result

    mark = operator("(Tensor x) -> Tensor", kernel)
    for _ in range(4):
        mark(torch.ones(3, device=D))
    assert seen == [(False, None, (None,))] * 4
    # Nor on operands of other operators.
    assert (torch.ones(3, device=D) * 2).names == (None,)


CHANGES = {
    "resize_": lambda t: t.resize_(100),
    "smaller": lambda t: t.resize_(1),
    "set_": lambda t: t.set_(torch.zeros(7)),
    "set_none": lambda t: t.set_(),
    "transpose_": lambda t: t.t_(),
    "names": lambda t: t.rename_("a", "b"),
    "storage": lambda t: t.untyped_storage().resize_(4096),
    "freed": lambda t: t.untyped_storage().resize_(0),
    "data": lambda t: setattr(t, "data", torch.zeros(3)),
    "nothing": lambda t: None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("written", [True, False], ids=["written", "read"])
def test_an_exception_leaves_each_operand_as_it_was(operator, change, written):
    def kernel(x, y):
        CHANGES[change](x)
        raise ValueError("on purpose")

    mark = "(a!)" if written else ""
    fail = operator(f"(Tensor{mark} x, Tensor[] y) -> ()", kernel)
    x = torch.arange(6.0, device=D).view(2, 3)
    others = [x[1:], torch.ones(2, 2, device=D), torch.ones([1] * 7, device=D)]
    before = [state(tensor) for tensor in (x, *others)]
    for _ in range(3):
        with pytest.raises(ValueError, match="on purpose"):
            fail(x, others)
    after = [state(tensor) for tensor in (x, *others)]
    if written:  # PyTorch counts a call that is allowed to write, also one that fails.
        before, after = ([entry[:8] + entry[9:] for entry in entries] for entries in (before, after))
    assert after == before
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    # And the thread's shadows are as good as new.
    assert (x + 1).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (x.add_(1) is x) and x.shape == (2, 3) and x.names == (None, None)


def test_errors_of_real_operators_leave_operands_as_they_were():
    a, b = torch.ones(2, 3, device=D), torch.ones(4, 5, device=D)
    out, index = torch.empty(0, device=D), torch.tensor([7], device=D)
    calls = [
        lambda: a + b,
        lambda: torch.mm(a, b, out=out),
        lambda: torch.add(a, a, out=b.int()),
        lambda: a.index_select(0, index),
        lambda: a.add_(b),
        lambda: torch.cat([a, b]),
        lambda: torch.linalg.inv(torch.zeros(3, 3, device=D)),
        lambda: torch.linalg.cholesky(-torch.eye(3, device=D)),
        lambda: torch._foreach_add_([a, b], [b, a]),
        lambda: a.view(7),
        lambda: a.expand(7, 7),
        lambda: torch.stack([a, b], out=out),
    ]
    before = [state(tensor) for tensor in (a, b, out)]
    for call in calls * 2:
        with pytest.raises((RuntimeError, IndexError)):
            call()
        versions = [entry[:8] + entry[9:] for entry in map(state, (a, b, out))]
        assert versions == [entry[:8] + entry[9:] for entry in before]


def test_frames_nest(operator):
    """A kernel that calls back into flagos, as an autograd formula in Python may."""
    weight = torch.full((3,), 2.0, device=D)

    def kernel(shown, depth):
        inner = weight * 3
        if depth > 0:
            inner = inner + nested(inner, depth - 1)
        assert shown.device.type == "cpu" and inner.device.type == D
        return shown + inner.cpu()

    nested = operator("(Tensor x, int depth) -> Tensor", kernel)
    # depth 0: x + 6; depth n: x + 6 + (6 + nested value)
    assert nested(torch.ones(3, device=D), 0).tolist() == [7, 7, 7]
    assert nested(torch.ones(3, device=D), 70).device.type == D


def test_a_frame_larger_than_a_chunk_while_another_is_open(operator):
    """The stack of shadows grows under open frames without moving what they hold."""
    lists = [[torch.full((2,), float(i), device=D) for i in range(200)] for _ in range(3)]

    def kernel(shown, depth):
        total = torch.stack(shown).sum(0)
        if depth > 0:
            total = total + nested(lists[depth - 1], depth - 1).cpu()
        return total + torch.stack(shown).sum(0)

    nested = operator("(Tensor[] x, int depth) -> Tensor", kernel)
    assert nested(lists[0], 3).tolist() == [2 * 4 * sum(range(200))] * 2


def test_shadows_first_made_in_inference_mode_count_versions(operator):
    seen = []

    def kernel(shown):
        seen.append(shown._version)  # Raises where there is no counter.
        shown.add_(1)
        return shown.clone()

    count = operator("(Tensor(a!) x) -> Tensor", kernel)
    x = torch.zeros(3, device=D)

    def work():
        with torch.inference_mode():
            (x + 1).mul_(2)  # Makes this thread's shadows.
        count(x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1 and x.tolist() == [1, 1, 1]


def test_inference_mode():
    def program(device):
        with torch.inference_mode():
            x = torch.ones(3, device=device)
            y = (x + 1).mul_(2)
            view = y[1:]
            view.add_(1)
            torch.add(x, y, out=x)
            flags = [t.is_inference() for t in (x, y, view, x + x, x.t(), x.to(torch.float64))]
        z = torch.ones(3, device=device, requires_grad=True)
        with torch.inference_mode():
            flags.append((z * 2).requires_grad)
        try:
            z * x
            (z * x).sum().backward()
        except RuntimeError as error:
            flags.append(str(error))
        return [x, y, view, flags]

    check(program)


# --- arguments of every kind ----------------------------------------------------------------------


def test_lists_optional_lists_and_optional_tensors(operator):
    seen = []

    def kernel(one, maybe, many, some, flat):
        tensors = [one, maybe, *many, *some, *(flat or [])]
        seen.append([tensor.device.type if tensor is not None else None for tensor in tensors])
        return one.clone()

    signature = "(Tensor one, Tensor? maybe, Tensor[] many, Tensor?[] some, Tensor[]? flat) -> Tensor"
    call = operator(signature, kernel)
    x = torch.ones(2, device=D)
    call(x, x, [x, x], [x, None], [x])
    call(x, None, [], [None], None)
    assert seen == [["cpu"] * 5 + [None, "cpu"], ["cpu", None, None]]


def test_device_arguments(operator):
    seen = []

    def kernel(x, device):
        seen.append(device)
        return torch.ones(2, device=device)

    make = operator("(Tensor x, Device device) -> Tensor", kernel)
    result = make(torch.ones(1, device=D), torch.device(D, 0))
    assert seen[0].type == "cpu" and result.device == torch.device(D, 0)
    maybe = operator("(Tensor x, Device? device) -> Tensor", lambda x, device: kernel(x, device or "cpu"))
    assert maybe(torch.ones(1, device=D), None).device == torch.device(D, 0)
    count = torch.flagos.device_count()
    with pytest.raises(RuntimeError, match=f"{count + 5}.*{count} device"):
        make(torch.ones(1, device=D), torch.device(D, count + 5))


def test_generators(operator):
    seen = []

    def kernel(x, generator):
        seen.append(generator.device.type)
        return torch.rand(3, generator=generator)

    draw = operator("(Tensor x, *, Generator? generator) -> Tensor", kernel)
    x = torch.ones(1, device=D)
    generator = torch.Generator(D).manual_seed(5)
    first = draw(x, generator=generator)
    assert seen == ["cpu"] and first.device.type == D
    assert torch.equal(first.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    # Without one the device's own default is given, never the host's.
    torch.flagos.manual_seed(7)
    before = torch.get_rng_state()
    second = draw(x, generator=None)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(second.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(7)))
    with pytest.raises(RuntimeError, match="flagos.*cpu"):
        draw(x, generator=torch.Generator())


def test_cat_of_100_and_foreach_of_300():
    def program(device):
        parts = [torch.full((2, 3), float(i), device=device) for i in range(300)]
        joined = torch.cat(parts[:100])
        stacked = torch.stack(parts)
        torch._foreach_mul_(parts, 2)
        torch._foreach_add_(parts, parts[::-1], alpha=0.5)
        torch._foreach_addcdiv_(parts, parts, [part + 1 for part in parts], 0.1)
        norms = torch._foreach_norm(parts)
        out = torch.empty(0, device=device)
        torch.cat(parts[:100], out=out)
        return [joined, stacked, out, *parts, *norms, *torch._foreach_sqrt(parts)]

    check(program)


def test_wrapped_numbers_promote_as_on_the_cpu():
    def program(device):
        x = torch.ones(2, dtype=torch.float16, device=device)
        i = torch.ones(2, dtype=torch.int32, device=device)
        return [
            x * 2.5,
            2.5 * x,
            i + 1.5,
            i * True,
            x + torch.tensor(2.0, dtype=torch.float64, device=device),
            i + torch.tensor(3, device=device),
            torch.add(i, 3, alpha=2),
            torch.where(i > 0, 1.5, x),
            torch.pow(2, i),
            torch.ops.aten.add(x, torch.tensor(1.0, dtype=torch.float64)),
        ]

    check(program)


def test_operators_of_libraries_are_served(operator):
    """Registered after flagos was loaded, twin's kernel only, also under autograd and vmap."""
    double = operator("(Tensor x) -> Tensor", lambda x: x * 2)
    assert double(torch.ones(2, device=D)).tolist() == [2, 2]
    composite = operator(
        "(Tensor x) -> Tensor", lambda x: torch.relu(x) + 1, "CompositeExplicitAutograd"
    )
    assert composite(-torch.ones(2, device=D)).device.type == D
    assert torch_fl.routes.read(double.default.name()).calls == {"native": 1}


def test_an_operator_without_a_kernel_for_anyone_says_so():
    library = torch.library.Library("fl_boxing", "FRAGMENT")
    library.define("nobody(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="fl_boxing::nobody.*flagos"):
        torch.ops.fl_boxing.nobody(torch.ones(1, device=D))
    library._destroy()
