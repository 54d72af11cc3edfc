"""CPA and MCPA: widen the critical path until it balances the area, then list-schedule by bottom level."""

from __future__ import annotations

import numpy as np

from threadcast.core import OpGraph
from threadcast.scheduler.policies.allotted import Allotted
from threadcast.scheduler.policies.growth import grown
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels, rank_by_level
from threadcast.scheduler.problem.times import Integers


class Cpa(Allotted):
    """The allotment of `growth.grown`; the ready op with the longest path behind it goes first.

    `allotment`: (n_ops,) positions in `problem.times.counts`. Source: Radulescu and van Gemund 2001, "A low-cost
    approach towards mixed task and data parallel scheduling", section 3. Departures: an op goes to its next
    offered count that is faster, where the paper adds one processor, for curves are jagged. As there, an op that
    needs more cores than are idle holds those that are, so no later one overtakes it.
    """

    name = "cpa"

    def __init__(self, problem: Problem) -> None:
        n = len(problem.graph)
        every_width = np.array([n * problem.times.counts[-1]])
        self._allot(problem, np.zeros(n, dtype=np.int64), every_width)

    def _allot(self, problem: Problem, level: Integers, room: Integers) -> None:
        self.allotment = grown(problem.graph, problem.times, cores=len(problem.machine), level=level, room=room)
        bottom = levels(problem.graph, problem.times.at(self.allotment))
        Allotted.__init__(self, problem, allotment=self.allotment, rank=rank_by_level(bottom), in_order=True)


class Mcpa(Cpa):
    """CPA in which the ops of a precedence level together get no more cores than there are.

    Ops of a level (the most ops before them on any path) can run side by side, which wider ones would end. A level
    of more ops than cores does not grow at all. Source: Bansal, Kumar and Singh 2006, "An improved two-step
    algorithm for task and data parallel scheduling in distributed memory machines".
    """

    name = "mcpa"

    def __init__(self, problem: Problem) -> None:
        depth = depths(problem.graph)
        used = np.bincount(depth, np.asarray(problem.times.counts)[problem.times.within(0)]).astype(np.int64)
        self._allot(problem, depth, len(problem.machine) - used)


def depths(graph: OpGraph) -> Integers:
    """(n_ops,) each op's precedence level: the most edges on a path from the start of the graph to it."""
    depth = [0] * len(graph)
    for op in graph.topological_order:
        for after in graph.successors[op]:
            depth[after] = max(depth[after], depth[op] + 1)
    return np.array(depth, dtype=np.int64)
