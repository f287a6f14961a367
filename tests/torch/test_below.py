"""What runs below a call inside torch_fl.as_cuda, where PyTorch has switched the mode off."""

import copy

import pytest
import torch
import torch.nn.functional as F

import torch_fl

x = torch.ones(2, 2)


class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        assert torch.zeros(1, device="cuda").is_cuda
        return super().__torch_function__(function, types, args, kwargs or {})


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


def attention():
    layer = torch.nn.MultiheadAttention(2, 1, add_zero_attn=True).cuda()
    return layer(*[x.cuda().view(2, 1, 2)] * 3)[0]


BELOW = {
    # Written in Python, they name the device of an argument.
    "bag": lambda: torch.nn.EmbeddingBag(4, 2).cuda()(torch.ones(2, 2).long().cuda()),
    "attention": attention,
    # They come back under their own name by way of another function.
    "unique": lambda: torch.unique(x.cuda(), return_counts=True)[0],
    "pool": lambda: F.max_pool2d(x.cuda()[None], 2, return_indices=True)[0],
    "scripted": lambda: torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2))).cuda()(x.cuda()),
    "copied": lambda: copy.deepcopy(x.cuda()),
    "vmap": lambda: torch.vmap(lambda row: row + torch.ones(2, device="cuda"))(x.cuda()),
    "subclass in C": lambda: x.cuda().as_subclass(Named) + 1,
    "subclass in Python": lambda: F.relu(x.cuda().as_subclass(Named)),
    "parameter": lambda: F.relu(torch.nn.Parameter(x.cuda())).detach(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", BELOW)
def test_cuda_is_known_below(name):
    with torch_fl.as_cuda():
        made = BELOW[name]()
        assert made.is_cuda and made.device == torch.device("cuda", 0)
        assert type(made) is (Named if "subclass" in name else torch.Tensor)


@pytest.mark.parametrize("call", [torch.neg, F.relu], ids=["C", "Python"])
def test_an_override_that_refuses_is_an_error_as_ever(call):
    tensor = torch.ones(2, device="flagos").as_subclass(Refusing)
    with torch_fl.as_cuda(), pytest.raises(TypeError, match="no implementation|Multiple dispatch"):
        call(tensor)


def test_values_are_those_of_the_host():
    torch.manual_seed(0)
    layer = torch.nn.EmbeddingBag(4, 3, mode="sum")
    ids = torch.tensor([[0, 1], [2, 3]])
    expected = layer(ids).detach()
    with torch_fl.as_cuda():
        result = layer.cuda()(ids.cuda())
        result.sum().backward()
        assert layer.weight.grad.is_cuda
    assert torch.equal(result.detach().cpu(), expected)


# --- operators of a script's own -----------------------------------------------------------------


def for_cuda(library):
    @torch.library.custom_op(f"{library}::on_cuda", mutates_args=(), device_types="cuda")
    def operator(a: torch.Tensor) -> torch.Tensor:
        return a * torch.full((1,), 3.0, device="cuda")

    return operator


def for_every_device(library):
    @torch.library.custom_op(f"{library}::on_any", mutates_args=())
    def operator(a: torch.Tensor) -> torch.Tensor:
        return a * torch.full((1,), 3.0, device=a.device)

    return operator


def decorated(library):
    torch.library.define(f"{library}::decorated", "(Tensor a) -> Tensor")

    @torch.library.impl(f"{library}::decorated", "cuda")
    def kernel(a):
        return a * torch.full((1,), 3.0, device="cuda")

    return getattr(torch.ops, library).decorated


def later(library):
    @torch.library.custom_op(f"{library}::later", mutates_args=(), device_types="cpu")
    def operator(a: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the kernel of the CPU")

    @operator.register_kernel(["cuda"])
    def kernel(a):
        return a * torch.full((1,), 3.0, device="cuda")

    return operator


@pytest.mark.parametrize(
    "define", [for_cuda, for_every_device, decorated, later], ids=lambda define: define.__name__
)
def test_operators_of_the_script_know_cuda(define):
    with torch_fl.as_cuda():
        operator = define("fl_below")
        result = operator(x.cuda())
        assert result.is_cuda and result.tolist() == [[3, 3], [3, 3]]


def test_gradients_of_an_operator_of_the_script():
    with torch_fl.as_cuda():
        operator = for_cuda("fl_below_backward")
        operator.register_autograd(lambda context, grad: grad * torch.full((1,), 3.0, device="cuda"))
        leaf = torch.ones(2, device="cuda", requires_grad=True)
        operator(leaf).sum().backward()
        assert leaf.grad.is_cuda and leaf.grad.tolist() == [3, 3]


def test_names_that_no_mode_sees():
    with torch_fl.as_cuda():
        rows = [torch.ones(2), torch.ones(3)]
        assert torch.nested.nested_tensor(rows, device="cuda").is_cuda
        torch.set_default_device("cuda:0")
        assert torch.get_default_device() == torch.device("cuda", 0)


# --- what no mode reaches ------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2 * torch.ones(2, device=x.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Wrapping(torch.Tensor):
    """A tensor around another one, in the manner of quantization libraries."""

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = [value.inner if isinstance(value, cls) else value for value in args]
        result = function(*args, **(kwargs or {}))
        return cls(result + torch.zeros(1, device=result.device))


def under_func():
    one = torch.ones(2, device="cuda")
    assert torch.func.grad(lambda y: Doubled.apply(y).sum())(one).tolist() == [2, 2]
    return torch.vmap(Doubled.apply)(torch.ones(3, 2, device="cuda"))


def under_a_dispatch_mode():
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result + torch.zeros(1, device=result.device)

    with Mode():
        return torch.ones(2, device="cuda") * 2


def under_a_wrapper():
    wrapping = Wrapping(torch.ones(2, device="cuda"), requires_grad=True)
    return (wrapping * 2).detach().inner


def where_functions_are_disabled():
    one = torch.ones(2, device="cuda")
    with torch._C.DisableTorchFunction():
        return torch.zeros(1, device=one.device)


def exported():
    arguments = (torch.ones(1, 2, device="cuda"),)
    return torch.export.export(torch.nn.Linear(2, 2).cuda(), arguments).module()(*arguments)


def traced():
    one = torch.ones(2, device="cuda", requires_grad=True)
    return torch.fx.experimental.proxy_tensor.make_fx(lambda y: y * 2)(one)(one)


@pytest.mark.parametrize(
    "run",
    [under_func, under_a_dispatch_mode, under_a_wrapper, where_functions_are_disabled, exported, traced],
)
def test_a_device_that_is_read_can_be_given_back(run):
    with torch_fl.as_cuda():
        result = run()
    assert result.device.type == "flagos"


def test_fake_tensors_of_tensors_that_say_cuda():
    with torch_fl.as_cuda():
        real = torch.ones(2, device="cuda", requires_grad=True)
        with torch._subclasses.FakeTensorMode() as fakes:
            total = (fakes.from_tensor(real) * 2).sum() + torch.ones((), device="cuda")
        assert (total.shape, total.requires_grad) == ((), True)
