"""All ops at the same width: their times on a team of so many cores, and the best single thread count."""

from __future__ import annotations

import numpy as np

from threadcast.core.errors import PlanError
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.times import Floats, Integers


def team_times(problem: Problem, width: int) -> tuple[Integers, Floats]:
    """Return each op's position in `times.counts` on a team of `width` cores, and its seconds there; (n_ops,) each.

    The seconds are those at the better affinity, even if the team's own cores have the other one. PlanError where the
    curve of an op starts above `width` threads.
    """
    times = problem.times
    views = np.array([op.is_view for op in problem.graph.ops], dtype=bool)
    positions = np.where(views, times.within(1), times.within(width))
    too_wide = np.flatnonzero(np.asarray(times.counts)[positions] > width)
    if too_wide.size:
        op = int(too_wide[0])
        fewest = times.counts[positions[op]]
        raise PlanError(
            f"the curve of op {problem.graph.ids[op]!r} starts at {fewest} threads; teams of {width} cannot run it"
        )
    return positions, times.at(positions)


def best_width(problem: Problem) -> tuple[int, Integers, Floats]:
    """Return the thread count with the least sum of all ops' times, with each op's position and seconds.

    Position (in `times.counts`) and seconds are as `team_times` returns them. Among equal sums the smallest count wins.
    """
    times = problem.times
    columns = np.where(np.isfinite(times.seconds), np.arange(len(times.counts)), -1)
    one_thread = times.within(1)
    for op in [op for op, described in enumerate(problem.graph.ops) if described.is_view]:
        columns[op, one_thread[op] + 1 :] = -1
    widest = np.maximum.accumulate(columns, axis=1)  # (n_ops, n_counts) within each width, -1 where it is too narrow
    seconds = np.where(widest < 0, np.inf, np.take_along_axis(times.seconds, np.maximum(widest, 0), axis=1))
    width = times.counts[int(np.ascontiguousarray(seconds.T).sum(axis=1).argmin())]
    return width, *team_times(problem, width)
