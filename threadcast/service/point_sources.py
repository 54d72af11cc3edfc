"""The source of the time of a planned or launched op: measured, interpolated, learned or extrapolated."""

from __future__ import annotations

from threadcast.core import Affinity, Case, Source
from threadcast.scheduler.policies import Problem

_NAMES: list[str] = [source.value for source in Source]


class PointSources:
    """Finds the point of an op's curve that a predicted time comes from."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._column = {case: i for i, case in enumerate(problem.curves.cases)}

    def of(self, op: int, cores: tuple[int, ...], threads: int) -> str:
        """Return the source of the time that `problem.times.on` returns for an op; PlanError where that raises it.

        `op` is a position in the problem's graph.
        """
        curves = self._problem.curves
        seconds = self._problem.times.on(op, cores, threads)
        count = min(threads, len(cores))
        columns = [self._column.get(Case(count, affinity)) for affinity in Affinity]
        there = [column for column in columns if column is not None and curves.seconds[op, column] == seconds]
        return _NAMES[max(int(curves.source[op, column]) for column in there)]
