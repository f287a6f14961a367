"""Run code that was written for `cuda` on flagos: `with torch_fl.as_cuda():`.

Inside, "cuda" means flagos wherever a device is named, torch.cuda answers with torch.flagos, and
flagos tensors say that they are cuda tensors. A TorchFunctionMode translates what passes through
PyTorch's operators; `_patches` lists the few names that it cannot see. They are the whole process's:
inside this thread they are those of `_patches`, in every other one what they were. Everything is
undone at the end. Errors go on speaking of flagos, where the work is done.
"""

import contextlib
import functools
import importlib
import inspect
import os
import threading
import types
from multiprocessing.reduction import ForkingPickler

import torch
from torch import overrides

from torch_fl import _cuda_module, flagos
from torch_fl._cuda_module import below, to_flagos, translated
from torch_fl._default_type import default_context
from torch_fl._inside import Block, Mode, block, here, inside, setting
from torch_fl.flagos._serve import KIND

_lock = threading.Lock()
_undo = []  # What brings each patched name back; guarded by _lock.
_users = 0  # How many `with` are open, in all threads; guarded by _lock, as Block.users is.
_MISSING = object()


@functools.cache
def _as_cuda_device(index):
    return torch.device("cuda") if index is None else torch.device("cuda", index)


def _said(device):
    """What is said of a device: cuda for flagos."""
    if device is None or device.type != "flagos":
        return device
    return _as_cuda_device(device.index)


# --- what passes through the operators -----------------------------------------------------------


def _device(function, args, kwargs):
    """torch.device(0) means the accelerator; other devices stay what was written."""
    result = function(*args, **kwargs)
    return _said(result) if args and isinstance(args[0], int) else result


def _parsed(function, args, kwargs):
    """What Module.to was asked for, which modules may keep as their device."""
    device, *rest = function(*args, **kwargs)
    return _said(device), *rest


def _move(tensor, device=None, non_blocking=False, **kwargs):
    if device is None:
        device = "flagos"
    elif isinstance(device, int):
        device = torch.device("flagos", device)
    return tensor.to(to_flagos(device), non_blocking=non_blocking, **kwargs)


def _cuda(function, args, kwargs):
    if "async" in kwargs:
        kwargs = {**kwargs, "non_blocking": kwargs["async"]}
        del kwargs["async"]
    return _move(*args, **kwargs)


def _type(function, args, kwargs):
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    typed = _cuda_module.typed(wanted)
    if typed is not None:
        return tensor.to("flagos", typed)
    result = function(*args, **kwargs)
    return result.replace("torch.flagos.", "torch.cuda.") if isinstance(result, str) else result


_SPECIAL = {
    torch.device: _device,
    torch._C._nn._parse_to: _parsed,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.type: _type,
}


_ASKING = (
    overrides.has_torch_function,
    overrides.has_torch_function_unary,
    overrides.has_torch_function_variadic,
)


class _Names(dict):
    """The names of a module, in which nothing has overrides."""

    def __init__(self, names):
        asking = [name for name, value in names.items() if any(value is f for f in _ASKING)]
        super().__init__(dict.fromkeys(asking, lambda *arguments: False))
        self._names = names

    def __missing__(self, name):
        return self._names[name]


