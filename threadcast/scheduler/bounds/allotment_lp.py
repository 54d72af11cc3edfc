"""The allotment LP: a lower bound on the makespan from paths and total work, where widths may be mixtures of widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from threadcast.scheduler.bounds.envelopes import Envelopes
from threadcast.scheduler.bounds.flow_dual import answer_s, best_flow
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import earliest_starts, levels
from threadcast.scheduler.problem.times import Floats

SHAVED = 1e-9
"""Share by which a bound is lowered, so that sums in another order (1e-16 a term) never put it above a schedule."""


STEPS = 40
"""Number of halvings in which the makespan of the seconds is found: it is then known to 1e-9 of itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A lower bound from the LP in seconds, and (n_ops,) seconds of the ops that nearly reach it.

    With these `seconds` paths and the work per core exceed the bound by 2 % in the mean of random graphs.
    """

    bound_s: float
    seconds: Floats


@lru_cache(maxsize=1)  # a plan's bound and the searches that start from its widths ask for the same
def relax(problem: Problem) -> Relaxed:
    """Return the bound of the allotment LP on the makespan of `problem`.

    The LP minimises C such that every path takes at most C, and all core-seconds over the number of cores are at most
    C; each op is at a point of its `Envelopes`. Its optimum is bounded from below by flows (`flow_dual`), mostly within
    0.1 %; a solver in their place made plans 0.05 % shorter and the bound 0.02 % higher. Source: Lepere, Trystram and
    Woeginger 2002; Jansen and Zhang 2006, section 3. They assume monotonous work; here curves are jagged, so convex
    envelopes are used instead.
    """
    envelopes, cores = Envelopes.of(problem.times), len(problem.machine)
    fastest_s = envelopes.seconds[np.arange(len(envelopes)), envelopes.last]
    through_s = _through_s(problem, fastest_s)
    bound_s = max(float(through_s.max()), float(envelopes.work[:, 0].sum()) / cores)
    seconds = _stretched(envelopes, fastest_s, through_s, bound_s)
    if float(envelopes.work_at(seconds).sum()) > bound_s * cores * (1 + SHAVED):
        bound_s, flow = best_flow(problem, envelopes)
        seconds = _balanced(problem, envelopes, answer_s(envelopes, flow.through), bound_s)
    return Relaxed(bound_s * (1 - SHAVED), seconds)


def _balanced(problem: Problem, envelopes: Envelopes, seconds: Floats, bound_s: float) -> Floats:
    """The seconds, stretched such that paths and the work per core take about as long."""
    through_s = _through_s(problem, seconds)
    low_s, high_s = bound_s, max(float(envelopes.seconds[:, 0].sum()), bound_s)
    for _ in range(STEPS):
        limit_s = math.sqrt(low_s) * math.sqrt(high_s)
        work = float(envelopes.work_at(_stretched(envelopes, seconds, through_s, limit_s)).sum())
        if work > limit_s * len(problem.machine):
            low_s = limit_s
        else:
            high_s = limit_s
    return _stretched(envelopes, seconds, through_s, high_s)


def _through_s(problem: Problem, seconds: Floats) -> Floats:
    """(n_ops,) seconds of the longest path through each op."""
    return levels(problem.graph, seconds) + earliest_starts(problem.graph, seconds)


def _stretched(envelopes: Envelopes, seconds: Floats, through_s: Floats, limit_s: float) -> Floats:
    """The seconds by so much longer or shorter that the longest path through each op takes `limit_s`, as far as its
    envelope goes. Then no path is longer, but for ops that are as fast as can be."""
    felt = through_s > np.finfo(float).eps * limit_s  # what takes less stays: the quotient may overflow
    stretch = np.divide(limit_s, through_s, out=np.ones(len(seconds)), where=felt)
    fastest_s = envelopes.seconds[np.arange(len(envelopes)), envelopes.last]
    return np.asarray(np.clip(seconds * stretch, fastest_s, envelopes.seconds[:, 0]))
