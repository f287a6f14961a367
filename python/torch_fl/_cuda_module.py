"""The module that stands at torch.cuda inside `as_cuda`: names of torch.flagos, which take "cuda"
for "flagos" in their arguments, and torch.cuda's own names where torch.flagos has none."""

import collections
import copyreg
import functools
import inspect
import operator
import reprlib
import sys
import types
import warnings

import torch

from torch_fl import flagos
from torch_fl._inside import inside, setting
from torch_fl.flagos import memory, report
from torch_fl.flagos._serve import CUDA, KIND, error


def _no_memory():
    """torch.cuda.memory_stats where nothing is counted: every name, and 0."""
    pools, columns = ("all", "large_pool", "small_pool"), report.COLUMNS
    names = [f"{row}.{pool}.{column}" for row, _ in report.ROWS for pool in pools for column in columns]
    names += [f"oversize_{row}.{column}" for row in ("allocations", "segments") for column in columns]
    names += ["max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free"]
    names += ["num_ooms", "num_sync_all_streams"]
    return collections.OrderedDict.fromkeys(sorted(names), 0)


# Readings that scripts print or compare on the side. Where the platform cannot know one, the script
# goes on with this answer and a warning says so once.
_SIDE = {
    **dict.fromkeys(
        (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "memory_cached",
            "max_memory_cached",
        ),
        lambda: 0,
    ),
    "memory_stats": _no_memory,
    "memory_stats_as_nested_dict": lambda: memory.nested(_no_memory()),
    "memory_summary": lambda: "no statistics of memory on this platform",
    "memory_snapshot": list,
    "get_per_process_memory_fraction": lambda: 1.0,
    "get_device_capability": lambda: (0, 0),
    **dict.fromkeys(
        (
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "set_per_process_memory_fraction",
        ),
        lambda: None,
    ),
}


def to_flagos(value):
    """A device or its name with flagos for cuda; every other value as it is."""
    kind = type(value)
    if kind is str:
        if value == "cuda" or value.startswith("cuda:"):
            return "flagos" + value[4:]
        if value.startswith("torch.cuda."):
            return "torch.flagos." + value[11:]
    elif kind is torch.device and value.type == "cuda":
        return torch.device("flagos" if value.index is None else f"flagos:{value.index}")
    return value


def translated(function, meant=to_flagos):
    """`function` with "cuda" taken for "flagos" in its arguments."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*map(meant, args), **{name: meant(kwargs[name]) for name in kwargs})

    return call


def below(function):
    """`function` of torch_fl's or PyTorch's own, which sees tensors and devices as they are."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with torch._C.DisableTorchFunction(), setting(False):
            return translated(function)(*args, **kwargs)

    return call


class _StandIn(type):
    """A class in another's place: makes the other's objects and knows them."""

    def __call__(cls, *args, **kwargs):
        return below(cls._original)(*args, **kwargs)

    def __instancecheck__(cls, object):
        return below(isinstance)(object, cls._original)

    def __subclasscheck__(cls, other):
        return issubclass(getattr(other, "_original", other), cls._original)

    def __getattr__(cls, name):
        return getattr(cls._original, name)


class _OnlyInside(_StandIn):
    """For classes that other threads use meanwhile. `_made` is what is made inside."""

    def __call__(cls, *args, **kwargs):
        return below(cls._made)(*args, **kwargs) if inside() else cls._original(*args, **kwargs)


class _Refused(_StandIn):
    """For classes of CUDA's own whose objects flagos has none of; `_error` says so."""

    def __call__(cls, *args, **kwargs):
        raise cls._error


# What is pickled inside is read outside as well.
for _kind in (_StandIn, _OnlyInside):
    copyreg.pickle(_kind, lambda stand_in: (operator.itemgetter(0), ((stand_in._original,),)))


def stand_in(original, kind=_StandIn, **names):
    """The class that stands for `original` inside as_cuda."""
    module = "torch.cuda" if original.__module__ == "torch.flagos" else original.__module__
    if getattr(original, "is_cuda", None) is False:
        names["is_cuda"] = module == "torch.cuda"
    names |= {"_original": original, "__doc__": original.__doc__, "__module__": module}
    return kind(original.__qualname__, (), names)


