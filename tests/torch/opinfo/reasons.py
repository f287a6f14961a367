"""The one table of differences from the twin that are right, each with its reason.

A row speaks of an operator, of variants, dtypes and of the kind of the difference (the kinds are
those of outcome.FIELDS, and value, count, raises, accepts, exception). A difference without a row
fails its test. So does a row that explains nothing in a case that it speaks of: the row is then to be
removed, or `sometimes` says why it need not show in every run.
"""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    reason: str
    ops: tuple  # Names or patterns of operators.
    kinds: tuple
    variants: tuple = ("*",)
    dtypes: tuple = ("*",)
    sometimes: str = ""  # Why the difference may be absent; empty where it must be seen.

    def speaks_of(self, op, dtype):
        return matches(op, self.ops) and matches(dtype, self.dtypes)

    def explains(self, op, dtype, variant, kind):
        return (
            self.speaks_of(op, dtype) and kind in self.kinds and matches(variant, self.variants)
        )


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


UNINITIALISED = "The result's memory is uninitialised: its values say nothing."
CHANCE = "Uninitialised memory may be equal by chance."

ROWS = [
    Row(
        UNINITIALISED,
        ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        ("value",),
        sometimes=CHANCE,
    ),
]


class Explained:
    """Which rows of the table one case used."""

    def __init__(self, op, dtype):
        self.op, self.dtype = op, dtype
        self.used = {}

    def row(self, variant, kind):
        for row in ROWS:
            if row.explains(self.op, self.dtype, variant, kind):
                self.used[row] = self.used.get(row, 0) + 1
                return row
        return None

    def idle(self, variants):
        """Rows that should have explained something in `variants` and did not."""
        return [
            row
            for row in ROWS
            if row.speaks_of(self.op, self.dtype)
            and not row.sometimes
            and row not in self.used
            and any(matches(variant, row.variants) for variant in variants)
        ]
