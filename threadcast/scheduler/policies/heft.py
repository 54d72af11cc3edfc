"""HEFT: places ops by falling level, each where it finishes first, which may be in a gap between others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Placement, Plan
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.problem import Launch, Policy, Problem, State
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.problem.times import Floats, Integers
from threadcast.scheduler.simulation.core_picker import CorePicker


class Heft(Policy):
    """Runs each op at its smallest offered thread count, on the cores and in the order that HEFT has planned before.

    Ops are placed by falling upward rank, each at the earliest time at which its predecessors have finished and enough
    cores are idle for its whole duration; this may be a gap between ops placed earlier. Of several cores, the first in
    the machine's order is taken. Source: Topcuoglu, Hariri and Wu 2002, section 4 (upward rank 4.1, HEFT 4.2).
    Differences: all cores are equal, moving values costs nothing, and an op that does not offer one thread takes
    several cores. `planned_s` is the planned makespan in seconds, with every op at its better affinity.
    """

    name = "heft"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        placements = _placed(problem)
        self.planned_s = max(at.finish_s for at in placements)
        self._replay = PlanReplay(problem, plan=Plan(len(problem.machine), self.name, placements, 0.0))
        self.rank = self._replay.rank

    def decide(self, state: State) -> Sequence[Launch]:
        return self._replay.decide(state)


class _Gaps:
    """The idle intervals of all cores; a core is its number in the machine's order, which ties fall to."""

    def __init__(self, cores: int) -> None:
        self._start: Floats = np.zeros(cores)
        self._end: Floats = np.full(cores, np.inf)
        self._core: Integers = np.arange(cores)

    def earliest(self, ready_s: float, duration_s: float, count: int) -> tuple[float, Integers]:
        """Return the first time from `ready_s` on at which `count` cores are idle for `duration_s`, and the gaps."""
        begin = np.maximum(self._start, ready_s)
        fits = np.flatnonzero(begin + duration_s <= self._end)
        if count == 1:
            first = float(begin[fits].min())
            at = fits[begin[fits] == first]
            return first, at[[np.argmin(self._core[at])]]
        starts = np.unique(begin[fits])  # at the last one every core is idle for good
        return next(found for start in starts if len((found := self._at(float(start), duration_s, fits))[1]) >= count)

    def _at(self, start_s: float, duration_s: float, gaps: Integers) -> tuple[float, Integers]:
        """The time, and one gap a core among these that is idle from then on for the duration."""
        inside = gaps[(self._start[gaps] <= start_s) & (start_s + duration_s <= self._end[gaps])]
        return start_s, inside[np.unique(self._core[inside], return_index=True)[1]]

    def cores(self, gaps: Integers) -> tuple[int, ...]:
        """The numbers of the cores of these gaps."""
        return tuple(self._core[gaps].tolist())

    def take(self, gaps: Integers, start_s: float, finish_s: float, shortest_s: float) -> None:
        """Cut the interval out of the gaps; what is left and shorter than `shortest_s` is forgotten."""
        before_s, after_s = self._start[gaps], self._end[gaps]
        self._start = np.concatenate([self._start, before_s])
        self._end = np.concatenate([self._end, np.full(len(gaps), start_s)])
        self._core = np.concatenate([self._core, self._core[gaps]])
        self._start[gaps], self._end[gaps] = finish_s, after_s
        changed = np.concatenate([gaps, np.arange(len(self._start) - len(gaps), len(self._start))])
        left_s = self._end[changed] - self._start[changed]
        useless = changed[(left_s <= 0) | (left_s < shortest_s)]
        if len(useless):
            self._start, self._end = np.delete(self._start, useless), np.delete(self._end, useless)
            self._core = np.delete(self._core, useless)


def _placed(problem: Problem) -> tuple[Placement, ...]:
    graph, times = problem.graph, problem.times
    smallest = times.within(0)
    seconds = times.at(smallest)
    duration_s = seconds.tolist()
    width = np.asarray(times.counts)[smallest].tolist()
    spread = times.spread[np.arange(len(smallest)), smallest].tolist()
    place = np.empty(len(graph), dtype=np.int64)
    place[list(graph.topological_order)] = np.arange(len(graph))
    # an op of no time may have its successor's rank: dependencies decide then
    order = np.lexsort((place, -levels(graph, seconds)))
    core_ids = tuple(core.id for core in problem.machine.cores)
    number = {core: i for i, core in enumerate(core_ids)}
    gaps, picker = _Gaps(len(core_ids)), CorePicker(problem.machine)
    finish_s = [0.0] * len(graph)
    placements: list[Placement] = []
    shortest_s = float(seconds.min())
    for op in order.tolist():
        ready_s = max((finish_s[before] for before in graph.predecessors[op]), default=0.0)
        start_s, found = gaps.earliest(ready_s, duration_s[op], width[op])
        cores = tuple(core_ids[i] for i in gaps.cores(found))
        if len(cores) > width[op]:
            cores = picker.pick(cores, width[op], spread=spread[op])
            chosen = {number[core] for core in cores}
            found = found[[i in chosen for i in gaps.cores(found)]]
        finish_s[op] = start_s + duration_s[op]
        gaps.take(found, start_s, finish_s[op], shortest_s)
        placements.append(Placement(graph.ids[op], cores, len(cores), start_s, finish_s[op]))
    return tuple(placements)
