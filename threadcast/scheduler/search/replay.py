"""What becomes of a plan when ops take other times than it was made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import OpGraph, Placement
from threadcast.scheduler.search.compiled import compiled
from threadcast.scheduler.search.instance import Floats, Ints


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
        self._order = np.lexsort((place, finishes, starts)).astype(np.int32)

    def makespan_s(self, seconds: Floats) -> float:
        """The makespan when op i takes `seconds[i]`, (n_ops,) float64."""
        finish = np.empty(len(seconds))
        return float(
            _replay(self._order, self._before_at, self._before, self._core_at, self._core, self._cores, seconds, finish)
        )
