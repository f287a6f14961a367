"""Tensors of several processes: shared memory on the platform `cpu`, CUDA's handles where CUDA is
the twin. Everything goes through storages: a tensor that is sent is its storage and a layout."""

import threading
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torch_fl import _C
from torch_fl._wrapped import TWIN, Row, _mark, on_flagos_storage

_lock = threading.Lock()
# Storages that came from other processes: the twin's storage, by address, and its flagos storage,
# which keeps it alive. So a storage that is sent twice arrives once.
_received = {}


def _refuse():
    name = _C.platform_chosen()["name"]
    return RuntimeError(
        f"flagos tensors cannot be shared between processes on platform '{name}': send "
        f"tensor.cpu() and let the other process move it with .to('flagos')"
    )


def _raise(message):
    raise RuntimeError(message)


def _refuse_to_send():
    # A queue writes in a thread of its own, where nobody would hear and the reader would wait for
    # ever: there the refusal itself is sent, and raised where it is read.
    refusal = _refuse()
    if threading.current_thread().name != "QueueFeederThread":
        raise refusal
    return (_raise, (str(refusal),))


def _bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _move_to_shared_memory(storage):
    with _lock:
        if storage.nbytes() == 0 or _is_shared(None, storage):
            return
        shared = _bytes_of(torch.UntypedStorage._new_shared(storage.nbytes()))
        own = _bytes_of(storage)
        shared.copy_(own)
        torch.ops.flagos.move_storage(own, shared)


def _share_memory_(original, self):
    if TWIN is None:
        raise _refuse()
    if TWIN == "cuda":
        return original(self)
    _move_to_shared_memory(self)
    return self


def _is_shared(original, self):
    if TWIN != "cpu":
        return TWIN == "cuda"
    return torch.ops.flagos.as_twin(_bytes_of(self)).untyped_storage().is_shared()


def _rebuild_storage(twin_bytes):
    twin = twin_bytes.untyped_storage()
    with _lock:
        known = _received.get(twin._cdata)
        storage = known and torch.UntypedStorage._new_with_weak_ptr(known.cdata)
        if not storage:
            storage = torch.ops.flagos.as_flagos(twin_bytes).untyped_storage()
            for key in [key for key, entry in _received.items() if entry.expired()]:
                del _received[key]
            _received[twin._cdata] = StorageWeakRef(storage)
    return storage


def _rebuild_empty_storage(device):
    return torch.UntypedStorage(0, device=device)


def _wrap_reducer(original):
    def reduce_storage(storage):
        if storage.device.type != "flagos":
            return original(storage)
        if TWIN is None:
            return _refuse_to_send()
        if storage.nbytes() == 0:
            return (_rebuild_empty_storage, (str(storage.device),))
        if TWIN == "cpu":
            _move_to_shared_memory(storage)
        return (_rebuild_storage, (torch.ops.flagos.as_twin(_bytes_of(storage)),))

    return _mark(reduce_storage, original)


class _Reducer(Row):
    """The function by which ForkingPickler sends objects of a type, kept in its registry."""

    def install(self):
        current = ForkingPickler._extra_reducers[torch.UntypedStorage]
        if not hasattr(current, "_torch_fl_original"):
            ForkingPickler.register(torch.UntypedStorage, self.wrap(current))


Row(
    torch.UntypedStorage,
    "share_memory_",
    on_flagos_storage(_share_memory_),
    why="Python does nothing for any such device, as if it had handles like CUDA's",
    cpu="the memory moves into shared memory, as for CPU tensors",
    none="RuntimeError that says to send `tensor.cpu()`",
    cuda="nothing has to be done, as for CUDA tensors",
)
Row(
    torch.UntypedStorage,
    "is_shared",
    on_flagos_storage(_is_shared),
    why="C++ knows CUDA's and the CPU's kinds of memory",
    cpu="whether it is in shared memory",
    none="False",
    cuda="True, as for CUDA tensors",
)
_Reducer(
    "multiprocessing.reduction.ForkingPickler",
    "reducer of torch.UntypedStorage",
    _wrap_reducer,
    why="`torch.multiprocessing` takes whatever is not `cuda` for memory of the CPU",
    cpu="shared memory, as for CPU tensors: both processes see what the other one writes",
    none="RuntimeError that says to send `tensor.cpu()`; of a queue, where it is read",
    cuda="a handle of the memory, as for CUDA tensors, which must live until it has arrived",
)
