"""Sparse tensors: COO and compressed ones are made, moved, changed and differentiated on flagos as
on the CPU, and every tensor that they hold lies on flagos."""

import copy
import gc
import io
import threading
import weakref

import parts
import pytest
import torch
from conftest import ON_A_CARD, assert_device_is_lost
from kinds import COMPRESSED, LAYOUTS, assert_same, check, check_error, name_of
from parts import COMPRESSED_OPERATORS, OPERATORS, coo, dense, described_case, hybrid, sparse
from twins import assert_same_as_twin

pytestmark = pytest.mark.platforms("cpu", "sim", "cuda")

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
compressed = pytest.mark.parametrize("layout", COMPRESSED, ids=name_of)


# --- making and moving ---------------------------------------------------------------------------


@layouts
def test_a_dense_tensor_becomes_sparse_and_dense_again(layout):
    def program(device):
        made = dense(4, 6).to(device).to_sparse(layout=layout, blocksize=blocks(layout))
        return made, made.to_dense(), made.clone(), made.detach()

    check(program)


def test_coo_is_made_of_indices_and_values():
    def program(device):
        indices, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3.0, 4.0])
        return (
            torch.sparse_coo_tensor(indices.to(device), values.to(device), (2, 3)),
            torch.sparse_coo_tensor(indices.to(device), values.to(device)),
            torch.sparse_coo_tensor(indices, values, (2, 3), device=device),
            torch.sparse_coo_tensor((2, 3), device=device),
            torch.sparse_coo_tensor(torch.zeros(2, 0), torch.zeros(0, 5), (2, 3, 5), device=device),
        )

    check(program)


@compressed
def test_compressed_is_made_of_its_members(layout):
    def program(device):
        like = sparse("cpu", layout)
        by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
        members = (
            like.crow_indices() if by_row else like.ccol_indices(),
            like.col_indices() if by_row else like.row_indices(),
            like.values().clone(),
        )
        there = [member.to(device, copy=True) for member in members]
        return (
            torch.sparse_compressed_tensor(*there, (4, 6), layout=layout),
            torch.sparse_compressed_tensor(*there, layout=layout),
            torch.sparse_compressed_tensor(*members, layout=layout, device=device),
        )

    check(program)


def wrong_rows(device):
    rows, columns = torch.tensor([0, 9]), torch.tensor([0])
    return torch.sparse_csr_tensor(
        rows, columns, torch.ones(1), (1, 1), device=device, check_invariants=True
    )


def test_what_is_no_sparse_tensor_is_refused():
    def index(device, row):
        indices = torch.tensor([[0, row], [0, 1]], device=device)
        values = torch.ones(2, device=device)
        return torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=True)

    check_error(lambda device: index(device, 9), "size is inconsistent with indices")
    check_error(lambda device: index(device, -1), "found negative index")
    check_error(
        lambda device: torch.sparse_coo_tensor(
            torch.tensor([0, 1], device=device), torch.ones(2, device=device), (2, 2)
        ),
        "indices must be sparse_dim x nnz",
    )
    if ON_A_CARD:
        assert_device_is_lost("test_sparse", "wrong_rows")
    else:
        check_error(wrong_rows, "crow_indices")
    check_error(lambda device: coo(device).indices(), "Cannot get indices on an uncoalesced tensor")


@layouts
def test_moving_keeps_everything_but_the_device(layout):
    def program(device):
        there = sparse("cpu", layout).to(device)
        return there, there.double(), there.to(device, torch.float16), there.to(device)

    check(program)
    back = sparse("flagos", layout).cpu()
    assert_same(back, sparse("cpu", layout), "cpu")


@layouts
def test_saved_and_copied(layout):
    def program(device):
        file = io.BytesIO()
        torch.save(sparse(device, layout), file)
        file.seek(0)
        return torch.load(file)

    check(program)
    # On the CPU PyTorch has no deep copy of a compressed tensor.
    assert_same(copy.deepcopy(sparse("flagos", layout)), sparse("cpu", layout))


@layouts
def test_shown(layout):
    text = repr(sparse("flagos", layout))
    assert "device='flagos:0'" in text
    same = text.replace(" device='flagos:0',", "")
    assert "".join(same.split()) == "".join(repr(sparse("cpu", layout)).split())


# --- operators -----------------------------------------------------------------------------------

def check_case(name, *arguments):
    """A case of parts.py gives the CPU's result, or an accelerator's own where one is the twin."""
    if ON_A_CARD:
        assert_same_as_twin(described_case, name, *arguments)
    else:
        check(lambda device: getattr(parts, name)(device, *arguments))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_on_coo(name):
    check_case("on_coo", name)


def test_operators_on_hybrid():
    check_case("on_hybrid")


def test_operators_on_complex():
    check_case("on_complex")


@compressed
@pytest.mark.parametrize("name", COMPRESSED_OPERATORS)
def test_operators_on_compressed(layout, name):
    check_case("on_compressed", name, layout)


