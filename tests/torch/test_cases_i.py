"""Inputs that broke backends like this one, section I: tracing and profiling. Of torch.compile,
which is not served, the parts that are there without it: branches on what a tensor is, workers,
profiles."""

import threading

import pytest
import torch
from against_cpu import check
from conftest import run_python
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile, record_function

import torch_fl

D = "flagos"
flagos = torch.flagos
PLATFORM = torch_fl.platform()["name"]


# --- what a tensor says of itself decides branches ----------------------------------------------


def of_the_type(x):
    return x + (1 if x.type() == "torch.flagos.FloatTensor" else 2)


def of_the_device(x):
    return x + (1 if x.device.type == "flagos" else 2)


def of_cuda(x):
    return x + (1 if x.is_cuda else 2)


def of_the_host(x):
    return x + (1 if x.is_cpu else 2)


def of_flagos(x):
    return x + (1 if x.is_flagos else 2)


def of_the_number(x):
    return x + (1 if x.get_device() >= 0 else 2)


BRANCHES = [
    (of_the_type, 1),
    (of_the_device, 1),
    (of_cuda, 2),
    (of_the_host, 2),
    (of_flagos, 1),
    (of_the_number, 1),
]


@pytest.mark.parametrize("function, wanted", BRANCHES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_way_to_run_a_function_takes_the_same_branch(function, wanted):
    x = torch.zeros(2, device=D)
    assert function(x).tolist() == [wanted] * 2
    assert make_fx(function)(x)(x).tolist() == [wanted] * 2
    assert make_fx(function, tracing_mode="fake")(x)(x).tolist() == [wanted] * 2
    assert torch.jit.trace(function, (x,))(x).tolist() == [wanted] * 2
    assert torch.func.vmap(function)(x[:, None]).tolist() == [[wanted]] * 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function(x).tolist()))
    thread.start(), thread.join()
    assert seen == [[wanted] * 2]
    assert function(torch.nn.Parameter(x)).tolist() == [wanted] * 2
    with torch.inference_mode():
        assert function(torch.zeros(2, device=D)).tolist() == [wanted] * 2


@pytest.mark.parametrize("function, wanted", BRANCHES[1:4])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_take_it_too(function, wanted):
    scripted = torch.jit.script(function)
    assert scripted(torch.zeros(2, device=D)).tolist() == [wanted] * 2
    assert scripted(torch.zeros(2)).tolist() == [function(torch.zeros(1)).item()] * 2


def test_a_traced_training_step_gives_the_eager_numbers():
    def program(device):
        torch.manual_seed(0)
        weight = torch.randn(4, 4).to(device)
        x = torch.randn(3, 4).to(device)

        def step(weight, x):
            weight = weight.detach().requires_grad_()
            loss = torch.nn.functional.layer_norm(x @ weight, [4]).relu().square().mean()
            (grad,) = torch.autograd.grad(loss, weight)
            return weight.detach() - 0.1 * grad

        results = [step(weight, x)]
        for mode in ("real", "fake", "symbolic"):
            traced = make_fx(step, tracing_mode=mode)(weight, x)
            devices = {
                str(node.meta["val"].device.type)
                for node in traced.graph.nodes
                if isinstance(node.meta.get("val"), torch.Tensor)
            }
            assert devices <= {torch.device(device).type}
            results.append(traced(weight, x))
        return results

    check(program)


def test_an_exported_program_runs_where_it_was_made():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to(D).eval()
    x = torch.randn(2, 4, device=D)
    with torch.no_grad():
        traced = torch.jit.trace(model, (x,))
        assert torch.equal(traced(x).cpu(), model(x).cpu())
        scripted = torch.jit.script(model)
        assert torch.equal(scripted(x).cpu(), model(x).cpu())
        assert scripted.cpu()(x.cpu()).device.type == "cpu"
        model.to(D)


# --- workers that are forked after the first use -------------------------------------------------


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        # A worker makes host tensors, and sees that the device is its parent's.
        assert flagos._is_in_bad_fork() and not flagos.is_initialized()
        torch.manual_seed(index)
        return torch.rand(2)


def test_forked_workers_never_touch_the_device():
    torch.ones(1, device=D)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=3, num_workers=2)
    for _ in range(2):
        rows = torch.cat([batch.to(D) for batch in loader])
        assert rows.shape == (6, 2) and rows.device.type == D
    assert not flagos._is_in_bad_fork()


def test_a_stream_of_the_current_device_is_waited_for():
    for stream in (flagos.Stream(), torch.Stream(D)):
        stream.wait_stream(flagos.current_stream())
        stream.wait_stream(torch.accelerator.current_stream())
        flagos.current_stream().wait_stream(stream)
        stream.synchronize()


# --- profiles ------------------------------------------------------------------------------------


def work():
    x = torch.ones(8, 8, device=D, requires_grad=True)
    with record_function("a range"):
        y = (x @ x).relu()
    with flagos.stream(side := flagos.Stream()):
        side.wait_stream(flagos.default_stream())
        z = y.to("cpu", non_blocking=True)
        side.synchronize()
    y.sum().backward()
    return z


def counts(profiler):
    rows = {row.key: row.count for row in profiler.key_averages()}
    names = ("aten::mm", "aten::relu", "aten::copy_", "a range", "aten::threshold_backward")
    return [rows.get(name, 0) for name in names]


def test_sessions_of_one_process_see_the_same():
    work()
    seen = []
    for activities in ([ProfilerActivity.CPU], None, [ProfilerActivity.CPU]):
        with profile(activities=activities) as profiler:
            work()
        seen.append(counts(profiler))
    assert seen[0] == seen[1] == seen[2] and all(seen[0])
    begun = min(event.time_range.start for event in profiler.events())
    assert all(
        0 <= event.time_range.start - begun < 60e6 and event.time_range.elapsed_us() >= 0
        for event in profiler.events()
    )


def test_what_other_threads_do_is_seen_if_asked_for():
    from torch._C._profiler import _ExperimentalConfig

    options = dict(experimental_config=_ExperimentalConfig(profile_all_threads=True))
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        thread = threading.Thread(target=work)
        thread.start(), thread.join()
    assert counts(profiler)[0] >= 1


def test_a_session_may_begin_before_the_first_use():
    code = """
import torch, torch_fl
from torch.profiler import ProfilerActivity, profile
seen = []
for _ in range(2):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        (torch.ones(4, 4, device="flagos") @ torch.ones(4, 4, device="flagos")).cpu()
    seen.append({row.key: row.count for row in profiler.key_averages()}.get("aten::mm"))
print(seen)
"""
    done = run_python(code, TORCH_FL_PLATFORM=PLATFORM)
    assert done.stdout == "[1, 1]\n", done.stderr
