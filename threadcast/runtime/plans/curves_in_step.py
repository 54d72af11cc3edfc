"""Curves of ops measured in the step itself: at each thread count, every op of a few steps is timed.

In a step an op finds caches, memory and inputs as the ops before it left them, unlike in a run by itself. A few steps
at each thread count measure all ops at once (Graphi, section 4, profiles a few iterations in the same way).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from threadcast.core import Case, CurveTable, Machine, OpGraph, Source, Trace
from threadcast.core.errors import InvalidInput

WARM_UP = 1
"""Steps of each look that are not timed: they start thread teams, and fill memory and kernel caches."""
MOST_STEPS = 5
"""Most timed steps of a look."""
LEAST_STEPS, ENOUGH_S = 3, 0.2
"""Timed steps after which a look is over where they took so many seconds together: ops of longer steps are longer, and
what interrupts one step says as little about a median of three as of five."""
LOOK_CALLS = 12
"""Most calls that looks at one graph may take, whatever the machine."""
UNIFORM = 4
"""Most thread counts at which looks time all operators; on larger machines forecasts say at which to look."""
MOST_LOOKS = 4
"""Most looks on such larger machines."""


@dataclass(frozen=True, slots=True)
class LookSchedule:
    """The looks at a graph's operators: the cases of the first ones, from all cores downwards, each for all operators.

    `most` is the largest number of looks: for those after the first ones, forecasts say which operator is looked at
    with how many threads. `steps` is the number of timed steps of a look.
    """

    cases: tuple[Case, ...]
    most: int
    steps: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the schedule for this machine: looks with all its cases where they are few, else with all cores."""
        cases = sorted(machine.cases(), key=lambda case: -case.threads)
        few = len(cases) <= UNIFORM
        most = len(cases) if few else MOST_LOOKS
        return cls(tuple(cases if few else cases[:1]), most, min(MOST_STEPS, LOOK_CALLS // most - WARM_UP))

    @property
    def uniform(self) -> int:
        """Number of the first looks, which time all operators with the same number of threads."""
        return len(self.cases)

    @property
    def calls(self) -> int:
        """Number of steps of the first looks."""
        return self.uniform * (WARM_UP + self.steps)

    def runs(self, step_s: float) -> int:
        """Number of steps of a look that take about `step_s` seconds each, with those that are not timed."""
        enough = math.ceil(ENOUGH_S / step_s) if step_s > 0 else self.steps
        return WARM_UP + min(self.steps, max(LEAST_STEPS, enough))

    def slowdown(self, number: int) -> float:
        """Longest expected ratio of a look's time to the first's: where operators use all threads that they get.

        A look that forecasts propose mostly runs operators near their best thread count.
        """
        return self.cases[0].threads / self.cases[number].threads if number < self.uniform else 1.0


def curves_in_step(graph: OpGraph, traces: Mapping[Case, Sequence[Trace]]) -> CurveTable:
    """Return the curve of every op: at each case, median and quartiles of its times in that case's traces.

    InvalidInput for a case without traces, and without any case.
    """
    if not traces or not all(traces.values()):
        raise InvalidInput("every case needs a trace or more")
    times = np.array(
        [
            np.quantile([seconds_in_step(graph, trace) for trace in of_case], (0.25, 0.5, 0.75), axis=0)
            for of_case in traces.values()
        ]
    )  # (cases, 3, ops)
    low, middle, high = np.maximum(times, LEAST_S).transpose(1, 2, 0)
    source = np.full(middle.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    return CurveTable(tuple(traces), middle, low, high, source, "in-step")


def seconds_in_step(graph: OpGraph, trace: Trace) -> list[float]:
    """Return the seconds of each op in the trace, in the graph's order; at least `LEAST_S`."""
    ran = trace.by_id()
    return [max(ran[op_id].finish_s - ran[op_id].start_s, LEAST_S) for op_id in graph.ids]


LEAST_S = 1e-9
"""Fewest seconds of an op: clocks cannot measure less."""