@functools.cache
def _body(function):
    """A function of PyTorch's own in Python without its first step, the question for overrides; None
    for one in C, and for one that does not ask. With the mode on while it runs, it can name the
    device of an argument."""
    if not isinstance(function, types.FunctionType):
        return None
    if not any(name.startswith("has_torch_function") for name in function.__code__.co_names):
        return None
    body = types.FunctionType(
        function.__code__,
        _Names(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _overrides(kind):
    """Whether a class of tensors has a __torch_function__ of its own that is asked now."""
    is_called = kind is not torch.Tensor and inspect.ismethod(kind.__torch_function__)
    return is_called and torch._C._is_torch_function_enabled()


class _Mode(Mode):
    """Takes "cuda" for "flagos" in what is called. PyTorch switches a mode off while it handles a call;
    this one is on again below functions in Python and overrides of tensors' classes. `running` is
    the function that it is on for, which may come back under its own name by way of another."""

    def __init__(self, running=None):
        super().__init__()
        self.running = running

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        if here.block:
            return self._translate(function, kinds, args, kwargs)
        if here.block is not None or not self.block:
            return function(*args, **kwargs)
        with setting(self.block):  # A thread of autograd's. What PyTorch calls below is inside too.
            return self._translate(function, kinds, args, kwargs)

    def _translate(self, function, kinds, args, kwargs):
        special = _SPECIAL.get(function)
        if special is not None:
            return special(function, args, kwargs)
        for value in args:
            if type(value) is str or type(value) is torch.device:
                args = [to_flagos(value) for value in args]
                break
        if kwargs:
            kwargs = {name: to_flagos(value) for name, value in kwargs.items()}
        overriding = [kind for kind in kinds if _overrides(kind)]
        for kind in overriding:
            with _Mode():
                result = kind.__torch_function__(function, kinds, tuple(args), kwargs)
            if result is not NotImplemented:
                return result
        body = None if overriding or function is self.running else _body(function)
        if body is None:
            return function(*args, **kwargs)
        with _Mode(function):
            return body(*args, **kwargs)


# --- what does not -------------------------------------------------------------------------------


def _started(start):
    """Modes belong to a thread; one that is started inside runs inside."""

    @functools.wraps(start)
    def call(thread):
        run, here = thread.run, block()

        def run_inside():
            with setting(here), _Mode():
                run()

        thread.run = run_inside
        return start(thread)

    return call


def _with_mode(run):
    """Operators are run with the mode off, and some of them call the script: Tensor.backward its hooks
    and backward functions, others the hooks of tensors that they save."""

    @functools.wraps(run)
    def call(*args, **kwargs):
        with _Mode() if inside() else contextlib.nullcontext():
            return run(*args, **kwargs)

    return call


def _hooks(init):
    @functools.wraps(init)
    def call(hooks, pack_hook, unpack_hook):
        init(hooks, _with_mode(pack_hook), _with_mode(unpack_hook))

    return call


def _for_cuda_by_default(function):
    """Queries of autocast, which mean CUDA where they name no device."""

    @functools.wraps(function)
    def call(*args):
        return function(*map(to_flagos, args)) if args else function("flagos")

    return call


def _default_tensor_type(function):
    @functools.wraps(function)
    def call(t, /):
        return function(getattr(t, "_original", to_flagos(t)))

    return call


def _kernel(impl):
    """Of a library of operators: what is written in Python is called by operators, below the mode."""

    @functools.wraps(impl)
    def call(library, name, kernel, *args, **kwargs):
        if isinstance(kernel, types.FunctionType) and kernel is not torch.library.fallthrough_kernel:
            kernel = _with_mode(kernel)
        return impl(library, name, kernel, *args, **kwargs)

    return call


def _for_devices(function):
    """With one device or several, an operator's kernels."""

    def meant(value):
        return [*map(to_flagos, value)] if isinstance(value, (list, tuple)) else to_flagos(value)

    return translated(function, meant)


def _profiled(init):
    """Of a profiler: CUDA's own recorder would complain of each operator that it knows no device."""

    @functools.wraps(init)
    def call(*args, use_cuda=False, use_device=None, **kwargs):
        if use_cuda or use_device == "cuda":
            use_device, kwargs["use_kineto"] = "flagos", True  # The other recorder has no devices.
        init(*args, use_device=use_device, **kwargs)

    return call


def _naming_said(cast):
    """Of autocast, which compares the name of a device with what tensors say."""

    @functools.wraps(cast)
    def call(value, device_type, dtype):
        return cast(value, "cuda" if device_type == "flagos" else device_type, dtype)

    return call


def _made_of(make):
    """Of tensors that stand for another one, and are given the device that it said."""
    return staticmethod(translated(make))


def _saying(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return _said(function(*args, **kwargs))

    return call


def _storage_cuda(storage, device=None, non_blocking=False):
    device = torch.device("flagos", device) if isinstance(device, int) else device
    return storage.to(device=to_flagos(device or "flagos"), non_blocking=non_blocking)


def _says_cuda(holder):
    return holder.device.type in ("flagos", "cuda")


def _of_the_accelerator(get_device_module):
    @functools.wraps(get_device_module)
    def call(device=None):
        # It remembers its answers, and the module of one block is not that of the next.
        return get_device_module.__wrapped__("cuda" if device is None else device)

    return call


def _device_said(kind):
    held = inspect.getattr_static(kind, "device").__get__
    return property(lambda holder: _said(held(holder)))


def _is_on():
    return torch._C._is_torch_function_mode_enabled() and any(
        isinstance(mode, _Mode) for mode in overrides._get_current_function_mode_stack()
    )


def _device_said_above(kind):
    """The same where the mode would take the answer back, as in `device=x.device`. Functions of the
    script that PyTorch calls below it (__torch_dispatch__, forward under torch.func) read flagos."""
    held = inspect.getattr_static(kind, "device").__get__

    def device(holder):
        return _said(held(holder)) if _is_on() else held(holder)

    return property(device)


def _patches():
    """(object, name, new value) of every name that is exchanged."""
    autocast_mode = importlib.import_module("torch.amp.autocast_mode")
    autocast = autocast_mode.autocast
    context = importlib.import_module("torch.utils._device").DeviceContext
    storage = torch.storage._StorageBase
    cudnn = torch.backends.cudnn.m  # The module itself, whose functions call each other there.

    def wrapped(owner, name, wrap=translated):
        return owner, name, wrap(getattr(owner, name))

    yield from _cuda_module.patches()
    for name in ("Generator", "Stream"):
        kind = getattr(torch, name)
        device = _elsewhere(_device_said(kind), kind.device)
        yield torch, name, _cuda_module.stand_in_for_all(kind, device)
    # PyTorch's functions take no class that is derived from this one.
    yield torch, "Event", _cuda_module.stand_in_for_all(torch.Event)
    yield wrapped(autocast, "__init__")
    yield wrapped(autocast_mode, "_cast", _naming_said)
    yield wrapped(torch.amp.GradScaler, "__init__")
    yield wrapped(torch.amp.GradScaler, "update", below)
    for owner in (torch.amp, autocast_mode):
        for name in ("custom_fwd", "custom_bwd", "is_autocast_available"):
            yield wrapped(owner, name)
    yield wrapped(torch._C, "_is_autocast_available")
    for name in ("get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled"):
        yield wrapped(torch, name)
    yield wrapped(torch, "is_autocast_enabled", _for_cuda_by_default)
    yield torch, "get_autocast_gpu_dtype", functools.partial(torch.get_autocast_dtype, "flagos")
    yield torch, "set_autocast_gpu_dtype", functools.partial(torch.set_autocast_dtype, "flagos")
    yield wrapped(torch, "set_default_tensor_type", _default_tensor_type)
    yield wrapped(context, "__init__")
    yield wrapped(torch.accelerator, "current_accelerator", _saying)
    yield torch.accelerator, "current_stream", below(flagos.current_stream)
    yield wrapped(torch, "get_device_module", _of_the_accelerator)
    yield wrapped(torch, "get_default_device", _saying)
    yield wrapped(torch._C._nested, "nested_tensor")
    yield wrapped(torch.library.Library, "impl", _kernel)
    for name in ("custom_op", "impl", "register_kernel"):
        yield wrapped(torch.library, name, _for_devices)
    for name in ("register_kernel", "set_kernel_enabled"):
        yield wrapped(torch.library.CustomOpDef, name, _for_devices)
    for owner in (torch.jit, torch.jit._serialization):
        yield wrapped(owner, "load")
    yield wrapped(torch.Tensor, "_make_wrapper_subclass", _made_of)
    fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensor
    yield wrapped(fake, "__new__", _made_of)
    default = importlib.import_module("torch.utils.checkpoint").DefaultDeviceType
    if default._default_device_type is None:
        # It is asked for once a process, and that may be now.
        yield default, "_default_device_type", "flagos"
    for module in (torch.accelerator, torch.accelerator.memory):
        yield wrapped(module, "_get_device_index", below)
    yield wrapped(torch.serialization, "_get_restore_location", _reading_tags)
    yield wrapped(storage, "to", below)
    yield storage, "cuda", _storage_cuda
    yield wrapped(torch.UntypedStorage, "__new__", lambda new: staticmethod(below(new)))
    for kind in (storage, torch.UntypedStorage):
        yield kind, "is_cuda", property(_says_cuda)
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        for name in ("is_pinned", "pin_memory"):
            yield wrapped(kind, name, below)
    # Not by the mode: code that PyTorch calls below it (operators in Python) must see the same.
    yield torch.Tensor, "is_cuda", property(_says_cuda)
    yield torch.Tensor, "device", _device_said_above(torch.Tensor)
    for kind in (torch.UntypedStorage, flagos.Stream):
        yield kind, "device", _device_said(kind)
    yield flagos.Stream, "cuda_stream", flagos.Stream.flagos_stream
    for kind in (flagos.StreamContext, flagos.graph):
        for name in ("__enter__", "__exit__"):
            yield wrapped(kind, name, below)
    for module in (torch, torch.utils.dlpack):
        for name in ("from_dlpack", "to_dlpack"):
            yield wrapped(module, name, below)
    yield wrapped(torch.nn.RNNBase, "flatten_parameters", below)
    # Tensors are sent as flagos sends them, not by CUDA's handles.
    for kind, reducer in ForkingPickler._extra_reducers.items():
        if issubclass(kind, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage)):
            yield ForkingPickler._extra_reducers, kind, below(reducer)
    # Sums of several devices would be NCCL's.
    yield wrapped(importlib.import_module("torch.cuda.nccl"), "is_available", below)
    yield torch.backends.cuda, "is_built", lambda: True
    # It compares cuDNN with the devices of CUDA, and is asked for the version of this build.
    yield wrapped(cudnn, "_init", below)
    yield wrapped(torch.autograd, "_engine_run_backward", _with_mode)
    yield wrapped(torch.autograd.graph.saved_tensors_hooks, "__init__", _hooks)
    yield wrapped(threading.Thread, "start", _started)
    if KIND != "cuda":
        yield wrapped(torch.autograd.profiler.profile, "__init__", _profiled)
        # Recurrent layers would arrange their weights for cuDNN.
        yield cudnn, "is_acceptable", lambda tensor: False


def _tag(storage):
    """Files name the device that there is."""
    if not inside():
        return None
    with setting(False):
        return torch.serialization.location_tag(storage)


def _restore(storage, location):
    """What a file calls "cuda:1", or map_location does, is put on flagos:1."""
    if inside() and location.startswith("cuda"):
        return torch.serialization.default_restore_location(storage, to_flagos(location))
    return None


def _reading_tags(get_restore_location):
    """What `map_location` is shown. A script knows its files to say "cuda:0" where they say "flagos:0"."""

    @functools.wraps(get_restore_location)
    def call(map_location):
        restore = get_restore_location(map_location)

        def restore_said(storage, location):
            is_named = isinstance(map_location, dict) and location in map_location
            if location.startswith("flagos") and not is_named:
                location = "cuda" + location[6:]
            return restore(storage, location)

        return restore_said

    return call


def _elsewhere(value, before):
    """`value` inside, and `before` in other threads. Modules and classes see to that themselves."""
    if isinstance(value, property):
        if before is _MISSING:
            before = property()
        return property(lambda self: (value if inside() else before).__get__(self, type(self)))
    if isinstance(value, staticmethod):
        return staticmethod(_elsewhere(value.__func__, before))
    if not callable(value) or isinstance(value, type):
        return value

    @functools.wraps(before)
    def call(*args, **kwargs):
        return (value if inside() else before)(*args, **kwargs)

    return call


def _exchange(owner, name, value):
    if isinstance(owner, dict):
        names, seen = owner, owner[name]
        put, remove = owner.__setitem__, owner.__delitem__
    else:
        names, seen = vars(owner), inspect.getattr_static(owner, name, _MISSING)
        put, remove = functools.partial(setattr, owner), functools.partial(delattr, owner)
    before = names.get(name, _MISSING)
    put(name, _elsewhere(value, seen))
    _undo.append(lambda: remove(name) if before is _MISSING else put(name, before))


def _begin():
    global _users
    with _lock:
        here = block() or Block()
        here.users += 1
        if _users == 0:
            for patch in list(_patches()):
                _exchange(*patch)
            _undo.append(_cuda_module.keep_cudas_start())
            entry = (0, _tag, _restore)
            torch.serialization._package_registry.insert(0, entry)
            _undo.append(lambda: torch.serialization._package_registry.remove(entry))
            accelerate = os.environ.pop("ACCELERATE_TORCH_DEVICE", None)  # It finds cuda by itself.
            if accelerate is not None:
                _undo.append(lambda: os.environ.update(ACCELERATE_TORCH_DEVICE=accelerate))
        _users += 1
        return here


def _end(here):
    global _users
    with _lock:
        here.users -= 1
        _users -= 1
        if _users == 0:
            while _undo:
                _undo.pop()()


class as_cuda(contextlib.ContextDecorator, threading.local):
    """Context manager and decorator: inside, code that was written for cuda runs on flagos. In this
    thread, and in threads that are started inside; not in other processes. What other modules took
    from torch.cuda before, as in `from torch.cuda import Stream`, stays what it was. One object may be
    entered several times, also inside itself."""

    def __init__(self):
        self._entered = []  # By the calling thread: what ends each `with`, the innermost last.

    def __call__(self, function):
        kinds = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in kinds):
            raise TypeError(
                f"as_cuda() as a decorator would end before {function.__qualname__} runs, which is a "
                "generator or a coroutine; write `with torch_fl.as_cuda():` where it is driven"
            )
        return super().__call__(function)

    def __enter__(self):
        with contextlib.ExitStack() as ending:
            here = _begin()
            ending.callback(_end, here)
            ending.callback(_restore_default, default_context())
            ending.enter_context(setting(here))
            ending.enter_context(_Mode())
            self._entered.append(ending.pop_all())

    def __exit__(self, *exception):
        self._entered.pop().close()


def _restore_default(default):
    """The default device is the thread's own, whichever block ends last."""
    if default_context() is not default:
        torch.set_default_device(default and default.device)
