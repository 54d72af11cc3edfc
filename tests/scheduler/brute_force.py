"""The shortest schedule of all, for graphs of up to six ops; shares no code with the package."""

from __future__ import annotations

import math

from threadcast.core import Curve
from threadcast.scheduler.policies import Problem

Placed = dict[int, tuple[float, float, int]]
"""Op -> start, finish, cores."""


def best_makespan_s(problem: Problem) -> float:
    """The least makespan over every thread count of every op and every order, each op as early as it can.

    Some order with ops placed as early as possible is optimal, since the makespan never rises when an op moves
    earlier. Partial schedules that are as long as a whole one are given up.
    """
    predecessors, cores = problem.graph.predecessors, len(problem.machine)
    offered = [list(fastest_by_threads(problem.curves[i]).items()) for i in range(len(problem.graph))]

    def extend(placed: Placed, best: float) -> float:
        if len(placed) == len(offered):
            return max(finish for _, finish, _ in placed.values())
        for op in range(len(offered)):
            if op in placed or not all(before in placed for before in predecessors[op]):
                continue
            for threads, seconds in offered[op]:
                start = earliest(placed, predecessors[op], seconds, cores - threads)
                if start + seconds < best:
                    best = min(best, extend({**placed, op: (start, start + seconds, threads)}, best))
        return best

    return extend({}, math.inf)


def fastest_by_threads(curve: Curve) -> dict[int, float]:
    """Seconds at each thread count, of the faster affinity where there are two."""
    fastest: dict[int, float] = {}
    for case, seconds in zip(curve.cases, curve.seconds):
        fastest[case.threads] = min(fastest.get(case.threads, math.inf), float(seconds))
    return fastest


def earliest(placed: Placed, predecessors: tuple[int, ...], seconds: float, busy_at_most: int) -> float:
    """The first moment after all predecessors at which at most `busy_at_most` cores are in use for `seconds`."""
    after = max((placed[before][1] for before in predecessors), default=0.0)
    for start in sorted({after, *(finish for _, finish, _ in placed.values() if finish > after)}):
        end = start + seconds
        moments = {start, *(s for s, _, _ in placed.values() if start <= s < end)}
        if all(sum(n for s, f, n in placed.values() if s <= t < f) <= busy_at_most for t in moments):
            return start
    raise AssertionError("an op needs more cores than there are")
