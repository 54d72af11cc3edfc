"""A scheduling problem: a graph, the predicted curve of each of its ops, and a machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadcast.core import CurveTable, Machine, OpGraph
from threadcast.core.errors import PlanError
from threadcast.scheduler.problem.times import Times


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A graph, the predicted curve of each of its ops (row i for op i), and the machine to run it on.

    `times` tells how long an op takes on given cores. PlanError for an empty graph, for another number of curves than
    ops, and where an op offers no case that fits the machine.
    """

    graph: OpGraph
    curves: CurveTable
    machine: Machine
    times: Times = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.graph):
            raise PlanError("the graph has no ops: there is nothing to plan")
        if len(self.curves) != len(self.graph):
            raise PlanError(f"{len(self.curves)} curves for {len(self.graph)} ops: there must be one an op")
        object.__setattr__(self, "times", Times(self.curves, self.machine, ids=self.graph.ids))
