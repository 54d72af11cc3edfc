"""Runs compiled calls until their graphs have settled, and says what runs the graphs."""

from __future__ import annotations

from collections.abc import Callable

from threadcast.runtime.compile_backend import compiled_graphs

MOST_CALLS = 2_000
"""Far more calls of microseconds than tuning takes where plans are made at once."""


def run_until_settled(call: Callable[[int], object], *, least: int = 10) -> None:
    """`call` with 0, 1, 2 and so on until every graph knows what runs it, `least` times at least."""
    for number in range(MOST_CALLS):
        reports = [report for graph in compiled_graphs() for report in graph.reports]
        if number >= least and reports and not any(report.measuring for report in reports):
            return
        call(number)
    raise AssertionError(f"not settled after {MOST_CALLS} calls: {reports}")


def runners() -> dict[str, list[str]]:
    """What runs each graph, by its role ("forward", "backward" or "inference")."""
    found: dict[str, list[str]] = {}
    for graph in compiled_graphs():
        role = graph.title.split(", ")[1]
        found.setdefault(role, []).extend(report.runs for report in graph.reports)
    return found
