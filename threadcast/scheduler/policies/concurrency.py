"""Strategies 1 and 2 of Liu et al. 2018, III-D: how many threads each op runs with, alone."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.times import Integers


def per_op(problem: Problem) -> Integers:
    """Strategy 1: each op at its own fastest thread count; (n_ops,) positions in `times.counts`."""
    return problem.times.fastest()


def per_kind(problem: Problem) -> Integers:
    """Strategy 2: all ops of a kind at the fastest thread count of its most time-consuming one.

    That is the one whose fastest time is the longest, among equals the first; the paper also calls it the one with
    the largest input. An op that does not offer the count takes the largest smaller one that it offers. (n_ops,)
    positions in `times.counts`.
    """
    times = problem.times
    own = times.fastest()
    own_s = times.at(own).tolist()
    largest: dict[str, int] = {}
    for op, described in enumerate(problem.graph.ops):
        longest = largest.setdefault(described.kind, op)
        if own_s[op] > own_s[longest]:
            largest[described.kind] = op
    chosen = np.array([own[largest[op.kind]] for op in problem.graph.ops], dtype=np.int64)
    not_offered = ~np.isfinite(times.at(chosen))
    for position in set(chosen[not_offered].tolist()):
        rows = not_offered & (chosen == position)
        chosen[rows] = times.within(times.counts[position])[rows]
    return chosen


def all_cores(problem: Problem) -> Integers:
    """What the strategies are compared with: every op on all cores, as far as its curve goes."""
    return problem.times.within(len(problem.machine))
