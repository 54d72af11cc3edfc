"""Times a whole step, and adds up the times of its ops alone to compare with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from threadcast.collector.timing import Goal, Timing, time_callable
from threadcast.core import Case, Machine, Measurement, OpGraph
from threadcast.threads.affinity import ThreadTeam


def time_step(step: Callable[[], object], machine: Machine, case: Case, *, goal: Goal | None = None) -> Timing:
    """Time `step` in a pinned team of the case's threads. What `step` raises is not caught."""
    with ThreadTeam(machine.cpus(machine.place(case))) as team:
        return team.run(lambda: time_callable(step, goal=goal))


def lone_sum_s(graph: OpGraph, observed: Mapping[str, Sequence[Measurement]], case: Case) -> float | None:
    """The sum in seconds of the times of all ops of the graph, each alone in `case`.

    None where one was not measured.
    """
    seconds = {
        key: found.seconds for key, measurements in observed.items() for found in measurements if found.case == case
    }
    if not all(op.key in seconds for op in graph.ops):
        return None
    return sum(seconds[op.key] for op in graph.ops)
