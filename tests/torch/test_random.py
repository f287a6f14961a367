"""Random numbers: seeds, states, generators, before and after initialisation."""

import copy
import pickle
import threading

import pytest
import torch

import torch_fl

flagos = torch.flagos
COUNT = flagos.device_count()
PLATFORM = torch_fl.platform()["name"]
two_devices = pytest.mark.skipif(COUNT < 2, reason="needs two devices")


def draw(device="flagos", **options):
    return torch.randn(7, device=device, **options).cpu()


def test_one_seed_gives_one_sequence():
    sequences = []
    for seed in (lambda: torch.manual_seed(3), lambda: flagos.manual_seed_all(3)):
        seed()
        sequences.append([draw(), torch.rand(3, device="flagos").cpu(), draw()])
    for first, second in zip(*sequences):
        assert torch.equal(first, second)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64 - 1])
def test_seeds_of_every_size(seed):
    flagos.manual_seed(seed)
    first = draw()
    flagos.manual_seed(seed)
    assert torch.equal(first, draw())
    assert flagos.initial_seed() == seed % 2**64
    assert torch.Generator("flagos").manual_seed(seed).initial_seed() == seed % 2**64


@two_devices
def test_manual_seed_is_for_the_current_device():
    flagos.manual_seed_all(1)
    with flagos.device(1):
        flagos.manual_seed(2)
        assert flagos.initial_seed() == 2
    assert flagos.initial_seed() == 1
    flagos.manual_seed_all(9)
    assert [generator.initial_seed() for generator in flagos.default_generators] == [9] * COUNT
    assert torch.equal(draw("flagos:0"), draw("flagos:1"))


def test_states_go_back_and_forth():
    state = flagos.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.dim() == 1
    first = draw()
    flagos.set_rng_state(state)
    assert torch.equal(first, draw())
    for form in (0, "flagos:0", torch.device("flagos:0"), "flagos"):
        flagos.set_rng_state(state, form)
        assert torch.equal(flagos.get_rng_state(form), state)
    states = flagos.get_rng_state_all()
    drawn = [draw(f"flagos:{index}") for index in range(COUNT)]
    flagos.set_rng_state_all(states)
    assert all(torch.equal(a, draw(f"flagos:{i}")) for i, a in enumerate(drawn))


def test_a_wrong_state_is_refused_and_changes_nothing():
    before = flagos.get_rng_state()
    for wrong, error, text in (
        (torch.zeros(3, dtype=torch.uint8), RuntimeError, "wrong size"),
        (torch.zeros(3), TypeError, "ByteTensor"),
        (before.float(), TypeError, "ByteTensor"),
    ):
        with pytest.raises(error, match=text):
            flagos.set_rng_state(wrong)
    assert torch.equal(flagos.get_rng_state(), before)


def test_generators_are_independent():
    one = torch.Generator(device="flagos").manual_seed(4)
    other = torch.Generator(device=torch.device("flagos:0")).manual_seed(4)
    flagos.manual_seed(4)
    first = draw(generator=one)
    draw()
    assert torch.equal(first, draw(generator=other))
    assert one.device == torch.device("flagos:0")
    assert one.seed() == one.initial_seed()


def test_a_generators_state_is_set_and_copied():
    generator = torch.Generator(device="flagos").manual_seed(11)
    draw(generator=generator)
    state = generator.get_state()
    first = draw(generator=generator)
    other = torch.Generator(device="flagos")
    other.set_state(state)
    assert torch.equal(first, draw(generator=other))
    generator.set_state(state)
    copy = generator.clone_state()
    assert torch.equal(draw(generator=generator), draw(generator=copy))


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="flagos"):
        torch.rand(3, device="flagos", generator=torch.Generator("cpu"))


def test_a_host_tensor_refuses_a_generator_of_flagos():
    with pytest.raises(RuntimeError, match="flagos"):
        torch.rand(3, generator=torch.Generator("flagos"))


def test_fork_rng_brings_the_state_back():
    flagos.manual_seed(21)
    expected = draw()
    flagos.manual_seed(21)
    with torch.random.fork_rng(devices=range(COUNT), device_type="flagos"):
        flagos.manual_seed(5)
        draw()
    assert torch.equal(draw(), expected)


