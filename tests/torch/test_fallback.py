"""The route `cpu`: what it copies, what it writes back, what it refuses, and that it says so.

On a platform with a twin the route is chosen for the operators of a test; on one without, such as
`sim`, it serves whatever has no kernel there; the last tests are about that one.
"""

import contextlib
import subprocess
import sys

import pytest
import torch
from against_cpu import EXACT, PLATFORM, check, state
from conftest import ROOT

import torch_fl
from torch_fl import routes

D = "flagos"
NO_TWIN = torch_fl.platform()["twin"] in (None, "none", "")


@pytest.fixture(autouse=True)
def unchanged_routes():
    yield
    routes.set_strict(False)
    routes.reset()


def served(*operators):
    """Those of the operators that have a route of their own here."""
    return [operator for operator in operators if f"aten::{operator}" in set(routes.operators())]


@contextlib.contextmanager
def on_cpu(*operators):
    """Serve these operators by the route `cpu`, and see that they were. Those that PyTorch composes
    of others on this platform have no route."""
    known = served(*operators)
    routes.reset_counts()
    with routes.using({operator: "cpu" for operator in known}):
        yield
    for operator in known:
        assert set(routes.read(operator).calls) == {"cpu"}, routes.read(operator)


def checked(program, *operators):
    """`program` on flagos with these operators on the CPU, against the CPU."""

    def run(device):
        if device == "cpu":
            return program(device)
        with on_cpu(*operators):
            return program(device)

    return check(run)


# --- values --------------------------------------------------------------------------------------


def test_results_layouts_and_dtypes():
    def program(device):
        x = torch.arange(12.0).to(device).view(3, 4)
        images = torch.randn(2, 3, 4, 4).to(device).to(memory_format=torch.channels_last)
        return [
            torch.mm(x, x.t()),
            torch.mm(x.t(), x),
            torch.mm(x[:, ::2], x[:2, :2]),
            torch.relu(images),
            torch.relu(x.t()),
            torch.relu(x[:1].expand(5, 4)),
            torch.relu(torch.zeros(0, 3, device=device)),
            torch.relu(torch.tensor(-1.0, device=device)),
        ]

    checked(program, "mm", "relu")


def test_wrapped_numbers_and_0_dim_tensors_promote():
    def program(device):
        half = torch.ones(2, dtype=torch.float16, device=device)
        whole = torch.ones(2, dtype=torch.int32, device=device)
        return [
            half * 2.5,
            2.5 * half,
            whole * 1.5,
            whole * True,
            half * torch.tensor(2.0, dtype=torch.float64),
            torch.ops.aten.mul(half, torch.tensor(2.0, dtype=torch.float64, device=device)),
        ]

    checked(program, "mul.Tensor")


def test_complex_results_and_lazy_operands():
    def program(device):
        x = torch.arange(8.0).to(device)
        z = torch.fft.rfft(x)
        return [z, z.abs(), z.conj() @ z, (z.conj() * 2).imag, torch.abs(z.conj())]

    checked(program, "_fft_r2c", "abs", "dot")


def test_boolean_masks():
    def program(device):
        results = []
        for size in (1, 2, 3):
            x = torch.arange(float(size)).to(device)
            results += [x[x > 0], x[x < 0], x[torch.ones(size, dtype=torch.bool, device=device)]]
        x = torch.arange(6.0).to(device).view(2, 3)
        results += [x[torch.tensor(True, device=device)], x[torch.tensor(False, device=device)]]
        results += [x[x > 2], x[:, x[0] > 0], x[torch.tensor([True, False])], x.nonzero()]
        x[x > 3] = -1
        results.append(x)
        return results

    checked(program, "index.Tensor", "nonzero")


def test_results_without_tensors():
    def program(device):
        x = torch.arange(3.0).to(device)
        return torch.equal(x, x), torch.equal(x, x + 1), torch.allclose(x, x)

    checked(program, "equal")


def test_many_results_and_missing_ones():
    def program(device):
        x = torch.randn(2, 3, 5, 5).to(device).requires_grad_()
        weight = torch.randn(4, 3, 3, 3).to(device)
        y = torch.nn.functional.conv2d(x, weight)
        y.square().sum().backward()
        values, indices = torch.sort(x.detach().flatten())
        return [y, x.grad, values, indices, *torch.var_mean(x.detach()), *torch.unique(indices[:3])]

    checked(program, "convolution_backward", "sort")


# --- writes --------------------------------------------------------------------------------------


