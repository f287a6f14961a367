"""Run the same program on flagos and on plain CPU tensors, and compare everything that a user can
see: values, dtype, sizes, strides, aliasing of results, and the class and text of errors.

Where the platform's kernels are the host's own the values must be equal bit for bit; elsewhere
floating point values may differ by rounding. Texts of errors must be equal on `cpu`, whose twin
says them; elsewhere their classes.
"""

import re

import torch

import torch_fl

PLATFORM = torch_fl.platform()["name"]
# Without a twin, operators run on the host.
EXACT = torch_fl.platform()["twin"] in ("cpu", None)


def host(value):
    """`value` with every flagos tensor replaced by its copy on the host."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)):
        return (
            type(value)(map(host, value))
            if type(value) in (list, tuple)
            else tuple(map(host, value))
        )
    return value


def assert_same_values(left, right):
    """Equal values, NaN where the other has NaN; rounding is forgiven where kernels differ."""
    left, right = left.detach().cpu(), right.detach().cpu()
    assert left.dtype == right.dtype and left.shape == right.shape
    if EXACT or not (left.is_floating_point() or left.is_complex()):
        assert torch.equal(left.isnan(), right.isnan()), (left, right)
        assert torch.equal(left.nan_to_num(), right.nan_to_num()), (left, right)
    else:
        torch.testing.assert_close(left, right, equal_nan=True)


def assert_same(left, right):
    """`left` came from flagos, `right` from the CPU."""
    assert type(left) is type(right), (left, right)
    if isinstance(left, torch.Tensor):
        assert left.device.type in ("flagos", "cpu")
        assert left.stride() == right.stride(), (left.stride(), right.stride())
        assert left.storage_offset() == right.storage_offset()
        assert (left.requires_grad, left.is_conj(), left.is_neg(), left.names) == (
            right.requires_grad,
            right.is_conj(),
            right.is_neg(),
            right.names,
        )
        assert_same_values(left.rename(None), right.rename(None))
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right):
            assert_same(one, other)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    else:
        assert left == right or (left != left and right != right), (left, right)


def run(program, device):
    """What a program of a device gives or raises."""
    torch.manual_seed(0)
    try:
        return program(device), None
    except Exception as error:
        return None, error


def plain(error):
    """An error's text without device names, numbers of bytes, C++ frames and what flagos adds."""
    text = str(error).split("\nException raised from")[0].split("\n(flagos: ")[0]
    return re.sub(r"flagos(:\d+)?|cpu", "<device>", text, flags=re.IGNORECASE)


def check(program, *, text=True):
    """`program(device)` must give on flagos what it gives on the CPU, errors included, and may make
    its inputs on the device only in the same way. `text=False` compares errors by class alone.
    Answers what flagos gave."""
    wanted, wanted_error = run(program, "cpu")
    got, error = run(program, "flagos")
    if wanted_error is not None:
        assert error is not None, f"no error, but the CPU says: {wanted_error}"
        assert type(error) is type(wanted_error), (error, wanted_error)
        if text and PLATFORM == "cpu":
            assert plain(error) == plain(wanted_error)
        return error
    if error is not None:
        raise error
    assert_same(got, wanted)
    return got


def state(tensor):
    """Everything about a tensor that a failed call must leave as it was."""
    storage = tensor.untyped_storage()
    return (
        tensor.device,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        storage.data_ptr(),
        storage.nbytes(),
        storage._cdata,
        tensor._version,
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.names,
        torch._C._dispatch_keys(tensor),
    )
