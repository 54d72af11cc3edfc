"""Replays a plan with other op times; every op keeps its cores and its order on them.

`policies.plan_replay.PlanReplay` does the same for ops that share cores or slow each other down, by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import OpGraph, Placement
from threadcast.scheduler.policies.plan_replay import plan_order
from threadcast.scheduler.problem import Problem

Cores = tuple[int, ...]


def starts_s(graph: OpGraph, order: Sequence[int], cores: Sequence[Cores], seconds: Sequence[float]) -> list[float]:
    """Return the start of each op, which takes `seconds` on its `cores`: each waits for its predecessors, and for those
    before it in `order` on its cores. `order`: positions in the graph, dependencies first."""
    free: dict[int, float] = {}
    start = [0.0] * len(order)
    for op in order:
        begin = max([free.get(core, 0.0) for core in cores[op]])
        for before in graph.predecessors[op]:
            begin = max(begin, start[before] + seconds[before])
        start[op] = begin
        free.update(dict.fromkeys(cores[op], begin + seconds[op]))
    return start


def replayed(problem: Problem, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return `placements` with the problem's times: ops keep their cores and their order on them."""
    by_id = {at.id: at for at in placements}
    return timed(problem, plan_order(problem.graph, placements), [by_id[op_id].cores for op_id in problem.graph.ids])


def timed(problem: Problem, order: Sequence[int], cores: Sequence[Cores]) -> tuple[Placement, ...]:
    """Return placements of ops on these core ids, in this order, with the problem's times on them."""
    ids = problem.graph.ids
    seconds = [problem.times.on(op, own, len(own)) for op, own in enumerate(cores)]
    start = starts_s(problem.graph, order, cores, seconds)
    return tuple([Placement(ids[op], cores[op], len(cores[op]), start[op], start[op] + seconds[op]) for op in order])