def test_the_hosts_numbers_are_not_touched():
    torch.manual_seed(6)
    expected = torch.rand(4)
    torch.manual_seed(6)
    draw()
    torch.randperm(10, device="flagos")
    assert torch.equal(torch.rand(4), expected)


def test_operators_take_generators():
    for call in (
        lambda g: torch.randperm(50, device="flagos", generator=g),
        lambda g: torch.randint(100, (9,), device="flagos", generator=g),
        lambda g: torch.empty(9, device="flagos").uniform_(generator=g),
        lambda g: torch.bernoulli(torch.full((20,), 0.5, device="flagos"), generator=g),
        lambda g: torch.multinomial(torch.ones(20, device="flagos"), 5, generator=g),
    ):
        results = [call(torch.Generator("flagos").manual_seed(8)).cpu() for _ in range(2)]
        assert torch.equal(*results)


def test_threads_share_the_default_generator():
    flagos.manual_seed(0)
    drawn, lock = [], threading.Lock()

    def work():
        for _ in range(10):
            values = draw()
            with lock:
                drawn.append(tuple(values.tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(set(drawn)) == 40


# --- before initialisation -----------------------------------------------------------------------


def test_seeds_wait_in_their_order(python):
    code = """
import torch, torch_fl
flagos = torch.flagos
torch.manual_seed(1)
flagos.manual_seed(7)
assert not flagos.is_initialized() and flagos.default_generators == ()
early = torch.rand(3, device="flagos").cpu()
flagos.manual_seed(7)
assert torch.equal(early, torch.rand(3, device="flagos").cpu())
print(flagos.initial_seed(), len(flagos.default_generators))
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == f"7 {COUNT}\n"


def test_a_state_waits_and_may_be_changed_meanwhile(python, tmp_path):
    flagos.manual_seed(33)
    path = tmp_path / "state.pt"
    torch.save(flagos.get_rng_state(), path)
    expected = torch.rand(3, device="flagos").tolist()
    code = """
import sys, torch, torch_fl
state = torch.load(sys.argv[1])
torch.flagos.set_rng_state(state)
state.zero_()
assert not torch.flagos.is_initialized()
print(torch.rand(3, device="flagos").tolist())
"""
    from conftest import run_python

    done = run_python(code, str(path), TORCH_FL_PLATFORM=PLATFORM)
    assert done.stdout == f"{expected}\n", done.stderr


def test_a_queued_call_that_fails_names_its_caller(python):
    code = """
import torch, torch_fl
def culprit():
    torch.flagos.set_rng_state(torch.zeros(3, dtype=torch.uint8))
culprit()
try:
    torch.ones(1, device="flagos")
except torch.flagos.DeferredCallError as error:
    print("in culprit" in str(error))
"""
    assert python(code, TORCH_FL_PLATFORM=PLATFORM) == "True\n"


@pytest.mark.parametrize("again", [lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy])
def test_a_generator_is_pickled_and_copied_with_its_state(again):
    generator = torch.Generator("flagos").manual_seed(3)
    torch.rand(3, device="flagos", generator=generator)
    other = again(generator)
    assert other.device == generator.device and other.initial_seed() == 3
    draws = [torch.rand(5, device="flagos", generator=each).cpu() for each in (generator, other)]
    assert torch.equal(*draws)


TWINS_START = """
import torch, torch_fl
torch.manual_seed(5)
torch.rand(3, device=DEVICE)
state = getattr(torch, DEVICE).get_rng_state()
torch.cuda.init()
torch.flagos.init()
torch.flagos.memory_allocated()
print(torch.equal(getattr(torch, DEVICE).get_rng_state(), state))
"""


@pytest.mark.platforms("cuda")
@pytest.mark.parametrize("device", ("flagos", "cuda"))
def test_a_later_start_of_the_other_module_sets_no_seed_again(python, device):
    """Both draw from the same generators, and each keeps seeds for its start."""
    code = TWINS_START.replace("DEVICE", repr(device))
    assert python(code, TORCH_FL_PLATFORM="cuda") == "True\n"
