"""What becomes of a plan when ops take other times than it was made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import OpGraph, Placement
from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.problem import Problem


@compiled
def _replay(
    order: Ints, before_at: Ints, before: Ints, core_at: Ints, core: Ints, n_cores: int, seconds: Floats, finish: Floats
) -> float:
    busy_to = np.zeros(n_cores)
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        begin = 0.0
        for e in range(core_at[op], core_at[op + 1]):
            begin = max(begin, busy_to[core[e]])
        for e in range(before_at[op], before_at[op + 1]):
            begin = max(begin, finish[before[e]])
        finish[op] = begin + seconds[op]
        for e in range(core_at[op], core_at[op + 1]):
            busy_to[core[e]] = finish[op]
        makespan = max(makespan, finish[op])
    return makespan


class Replay:
    """Runs placements again and again: every op on its cores, every core's ops in their order."""

    def __init__(self, graph: OpGraph, placements: Sequence[Placement]) -> None:
        position = {op_id: i for i, op_id in enumerate(graph.ids)}
        placed = sorted(placements, key=lambda at: position[at.id])
        column = {core: i for i, core in enumerate(sorted({core for at in placed for core in at.cores}))}
        self._cores = len(column)
        self._core_at = np.cumsum([0, *(len(at.cores) for at in placed)]).astype(np.int32)
        self._core = np.array([column[core] for at in placed for core in at.cores], dtype=np.int32)
        self._before_at = np.cumsum([0, *map(len, graph.predecessors)]).astype(np.int32)
        self._before = np.array([other for row in graph.predecessors for other in row], dtype=np.int32)
        place = np.empty(len(placed))
        place[list(graph.topological_order)] = np.arange(len(placed))
        starts, finishes = (np.array([getattr(at, name) for at in placed]) for name in ("start_s", "finish_s"))
        self.order = np.lexsort((place, finishes, starts)).astype(np.int32)
        """(n_ops,) positions in the graph, in the order in which ops go onto their cores."""

    def makespan_s(self, seconds: Floats) -> float:
        """The makespan when op i takes `seconds[i]`, (n_ops,) float64."""
        finish = np.empty(len(seconds))
        return float(
            _replay(self.order, self._before_at, self._before, self._core_at, self._core, self._cores, seconds, finish)
        )


def replayed(problem: Problem, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Where and when ops run that keep their cores and the order on them and take the problem's times.

    No two ops may share a core at a time. What the simulator makes of `PlanReplay` then, without its events.
    """
    graph, on = problem.graph, problem.times.on
    by_id = {at.id: at for at in placements}
    busy_to: dict[int, float] = {}
    finish_s = [0.0] * len(graph)
    found = []
    for op in Replay(graph, placements).order.tolist():
        at = by_id[graph.ids[op]]
        begin_s = max([busy_to.get(core, 0.0) for core in at.cores])
        for before in graph.predecessors[op]:
            begin_s = max(begin_s, finish_s[before])
        finish_s[op] = begin_s + on(op, at.cores, at.threads)
        busy_to.update(dict.fromkeys(at.cores, finish_s[op]))
        found.append(Placement(at.id, at.cores, at.threads, begin_s, finish_s[op]))
    return tuple(found)