def test_in_place_and_out():
    def program(device):
        x = torch.arange(6.0).to(device)
        results = [x.mul_(2), x[1:3].mul_(3), x.view(2, 3).t().mul_(2), x]
        out, small = torch.empty(6, device=device), torch.empty(0, device=device)
        strided = torch.zeros(6, 2, device=device)[:, 0]
        torch.mul(x, 2, out=out)
        torch.mul(x, 2, out=small)
        torch.mul(x, 2, out=strided)
        torch.mul(x, x, out=x)
        same = torch.mul(x, 1, out=out) is out
        return [*results, out, small, strided, x, same, x._version]

    checked(program, "mul_.Tensor", "mul.out")


def test_lists_that_are_written():
    def program(device):
        a = [torch.full((3,), float(i), device=device) for i in range(4)]
        b = [torch.ones(3, device=device) for _ in range(4)]
        torch._foreach_add_(a, b, alpha=2)
        torch._foreach_mul_(a, 3.0)
        torch._foreach_add_([a[0], a[0]], [b[0], b[1]])
        return a, b, torch._foreach_sqrt(a)

    checked(program, "_foreach_add_.List", "_foreach_mul_.Scalar", "_foreach_sqrt")


def test_arguments_beside_the_list_that_are_written():
    def program(device):
        grads = [
            torch.tensor([1.0, 2.0], device=device),
            torch.tensor([float("inf")], device=device),
        ]
        found, scale = torch.zeros(1, device=device), torch.full((1,), 0.5, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
        return grads, found, scale

    # The CPU names its operator otherwise; both write two arguments.
    checked(program, "_amp_foreach_non_finite_check_and_unscale_")


def test_a_fused_optimizer():
    def program(device):
        torch.manual_seed(0)
        parameters = [torch.randn(3).to(device).requires_grad_() for _ in range(3)]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
        return parameters

    checked(program, "_fused_adamw_")


def test_the_same_tensor_twice_is_copied_once():
    x = torch.ones(8, 8, device=D)
    with on_cpu("mm"):
        torch.mm(x, x)
    assert routes.read("mm").cpu_bytes == 2 * x.nbytes  # There once, and the result back.


def test_operands_that_share_memory():
    """What overlaps is refused as on the CPU, and what merely shares a storage is not."""

    def fine(device):
        x = torch.arange(6.0).to(device)
        torch.mul(x[:3], x[3:], out=x[:3])
        x[3:].mul_(x[:3])
        return x

    checked(fine, "mul.out", "mul_.Tensor")

    def partly(device):
        x = torch.arange(6.0).to(device)
        torch.mul(x[1:], 2, out=x[:-1])

    def internally(device):
        torch.ones(1, device=device).expand(3).mul_(2)

    assert isinstance(check_with(partly, "mul.out"), RuntimeError)
    assert isinstance(check_with(internally, "mul_.Tensor"), RuntimeError)


def test_what_lies_between_operands_of_one_storage_is_not_copied():
    x = torch.arange(100_000.0, device=D)
    with on_cpu("mul_.Tensor"):
        x[:4].mul_(x[-4:])
    assert x[:5].tolist() == [0, 99_997, 2 * 99_998, 3 * 99_999, 4]
    assert routes.read("mul_.Tensor").cpu_bytes == 3 * 4 * x.itemsize  # Both there, one back.


def check_with(program, *operators):
    def run(device):
        with routes.using({operator: "cpu" for operator in operators}):
            return program(device)

    return check(run)


def test_an_out_that_grows_meets_what_lies_behind_it():
    def fits(device):
        x = torch.arange(6.0).to(device)
        return torch.mul(x[:2], x[4:], out=x[2:2]), x

    def overwrites(device):
        x = torch.arange(6.0).to(device)
        return torch.mul(x[:2], x[3:5], out=x[2:2]), x

    def is_checked(device):
        x = torch.arange(6).to(device)
        torch.gather(x.clone(), 0, x[1:], out=x[:1])

    check_with(fits, "mul.out")
    check_with(overwrites, "mul.out")
    assert "single memory location" in str(check_with(is_checked, "gather.out"))


def test_copy_on_write_operands_stay_apart():
    def program(device):
        x = torch.arange(4.0).to(device)
        y = torch._lazy_clone(x)
        y.mul_(2)
        return x, y

    checked(program, "mul_.Tensor")


# --- errors --------------------------------------------------------------------------------------


def test_errors_leave_operands_as_they_were():
    a, b = torch.ones(2, 3, device=D), torch.ones(4, 5, device=D)
    out = torch.empty(0, device=D)
    before = [state(tensor) for tensor in (a, b, out)]
    operators = served("mm", "mm.out", "mul.out", "_foreach_add_.List")
    with routes.using({operator: "cpu" for operator in operators}):
        for call in (
            lambda: torch.mm(a, b),
            lambda: torch.mm(a, b, out=out),
            lambda: torch.mul(a, b, out=out),
            lambda: torch._foreach_add_([a, b], [b, b]),
        ):
            with pytest.raises(RuntimeError):
                call()
            after = [entry[:8] + entry[9:] for entry in map(state, (a, b, out))]
            assert after == [entry[:8] + entry[9:] for entry in before]
    assert b.eq(1).all() and a.eq(1).all()


def test_it_hides_no_device_mismatch():
    dev, cpu = torch.ones(3, device=D), torch.ones(3)
    with routes.using({"dot": "cpu", "mm": "cpu", "add.Tensor": "cpu", "cat": "cpu"}):
        for call in (
            lambda: torch.dot(dev, cpu),
            lambda: torch.mm(dev.view(1, 3), cpu.view(3, 1)),
            lambda: dev + cpu,
            lambda: cpu + dev.sum(),
            lambda: torch.cat([dev, cpu]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                call()
        assert (dev + torch.tensor(1.0)).tolist() == [2, 2, 2]
        assert (torch.tensor(1.0) + dev).device.type == D


def test_generators_and_devices_go_through_it():
    with on_cpu("normal_"):
        g = torch.Generator(D).manual_seed(3)
        first = torch.zeros(5, device=D).normal_(generator=g)
        order = torch.randperm(5, device=D, generator=g)
        assert order.device.type == D
        if EXACT:  # An accelerator's sequence is not the host's, and follows its own generator.
            host = torch.Generator().manual_seed(3)
            assert torch.equal(first.cpu(), torch.zeros(5).normal_(generator=host))
            assert torch.equal(order.cpu(), torch.randperm(5, generator=host))
        g.manual_seed(3)
        assert torch.equal(torch.zeros(5, device=D).normal_(generator=g), first)
        assert not torch.equal(torch.zeros(5, device=D).normal_(generator=g), first)
        with pytest.raises(RuntimeError, match="generator"):
            torch.zeros(5, device=D).normal_(generator=torch.Generator())
        torch.flagos.manual_seed(3)
        before = torch.get_rng_state()
        assert torch.equal(torch.zeros(5, device=D).normal_(), first)
        assert torch.equal(torch.get_rng_state(), before)


# --- what it says --------------------------------------------------------------------------------


def test_it_is_counted_with_bytes_and_time():
    x = torch.ones(10, 10, device=D)
    with on_cpu("mm"):
        for _ in range(3):
            torch.mm(x, x)
    route = routes.read("mm")
    assert route.calls == {"cpu": 3} and route.cpu_bytes == 3 * 2 * x.nbytes and route.cpu_ns > 0
    assert "aten::mm" in routes.report().text() and "bytes" in routes.report().text()


def test_strict_mode_raises_and_names_operator_dtypes_and_rule():
    x = torch.ones(2, 2, device=D, dtype=torch.float64)
    with routes.using({"mm": "cpu"}):
        with routes.strict():
            with pytest.raises(NotImplementedError) as caught:
                torch.mm(x, x)
        text = str(caught.value)
        for words in ("aten::mm", "ouble", PLATFORM, "strict(False)"):
            assert words in text, text
        # A rule is no advice where there is no other route to name in it.
        has_another = "no other route" not in text
        assert has_another != NO_TWIN and has_another == ("aten::mm = <route>" in text), text
        assert torch.mm(x, x).tolist() == [[2, 2], [2, 2]]


def test_strict_mode_names_the_dtypes_in_lists():
    xs = [torch.ones(2, device=D), torch.ones(2, device=D), torch.ones(2, device=D, dtype=torch.half)]
    with routes.using({"stack": "cpu"} if served("stack") else {"cat": "cpu"}), routes.strict():
        with pytest.raises(NotImplementedError) as caught:
            torch.stack(xs) if served("stack") else torch.cat(xs)
    assert "([Float, Half]) has no kernel" in str(caught.value)


def test_strict_mode_leaves_views_copies_and_metadata_alone():
    with routes.strict():
        x = torch.empty(4, 4, device=D)
        x.copy_(torch.ones(4, 4))
        assert x[1:].view(-1).t().cpu().sum() == 12
        assert x.to(torch.float64).cpu().dtype == torch.float64
        assert x[0, 0].item() == 1 and x.unfold(0, 2, 1).shape == (3, 4, 2)
        x.resize_(2, 2).set_(x.untyped_storage())
        assert x.clone(memory_format=torch.contiguous_format).shape == (16,)


def test_nothing_that_aliases_or_makes_has_this_route():
    """A copy on the host can serve neither a view nor a factory; said of all of them at once."""
    for name in (
        "empty.memory_format",
        "empty_strided",
        "as_strided",
        "view",
        "_reshape_alias",
        "unfold",
        "view_as_real",
        "view_as_complex",
        "copy_",
        "_to_copy",
        "set_.source_Storage",
        "_local_scalar_dense",
    ):
        assert "cpu" not in routes.read(name).possible, name


# --- a platform that has no twin -----------------------------------------------------------------

sim = pytest.mark.platforms("sim")


@sim
def test_two_devices():
    assert torch.flagos.device_count() >= 2
    a = torch.arange(4.0).to("flagos:0")
    b = torch.arange(4.0).to("flagos:1")
    assert (a + 1).device.index == 0 and (b + 1).device.index == 1
    c = a.to("flagos:1")
    assert c.device.index == 1 and torch.equal((c + b).cpu(), torch.arange(4.0) * 2)
    assert torch.equal(torch.empty(4, device="flagos:1").copy_(a.flip(0)).cpu(), a.cpu().flip(0))
    with pytest.raises(RuntimeError, match="flagos:0.*flagos:1"):
        a + b
    with torch.flagos.device(1):
        assert torch.ones(2, device=D).device.index == 1
        assert (a + 1).device.index == 0 and torch.flagos.current_device() == 1


@sim
def test_device_memory_is_out_of_reach_of_the_host():
    """Reading it without a copy ends the process: that is what makes missing copies visible."""
    code = """
import ctypes, torch, torch_fl
x = torch.ones(4096, device="flagos")
torch.flagos.synchronize()
print("reading", flush=True)
ctypes.string_at(x.data_ptr(), 4)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "reading" in done.stdout and done.returncode < 0, (done.returncode, done.stderr)


@sim
def test_an_mlp_is_trained():
    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        inputs = torch.randn(32, 8).to(device)
        labels = torch.randint(4, (32,)).to(device)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        return losses, [p.detach() for p in model.parameters()]

    routes.reset_counts()
    check(train)
    report = routes.report()
    assert report.calls["cpu"] > 100 and report.calls["view"] > 0
    assert "aten::addmm" in {row.name for row in report.rows if "cpu" in row.calls}


@sim
def test_streams_order_copies_and_operators():
    x = torch.arange(1000.0)
    stream = torch.flagos.Stream()
    with torch.flagos.stream(stream):
        for _ in range(20):
            device = x.to(D, non_blocking=True)
            y = (device * 2).to("cpu")
            assert torch.equal(y, x * 2)
    event = torch.flagos.Event()
    with torch.flagos.stream(stream):
        a = x.to(D, non_blocking=True)
        event.record(stream)
    torch.flagos.current_stream().wait_event(event)
    assert torch.equal((a + 1).cpu(), x + 1)


@sim
def test_memory_is_counted():
    before = torch.flagos.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=D)
    assert torch.flagos.memory_allocated() - before >= 1 << 20
    del x
    assert torch.flagos.memory_allocated() == before


@sim
def test_attention_is_chosen_as_on_the_host():
    """The choice is made above the operators that fall back, and of tensors out of reach."""

    def program(device):
        attention = torch.nn.functional.scaled_dot_product_attention
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, 6, 8).to(device).requires_grad_() for _ in range(3))
        mask = (torch.rand(2, 1, 6, 6) > 0.2).to(device)
        results = [
            attention(q, k, v),
            attention(q, k, v, is_causal=True),
            attention(q, k, v, attn_mask=mask),
            attention(q[..., :5], k[..., :5], v),
            attention(q, k, v, attn_mask=torch.zeros(6, 6).to(device).requires_grad_()),
        ]
        sum(result.square().sum() for result in results).backward()
        return results, q.grad, k.grad, v.grad

    check(program)
    assert "cpu" in routes.read("_scaled_dot_product_flash_attention_for_cpu").calls
