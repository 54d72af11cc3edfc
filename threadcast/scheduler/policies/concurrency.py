"""Strategies 1 and 2 of Liu et al. 2018, III-D: the thread count of each op.

All functions return (n_ops,) positions in `times.counts`.
"""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.times import Integers


def per_op(problem: Problem) -> Integers:
    """Return strategy 1: each op at its own fastest thread count."""
    return problem.times.fastest()


def per_kind(problem: Problem) -> Integers:
    """Return strategy 2: all ops of a kind at the fastest thread count of the most time-consuming op of the kind.

    That is the op with the longest fastest time, among equals the first; the paper also calls it the op with the
    largest input. An op that does not offer the count takes the largest smaller count that it offers.
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
    """Return the baseline of the strategies: each op at its largest offered count up to all cores."""
    return problem.times.within(len(problem.machine))