@pytest.mark.platforms("cpu", "sim")
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("wants", [(True, True), (True, False), (False, True)])
def test_a_reducing_product_and_its_gradients(reduce, wants):
    """The kernel remembers what its backward needs only where an operand wants a gradient."""

    def program(device):
        left = sparse(device, torch.sparse_csr).requires_grad_(wants[0])
        right = dense(6, 3).to(device).requires_grad_(wants[1])
        result = torch.sparse.mm(left, right, reduce)
        result.sum().backward()
        return result, [x.grad for x in (left, right) if x.requires_grad]

    check(program)


def test_operands_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="device|to be on flagos"):
        coo("flagos") + coo("cpu")
    with pytest.raises(RuntimeError, match="device"):
        torch.sparse.mm(coo("flagos"), torch.ones(3, 2))


# --- in place, out=, aliases ---------------------------------------------------------------------


def test_in_place_on_coo():
    check_case("in_place_on_coo")


@compressed
def test_in_place_on_compressed(layout):
    def program(device):
        s = sparse(device, layout)
        same = s.mul_(2)
        s.sin_()
        return (
            same is s,
            s,
            s._version,
            sparse(device, layout).zero_(),
            sparse(device, layout).fill_(2),
        )

    check(program)


def test_out():
    check_case("into_out")


def test_resized():
    def program(device):
        return (
            coo(device).sparse_resize_((5, 5), 2, 0),
            coo(device).sparse_resize_and_clear_((5, 5), 1, 1),
            torch.sparse_coo_tensor((1, 1), device=device).resize_as_sparse_(coo(device)),
        )

    check(program)
    check_error(lambda device: coo(device).sparse_resize_((1, 1), 2, 0), "shrinking")


@layouts
def test_copied_into(layout):
    def program(device):
        target = sparse(device, layout)
        return target.copy_(sparse("cpu", layout) * 3), target._version

    check(program)
    back = sparse("cpu", layout)
    back.copy_(sparse("flagos", layout) * 3)
    assert torch.equal(back.to_dense(), sparse("cpu", layout).to_dense() * 3)


@layouts
def test_values_are_the_tensors_own(layout):
    def program(device):
        s = (
            sparse(device, layout).coalesce()
            if layout is torch.sparse_coo
            else sparse(device, layout)
        )
        values = s.values()
        values.mul_(2)
        return s, values.data_ptr() == s.values().data_ptr(), s.to_dense()

    check(program)
    s = coo("flagos")
    assert s._values().data_ptr() == s._values().data_ptr()
    assert (s * 1)._values().data_ptr() != s._values().data_ptr()


def test_members_outlive_their_tensor_and_then_go():
    s = coo("flagos")
    values, gone = s._values(), weakref.ref(s)
    product = torch.sparse.mm(s, torch.ones(3, 2, device="flagos"))
    del s
    gc.collect()
    assert gone() is None
    assert values.tolist() == [3, 4, 5, 6] and product.tolist() == [[3, 3], [15, 15]]


def test_a_failed_call_leaves_its_operands():
    s = coo("flagos")
    before = s._indices().data_ptr(), s._values().data_ptr(), s._version, s.to_dense().tolist()
    with pytest.raises(RuntimeError):
        torch.sparse.mm(s, torch.ones(5, 2, device="flagos"))
    with pytest.raises(RuntimeError):
        s.add_(torch.sparse_coo_tensor((7, 7), device="flagos"))
    assert before == (
        s._indices().data_ptr(),
        s._values().data_ptr(),
        s._version,
        s.to_dense().tolist(),
    )


def test_threads_share_a_tensor():
    s, wrong = coo("flagos"), []
    expected = (coo("cpu") @ torch.ones(3, 2)).tolist()

    def work():
        for _ in range(200):
            result = torch.sparse.mm(s, torch.ones(3, 2, device="flagos"))
            if s.device.type != "flagos" or s._values().device.type != "flagos":
                wrong.append("label")
        if result.tolist() != expected:
            wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- modes ---------------------------------------------------------------------------------------


def test_inference_mode():
    def program(device):
        outside = coo(device)
        with torch.inference_mode():
            inside = coo(device)
            compressed = dense(4, 4).to(device).to_sparse_csr()
            made = (outside + outside, inside.mul_(2), compressed, inside)
            return [result.to_dense() for result in made]

    check(program)


def test_mkldnn_is_refused():
    with pytest.raises(NotImplementedError):
        torch.ones(2, 3, device="flagos").to_mkldnn()


def test_a_tensor_that_says_it_is_coalesced_is_checked():
    def make(indices):
        indices, values = torch.tensor(indices, device="flagos"), torch.ones(2, device="flagos")
        return torch.sparse_coo_tensor(
            indices, values, (2, 2), is_coalesced=True, check_invariants=True
        )

    assert make([[0, 1], [0, 1]]).to_dense().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(RuntimeError, match="coalesced"):
        make([[1, 0], [1, 0]])
