"""torch_fl.routes: reading, choosing, counting, strict mode."""

import json
import threading

import pytest
import torch

import torch_fl
from torch_fl import routes

MM = "aten::mm"


@pytest.fixture
def x():
    # Whole numbers, whose products are the same however they are summed.
    return torch.arange(64.0, device="flagos").view(8, 8)


@pytest.fixture(autouse=True)
def unchanged_routes():
    yield
    routes.reset()
    routes.set_strict(False)


def calls(operator):
    return routes.read(operator).calls


def test_operators_are_named_as_in_schemas():
    names = routes.operators()
    assert {MM, "aten::add.Tensor", "aten::view", "aten::copy_"} <= {*names}
    assert names == sorted(names) and len(names) > 1000


@pytest.mark.parametrize(
    "name", ["aten::add.Tensor", "add.Tensor", "aten.add.Tensor", torch.ops.aten.add.Tensor]
)
def test_ways_to_name_an_operator(name):
    assert routes.read(name).name == "aten::add.Tensor"


def test_an_unknown_operator_is_an_error_that_shows_how_names_look():
    for call in (routes.read, routes.reset, lambda name: routes.set(name, "cpu")):
        with pytest.raises(LookupError, match="aten::nosuch.*aten::add.Tensor"):
            call("nosuch")


def test_an_unknown_route_lists_the_known_ones():
    with pytest.raises(ValueError, match="fastest.*native.*cpu"):
        routes.set(MM, "fastest")


def test_a_route_that_an_operator_does_not_have_lists_those_it_has():
    missing = ({*routes.WORDS} - {*routes.read(MM).possible}).pop()
    with pytest.raises(NotImplementedError, match=f"{MM}.*{missing}.*cpu"):
        routes.set(MM, missing)


def test_counts_are_exact(x):
    chosen = routes.read(MM).chosen
    routes.reset_counts()
    for _ in range(7):
        x @ x
    assert calls(MM) == {chosen: 7}
    routes.reset_counts()
    assert calls(MM) == {}


def test_counts_of_all_threads_are_summed(x):
    chosen = routes.read(MM).chosen
    routes.reset_counts()

    def work():
        for _ in range(50):
            torch.mm(x, x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls(MM) == {chosen: 200}


def test_a_chosen_route_serves_until_reset(x):
    before = routes.read(MM)
    y = torch.arange(64.0, device="flagos").view(8, 8) % 7
    expected = x @ y
    routes.set(MM, "cpu")
    routes.reset_counts()
    assert torch.equal(x @ y, expected)
    assert routes.read(MM).chosen == "cpu" and calls(MM) == {"cpu": 1}
    # Two operands there, one result back.
    assert routes.read(MM).cpu_bytes == 3 * x.nbytes and routes.read(MM).cpu_ns > 0
    routes.reset(MM)
    assert routes.read(MM).chosen == before.chosen == before.initial


def test_using_goes_back_after_an_exception(x):
    before = routes.read(MM).chosen
    with pytest.raises(ZeroDivisionError):
        with routes.using({MM: "cpu", "add.Tensor": "cpu"}):
            assert routes.read(MM).chosen == "cpu"
            1 / 0
    assert routes.read(MM).chosen == before
    # A choice that cannot be made changes nothing, not even what came before it.
    with pytest.raises(ValueError):
        with routes.using({MM: "cpu", "add.Tensor": "nosuch"}):
            pass
    assert routes.read(MM).chosen == before


def test_strict_mode_names_the_operator(x):
    with routes.using({MM: "cpu"}), routes.strict():
        assert routes.is_strict()
        with pytest.raises(RuntimeError, match=r"aten::mm.*float32|aten::mm[\s\S]*Float"):
            x @ x
        with routes.strict(False):
            x @ x
    assert not routes.is_strict()


def test_strict_mode_from_the_environment(python):
    code = """
import torch, torch_fl
x = torch.ones(2, 2, device="flagos")
try:
    with torch_fl.routes.using({"aten::mm": "cpu"}):
        x @ x
except RuntimeError as error:
    print(torch_fl.routes.is_strict(), "aten::mm" in str(error))
"""
    assert python(code, TORCH_FL_STRICT=1) == "True True\n"


def test_report(x):
    routes.reset_counts()
    assert str(routes.report()) == "no operator was called"
    for _ in range(3):
        x @ x
    with routes.using({MM: "cpu"}):
        x @ x
    x.t()
    report = routes.report()
    (row,) = [row for row in report.rows if row.name == MM]
    assert sum(row.calls.values()) == 4 and row.calls["cpu"] >= 1
    assert report.calls["view"] >= 1
    text = str(report)
    assert MM in text and "cpu" in text and "bytes" in text
    assert "and " in report.text(limit=1) and report.text(limit=1).count("aten::") == 1
    assert json.loads(json.dumps(report.as_dict()))["calls"] == report.calls


def test_routes_may_change_while_threads_run(x):
    stop = threading.Event()
    wrong = []
    expected = x @ x

    def work():
        while not stop.is_set():
            if not torch.equal(x @ x, expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with routes.using({MM: "cpu"}):
            x @ x
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
