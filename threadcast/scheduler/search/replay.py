"""Replays a plan with other op times; every op keeps its cores and its order on them.

`policies.plan_replay.PlanReplay` does the same for ops that share cores or slow each other down, by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import OpGraph, Placement
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.kernels.replay_loop import replay
from threadcast.scheduler.policies.plan_replay import plan_order
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.compressed_rows import CompressedRows


class Replay:
    """Computes the starts of ops in a fixed order on fixed cores, for any times; one op at a time on a core.

    `order`: (n_ops,) positions in the graph, dependencies first; `cores`: the core ids of each op.
    """

    def __init__(self, graph: OpGraph, order: Ints, cores: Sequence[tuple[int, ...]]) -> None:
        self.order = order
        number = {core: i for i, core in enumerate(sorted({core for own in cores for core in own}))}
        self._n_cores = len(number)
        self._cores_of = CompressedRows.of([[number[core] for core in own] for own in cores])
        self._predecessors = CompressedRows.of(graph.predecessors)

    @classmethod
    def of(cls, graph: OpGraph, placements: Sequence[Placement]) -> Replay:
        """Return the replay of a plan's placements."""
        by_id = {at.id: at for at in placements}
        order = np.array(plan_order(graph, placements), dtype=np.int64)
        return cls(graph, order, [by_id[op_id].cores for op_id in graph.ids])

    def run(self, seconds: Floats) -> tuple[float, Floats]:
        """Return the makespan and (n_ops,) starts where op i takes `seconds[i]`."""
        start = np.empty(len(seconds))
        makespan_s = replay(self.order, self._predecessors, self._cores_of, self._n_cores, seconds, start)
        return float(makespan_s), start


def replayed(problem: Problem, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return `placements` with the problem's times: ops keep their cores and their order on them."""
    by_id = {at.id: at for at in placements}
    order = np.array(plan_order(problem.graph, placements), dtype=np.int64)
    return timed(problem, order, [by_id[op_id].cores for op_id in problem.graph.ids])


def timed(problem: Problem, order: Ints, cores: Sequence[tuple[int, ...]]) -> tuple[Placement, ...]:
    """Return placements of ops on these core ids, in this order, with the problem's times on them."""
    ids = problem.graph.ids
    seconds = np.array([problem.times.on(op, own, len(own)) for op, own in enumerate(cores)])
    _, start = Replay(problem.graph, order, cores).run(seconds)
    start_s, finish_s = start.tolist(), (start + seconds).tolist()
    return tuple([Placement(ids[op], cores[op], len(cores[op]), start_s[op], finish_s[op]) for op in order.tolist()])
