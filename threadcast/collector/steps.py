"""Times a whole step, and sums the lone times of its ops to compare with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from threadcast.collector.timing import Goal, Timing, time_callable
from threadcast.core import Case, Machine, Measurement, OpGraph
from threadcast.threads.affinity import ThreadTeam


def time_step(step: Callable[[], object], machine: Machine, case: Case, *, goal: Goal | None = None) -> Timing:
    """Time `step` in a pinned team of the case's threads; what it raises passes through."""
    with ThreadTeam(machine.cpus(machine.place(case))) as team:
        return team.run(lambda: time_callable(step, goal=goal))


def lone_sum_s(graph: OpGraph, observed: Mapping[str, Sequence[Measurement]], case: Case) -> float | None:
    """The sum of the lone times of all ops of the graph in seconds; None where one of them was not measured."""
    seconds = {
        key: found.seconds for key, measurements in observed.items() for found in measurements if found.case == case
    }
    if not all(op.key in seconds for op in graph.ops):
        return None
    return sum(seconds[op.key] for op in graph.ops)