def stand_in_for_all(original, device=None):
    """The same for a class of PyTorch's that is not about cuda alone. With `device`, a property, objects
    made inside say that they are cuda's; classes written in C cannot be changed themselves."""
    members = {"device": device, "__doc__": original.__doc__, "__module__": original.__module__}
    made = type(original.__name__, (original,), members) if device else original
    return stand_in(original, _OnlyInside, _made=made)


# --- typed constructors: torch.cuda.FloatTensor and its like -------------------------------------


def typed(wanted):
    """The dtype of torch.cuda.FloatTensor and its like, given as a class or by name; else None."""
    if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
        wanted = getattr(torch.flagos, wanted[11:])
    return getattr(wanted, "dtype", None) if isinstance(wanted, type) else None


# --- the modules ---------------------------------------------------------------------------------


def _tolerant(name, function):
    warned = []

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            answer = _SIDE[name]()
            if not warned:
                warned.append(True)
                answers = f"torch.cuda.{name} answers {reprlib.repr(answer)}"
                warnings.warn(f"{error}; {answers}", stacklevel=2)
            return answer

    return call


# They run code of the caller, which belongs inside.
_CALLERS_CODE = ("graph", "make_graphed_callables", "_lazy_call")


def _shown(name, value):
    if inspect.isclass(value):
        return value if issubclass(value, BaseException) else stand_in(value)
    if inspect.isroutine(value):
        shown = value if name in _CALLERS_CODE else below(value)
        return _tolerant(name, shown) if name in _SIDE else shown
    return value


class _Module(types.ModuleType):
    """Names are made when they are first asked for and kept, but for those that change. Threads that
    are not inside find torch.cuda's own."""

    def __init__(self, name, source, original):
        super().__init__(name, original.__doc__)
        vars(self).update(_source=source, _original=original, _kept={})
        self.__path__ = getattr(original, "__path__", [])
        self.__file__ = getattr(original, "__file__", None)
        self.__spec__ = original.__spec__

    def __getattr__(self, name):
        source = self._source
        if name.startswith("__") or not inside() or not hasattr(source, name):
            value = getattr(self._original, name)
            if inspect.isclass(value) and inside() and hasattr(source, "_unserved"):
                label = f"{self.__name__.rpartition('.')[2]}.{name}"
                return stand_in(value, _Refused, _error=error(label, source._unserved[KIND]))
            return value
        if name in self._kept:
            return self._kept[name]
        if name in ("default_generators", "_initialized"):
            return getattr(source, name)
        value = getattr(source, name)
        if isinstance(value, types.ModuleType):
            return sys.modules.get(f"{self.__name__}.{name}", value)
        return self._kept.setdefault(name, _shown(name, value))

    def __setattr__(self, name, value):
        if not inside():
            return setattr(self._original, name, value)
        super().__setattr__(name, value)
        # A submodule that is imported inside as_cuda is one of torch.cuda afterwards too.
        if isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            setattr(self._original, name, value)

    def __dir__(self):
        return sorted({*dir(self._original), *dir(self._source)})


def keep_cudas_start():
    """CUDA's start in C writes names straight into the namespace of the module that it finds as
    torch.cuda: while it runs, that is torch.cuda itself. Answers what undoes this."""
    start = CUDA._lazy_init

    @functools.wraps(start)
    def call():
        shown = sys.modules["torch.cuda"]
        sys.modules["torch.cuda"] = CUDA
        try:
            start()
        finally:
            if CUDA._lazy_init is call:
                sys.modules["torch.cuda"] = shown

    CUDA._lazy_init = call
    return lambda: setattr(CUDA, "_lazy_init", start)


def patches():
    """(object, name, new value) for torch.cuda, its name on torch, and its submodules."""
    module = _Module("torch.cuda", flagos, CUDA)
    yield torch, "cuda", module
    yield sys.modules, "torch.cuda", module
    for name, source in vars(flagos).items():
        original = sys.modules.get(f"torch.cuda.{name}")
        if isinstance(source, types.ModuleType) and original is not None:
            yield sys.modules, f"torch.cuda.{name}", _Module(f"torch.cuda.{name}", source, original)
