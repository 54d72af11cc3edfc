"""What the search compares, and its way to a plan: cores for every op, and the times that follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.core import Placement
from threadcast.scheduler.cores import CorePicker
from threadcast.scheduler.policies.base import Problem
from threadcast.scheduler.search.instance import Floats, Instance, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Thread counts (`choice`, positions among the instance's useful ones) and start times, on equal cores."""

    choice: Ints
    start: Floats
    makespan_s: float

    def order(self, instance: Instance) -> Ints:
        """(n_ops,) ops by start; those of no time before others that start then, in the graph's order."""
        place = np.empty(len(instance), dtype=np.int32)
        place[instance.order] = np.arange(len(instance), dtype=np.int32)
        timed = self.start + instance.times(self.choice) > self.start
        return np.lexsort((place, timed, self.start)).astype(np.int32)


def place(problem: Problem, instance: Instance, solution: Solution) -> tuple[Placement, ...]:
    """Give every op cores, of one cache group where they are free, and the times that its curve has on those.

    Ops keep the solution's order on their cores and start as soon as all that is before them has finished, as
    `PlanReplay` runs them. Times differ from the solution's where an op gets cores of another affinity than it
    was searched with.
    """
    graph, times = problem.graph, problem.times
    picker = CorePicker(problem.machine)
    ids = [core.id for core in problem.machine.cores]
    column = {core: i for i, core in enumerate(ids)}
    width = instance.widths(solution.choice).tolist()
    rows = np.arange(len(instance))
    spread = times.spread[rows, instance.position[rows, solution.choice]].tolist()
    seconds = instance.times(solution.choice)
    start = solution.start.tolist()
    end = (solution.start + seconds).tolist()
    free_from = [0.0] * len(ids)  # by the solution's times
    busy_to = [0.0] * len(ids)  # by those on the cores chosen
    finish = [0.0] * len(instance)
    placements: list[Placement] = []
    for op in solution.order(instance).tolist():
        count = width[op]
        limit = start[op] * (1 + 1e-12)
        idle = tuple([core for core, until in zip(ids, free_from) if until <= limit])
        if len(idle) < count:  # an op of no time, which the search gave no core of its own
            by_end = sorted(range(len(ids)), key=free_from.__getitem__)[:count]
            idle = tuple([ids[i] for i in sorted(by_end)])
        cores = picker.pick(idle, count, spread=spread[op])
        columns = [column[core] for core in cores]
        begin = max([busy_to[i] for i in columns])
        for other in graph.predecessors[op]:
            if finish[other] > begin:
                begin = finish[other]
        finish[op] = begin + times.on(op, cores, count)
        for i in columns:
            busy_to[i] = finish[op]
            if end[op] > free_from[i]:
                free_from[i] = end[op]
        placements.append(Placement(graph.ids[op], cores, count, begin, finish[op]))
    return tuple(placements)
