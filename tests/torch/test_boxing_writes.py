"""What a call through shadows writes to the caller's tensors, and that it leaves them alone when it
fails, when a kernel keeps a shadow, and in inference mode."""

import gc
import threading

import pytest
import torch
from against_cpu import check, state
from inside import operator  # noqa: F401: a fixture

pytestmark = pytest.mark.platforms("cpu")

D = "flagos"


# --- what a call writes --------------------------------------------------------------------------


def test_out_of_another_size_is_resized_and_the_storage_grows():
    def program(device):
        a = torch.arange(12.0, device=device).view(3, 4)
        small, strided = torch.empty(0, device=device), torch.zeros(4, 3, device=device).t()
        view = torch.zeros(10, device=device)[2:2]
        torch.add(a, 1, out=small)
        torch.add(a, 1, out=strided)
        torch.add(a, 1, out=view)
        values, indices = torch.empty(0, device=device), torch.empty(
            0, dtype=torch.long, device=device
        )
        torch.topk(a, 2, out=(values, indices))
        return [small, strided, view, values, indices, view.untyped_storage().nbytes()]

    check(program)


def test_out_is_the_callers_object():
    a, out = torch.ones(3, device=D), torch.empty(3, device=D)
    assert torch.add(a, a, out=out) is out
    values, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    result = torch.max(torch.ones(2, 3, device=D), 0, out=(values, indices))
    assert result[0] is values and result[1] is indices and values.shape == (3,)


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_that_a_kernel_gives_to_out_are_the_callers():
    named, out = torch.ones(2, 3, names=("N", "C")).to(D), torch.empty(2, 3, device=D)
    torch.add(named, named, out=out)
    assert out.names == ("N", "C")
    # The shadow that showed `out` shows other tensors next, which have no names.
    plain = torch.empty(4, device=D)
    torch.add(torch.ones(4, device=D), 1, out=plain)
    assert plain.names == (None,) and (plain + plain).names == (None,)


def test_a_kernel_may_leave_the_conjugate_of_its_result_in_out():
    """And says so by the tensor's conjugate bit, as linalg_lu_solve does."""

    def program(device):
        matrix = torch.randn(3, 3, dtype=torch.complex64).to(device)
        factors, pivots = torch.linalg.lu_factor(matrix)
        right = torch.randn(2, 3, dtype=torch.complex64).to(device)
        out = torch.empty(2, 3, dtype=torch.complex64, device=device)
        again = torch.empty(2, 3, dtype=torch.complex64, device=device).conj()
        for target in (out, again):
            torch.linalg.lu_solve(factors, pivots, right, left=False, out=target)
        return out, again, out.resolve_conj(), out + 1

    check(program)


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


def test_copy_on_write_of_what_a_kernel_writes_without_saying_so():
    """The running statistics of batch_norm are written though its schema promises not to."""

    def program(device):
        zeros = torch.zeros(3, device=device)
        mean, variance = torch._lazy_clone(zeros), torch.ones(3, device=device)
        x = torch.arange(6.0).to(device).view(2, 3)
        torch.nn.functional.batch_norm(x, mean, variance, training=True)
        return [zeros, mean, variance]

    check(program)


# --- escape, exceptions, inference mode ----------------------------------------------------------


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
    assert torch.equal(kept[0], torch.arange(1000.0)) and torch.equal(
        kept[1], torch.arange(3.0, 1000)
    )
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


def test_what_a_library_s_kernel_writes_is_counted(operator):
    """PyTorch counts it where the kernel's own operators do: autograd must notice."""
    write = operator("(Tensor(a!) x, Tensor[] others) -> ()", lambda x, o: (x.add_(1), None)[1])

    def program(device):
        w = torch.ones(3, device=device, requires_grad=True)
        x = w * 1
        y = x * x
        other = torch.zeros(3, device=device)
        with torch.no_grad():
            write(x, [other, x])
            write(other[1:], [])
        versions = x._version, other._version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return x, other, versions

    check(program)


def test_a_library_s_kernel_may_ask_for_gradients(operator):
    def kernel(x):
        detached = x.detach().requires_grad_()
        with torch.enable_grad():
            (detached * x * 3).sum().backward()
        parameter = torch.nn.Parameter(x)
        return x.is_inference(), detached.grad, parameter.detach().clone(), x.view(-1)[:2] * 1

    ask = operator("(Tensor x) -> (bool, Tensor, Tensor, Tensor)", kernel)
    check(lambda device: ask(torch.ones(2, 2, device=device)))
    # What it made of the shadow is not on the tensor that the shadow shows next.
    use = operator("(Tensor x) -> bool", lambda x: bool(x.requires_grad_() is not None and x.grad))
    for _ in range(3):
        assert use(torch.ones(2, device=D)) is False
        assert not (torch.ones(2, device=D) + 1).requires_grad


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
        before, after = (
            [entry[:8] + entry[9:] for entry in entries] for entries in (before, after)
        )
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


def test_what_a_kernel_wrote_before_it_failed_is_counted():
    """Without that, a backward pass would use the changed value and say nothing."""

    def program(device):
        w = torch.ones(3, device=device, requires_grad=True)
        y = w.exp()
        z = y.sum()
        wrong = torch.ones(2, dtype=torch.bool, device=device)
        with torch.no_grad(), pytest.raises(RuntimeError, match="can't be cast"):
            torch._foreach_mul_([y.detach(), wrong], 2.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
        return y, y._version

    check(program)


@pytest.fixture
def failing():
    library = torch.library.Library("torch_fl_failing", "FRAGMENT")
    library.define("add_and_fail(Tensor(a!) x) -> Tensor")

    def add_and_fail(x):
        x.add_(1)
        raise ValueError("after the sum")

    library.impl("add_and_fail", add_and_fail, "CPU")
    yield torch.ops.torch_fl_failing.add_and_fail
    library._destroy()


def test_what_a_librarys_kernel_wrote_before_it_failed_is_counted(failing):
    def program(device):
        x = torch.ones(3, device=device)
        with pytest.raises(ValueError, match="after the sum"):
            failing(x)
        return x, x._version

    check(program)
