"""Arguments of every kind on their way to the twin: lists, optionals, devices, generators, numbers;
and operators that libraries bring."""

import pytest
import torch
from against_cpu import check
from inside import operator  # noqa: F401: a fixture

import torch_fl

pytestmark = pytest.mark.platforms("cpu")

D = "flagos"


def test_lists_optional_lists_and_optional_tensors(operator):
    seen = []

    def kernel(one, maybe, many, some, flat):
        tensors = [one, maybe, *many, *some, *(flat or [])]
        seen.append([tensor.device.type if tensor is not None else None for tensor in tensors])
        return one.clone()

    signature = (
        "(Tensor one, Tensor? maybe, Tensor[] many, Tensor?[] some, Tensor[]? flat) -> Tensor"
    )
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
    maybe = operator(
        "(Tensor x, Device? device) -> Tensor", lambda x, device: kernel(x, device or "cpu")
    )
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


def test_lists_that_are_written_are_written_back(operator):
    def kernel(xs):
        for x in xs:
            x.resize_(3).fill_(7)

    xs = [torch.empty(0, device=D), torch.ones(1, device=D)]
    operator("(Tensor(a!)[] xs) -> ()", kernel)(xs)
    assert [x.tolist() for x in xs] == [[7] * 3] * 2
    # Real operators whose lists are written in parts.
    x = torch.ones(3, device=D)
    lazy = torch._lazy_clone(x)
    torch._foreach_add_([lazy, lazy], 1)
    assert x.tolist() == [1] * 3 and lazy.tolist() == [3] * 3
    parts = [torch.empty(0, device=D), torch.empty(0, device=D)]
    torch.unbind_copy(torch.arange(4.0, device=D).view(2, 2), out=parts)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]
