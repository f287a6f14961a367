"""Counts of cases over a test run: how many were compared, equal, explained and why.

Fixture and hook of pytest; conftest.py takes them in. Counts travel as properties of test reports, so
that they arrive also from the processes of pytest-xdist.
"""

import collections

import pytest


@pytest.fixture
def count_cases(record_property):
    """Call with the name of a suite and a verdict of one case."""

    def count(suite, verdict):
        record_property(
            "cases",
            {
                "suite": suite,
                "samples": verdict.count,
                "equal": verdict.equal,
                "unexplained": verdict.unequal,
                "by_reason": dict(verdict.by_reason),
            },
        )

    return count


def pytest_terminal_summary(terminalreporter):
    suites = collections.defaultdict(collections.Counter)
    reasons = collections.defaultdict(collections.Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "cases" and report.when == "call":
                    suites[value["suite"]].update(
                        {k: value[k] for k in ("samples", "equal", "unexplained")} | {"cases": 1}
                    )
                    reasons[value["suite"]].update(value["by_reason"])
    for suite, counts in sorted(suites.items()):
        explained = sum(reasons[suite].values())
        terminalreporter.section(f"{suite} against the twin", sep="-")
        terminalreporter.write_line(
            f"{counts['cases']} cases, {counts['samples']} samples compared: {counts['equal']} equal, "
            f"{explained} explained, {counts['unexplained']} unexplained"
        )
        for reason, times in reasons[suite].most_common():
            terminalreporter.write_line(f"{times:7} {reason}")
