"""From start times and widths, as a solver without core ids gives them, to a plan on cores."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import Placement, Plan
from threadcast.scheduler.cores import CorePicker
from threadcast.scheduler.policies.base import Problem
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.simulator import simulate


def lay_out(problem: Problem, *, start: Sequence[float], position: Sequence[int], policy: str) -> Plan:
    """Return the plan of these starts and positions in `problem.times.counts`, one of each an op.

    Only the order of `start` counts, in any unit: ops are taken in it and start as soon as their predecessors have
    finished and enough cores are free, for as long as they take on the cores they get. So the plan is legal whatever
    `start` is, and no later than `start` where that is a schedule of these times. Cores are of one cache group where
    they can be, or of many where an op is faster so. Times are those of a replay in the simulator; the plan's
    `lower_bound_s` is left at 0.
    """
    graph, times = problem.graph, problem.times
    free_s = {core.id: 0.0 for core in problem.machine.cores}
    finish_s = [0.0] * len(graph)
    picker = CorePicker(problem.machine)
    timeless = [times.seconds[op, position[op]] == 0 for op in range(len(graph))]
    placements = []
    for op in _order(problem, start, timeless):
        width = times.counts[position[op]]
        ready_s = max((finish_s[before] for before in graph.predecessors[op]), default=0.0)
        begin_s = max(ready_s, sorted(free_s.values())[width - 1])
        idle = tuple(core for core, since_s in free_s.items() if since_s <= begin_s)
        if timeless[op]:  # beside a predecessor, so that no core is kept from others until then
            cores = tuple(sorted(idle, key=free_s.__getitem__)[-width:])
        else:
            cores = picker.pick(idle, width, spread=bool(times.spread[op, position[op]]))
        finish_s[op] = begin_s + times.on(op, cores, width)
        free_s.update(dict.fromkeys(cores, finish_s[op]))
        placements.append(Placement(graph.ids[op], cores, width, begin_s, finish_s[op]))
    laid = Plan(len(free_s), policy, tuple(placements))
    replayed = simulate(PlanReplay(problem, plan=laid))
    return Plan(len(free_s), policy, replayed.ops, curves_from=problem.curves.model)


def _order(problem: Problem, start: Sequence[float], timeless: Sequence[bool]) -> list[int]:
    """Ops by start, dependencies first; those without time right after their last predecessor, whatever their start."""
    graph = problem.graph
    place = {op: i for i, op in enumerate(graph.topological_order)}
    waiting = [len(before) for before in graph.predecessors]
    order: list[int] = []

    def take(op: int) -> None:
        due = [op]
        while due:
            order.append(due.pop())
            for after in graph.successors[order[-1]]:
                waiting[after] -= 1
                if timeless[after] and not waiting[after]:
                    due.append(after)

    for op in graph.topological_order:
        if timeless[op] and not graph.predecessors[op]:
            take(op)
    for op in sorted(range(len(graph)), key=lambda op: (start[op], place[op])):
        if not timeless[op]:
            take(op)
    return order
