"""What serves each operator, how often it did, and how to choose.

    >>> from torch_fl import routes
    >>> routes.read("aten::mm").chosen
    'native'
    >>> with routes.using({"aten::mm": "cpu"}):
    ...     y = x @ w
    >>> print(routes.report())

Routes are `native` (the twin's kernel), `view` (metadata only), `fast`, `flaggems`, `vendor` (other
kernels), `cpu` (a copy to the host and back) and `own` (code of this package, such as copies).
They and strict mode belong to the process; changing them is safe while other threads run.
"""

import contextlib
import dataclasses

from torch_fl import _C

WORDS = _C.route_words()


@dataclasses.dataclass(frozen=True)
class Route:
    """One operator: the chosen route, the one it started with, the possible ones, calls by route
    (those that are not 0), and what the route `cpu` moved (bytes) and took (nanoseconds)."""

    name: str
    chosen: str
    initial: str
    possible: tuple
    calls: dict
    cpu_bytes: int
    cpu_ns: int


def _route(row):
    name, chosen, initial, possible, calls, cpu_bytes, cpu_ns = row
    return Route(
        name=name,
        chosen=chosen,
        initial=initial,
        possible=tuple(word for bit, word in enumerate(WORDS) if possible >> bit & 1),
        calls={word: number for word, number in zip(WORDS, calls) if number},
        cpu_bytes=cpu_bytes,
        cpu_ns=cpu_ns,
    )


def _name(operator):
    """"aten::add.Tensor" for that, "add.Tensor", "aten.add.Tensor" or torch.ops.aten.add.Tensor."""
    if not isinstance(operator, str):
        operator = operator.name()  # An OpOverload of PyTorch.
    if "::" in operator:
        return operator
    if operator.startswith("aten."):
        operator = operator[len("aten.") :]
    return f"aten::{operator}"


def operators():
    """Names of all operators that have a route."""
    return sorted(_C.route_names())


def read(operator):
    """The Route of one operator."""
    return _route(_C.route_get(_name(operator)))


def set(operator, route):
    """Let `route`, one of the operator's possible ones, serve it from now on."""
    _C.route_choose(_name(operator), route)


def reset(operator=None):
    """Go back to the first route of one operator, or of all."""
    for name in _C.route_names() if operator is None else [_name(operator)]:
        _C.route_reset(name)


@contextlib.contextmanager
def using(choice):
    """Context manager: choose a route for each operator of a dict, and afterwards go back."""
    before = {_name(operator): read(operator).chosen for operator in choice}
    try:
        for operator, route in choice.items():
            set(operator, route)
        yield
    finally:
        for operator, route in before.items():
            _C.route_choose(operator, route)


# --- strict mode ---------------------------------------------------------------------------------


def is_strict():
    """Whether an operator that would run on the host raises instead."""
    return _C.route_is_strict()


def set_strict(on=True):
    """Raise, or raise no longer, where an operator would run on the host."""
    _C.route_set_strict(on)


@contextlib.contextmanager
def strict(on=True):
    """Context manager: strict mode for the whole process, and afterwards what it was before."""
    before = is_strict()
    set_strict(on)
    try:
        yield
    finally:
        set_strict(before)


# --- counters ------------------------------------------------------------------------------------


def reset_counts():
    """Set all counters to 0."""
    _C.route_counts_reset()


class Report:
    """The operators that were called, most often called first. Prints as a table."""

    def __init__(self, rows):
        self.rows = sorted(
            (row for row in rows if row.calls), key=lambda row: (-sum(row.calls.values()), row.name)
        )

    @property
    def calls(self):
        """Calls by route."""
        return {
            word: sum(row.calls.get(word, 0) for row in self.rows)
            for word in WORDS
            if any(word in row.calls for row in self.rows)
        }

    def as_dict(self):
        """Everything as plain values, for json."""
        return {
            "calls": self.calls,
            "operators": [dataclasses.asdict(row) for row in self.rows],
        }

    def text(self, limit=None):
        """The table with at most `limit` operators."""
        lines = [f"{'route':<10}{'operators':>10}{'calls':>12}"]
        for word, calls in self.calls.items():
            count = sum(word in row.calls for row in self.rows)
            lines.append(f"{word:<10}{count:>10}{calls:>12}")
        if not self.rows:
            return "no operator was called"
        lines += ["", f"{'operator':<48}{'calls':>10}  route"]
        for row in self.rows[:limit]:
            total = sum(row.calls.values())
            words = " ".join(row.calls)
            if "cpu" in row.calls:
                words += f" ({row.cpu_bytes} bytes, {row.cpu_ns / 1e6:.3f} ms)"
            lines.append(f"{row.name:<48}{total:>10}  {words}")
        if limit is not None and len(self.rows) > limit:
            lines.append(f"and {len(self.rows) - limit} more")
        return "\n".join(lines)

    __str__ = text


def report():
    """A Report of all calls since the start or the last reset_counts."""
    return Report([_route(row) for row in _C.route_table()])
