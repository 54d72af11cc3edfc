"""The allotment LP: a lower bound on the makespan from paths and total work, where widths may be mixtures of widths."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A lower bound from the LP in seconds, and (n_ops,) seconds of the ops that belong to it.

    Where the bound is not the LP's optimum but below it, with these `seconds` a path or the work per core may exceed
    it.
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
    envelopes = Envelopes.of(problem.times)
    at_once = _without_conflict(problem, envelopes)
    if at_once is not None:
        return at_once
    bound_s, flow = best_flow(problem, envelopes)
    return Relaxed(bound_s * (1 - SHAVED), answer_s(envelopes, flow.through))


def _without_conflict(problem: Problem, envelopes: Envelopes) -> Relaxed | None:
    """The solution if the larger of critical path and area can be reached, and so is the optimum; else None.

    Each op's fastest seconds are multiplied by the bound over the longest path through the op. Then no path is longer
    than the bound.
    """
    graph, row = problem.graph, np.arange(len(envelopes))
    fastest_s = envelopes.seconds[row, envelopes.last]
    behind_s = levels(graph, fastest_s)
    area_s = float(envelopes.work[:, 0].sum()) / len(problem.machine)
    bound_s = max(float(behind_s.max()), area_s)
    through_s = behind_s + earliest_starts(graph, fastest_s)
    felt = through_s > np.finfo(float).eps * bound_s  # what takes less is as fast as can be: the quotient may overflow
    stretch = np.divide(bound_s, through_s, out=np.ones(len(row)), where=felt)
    seconds = np.minimum(envelopes.seconds[:, 0], fastest_s * np.maximum(stretch, 1.0))
    if float(envelopes.work_at(seconds).sum()) > bound_s * len(problem.machine) * (1 + SHAVED):
        return None
    return Relaxed(bound_s * (1 - SHAVED), seconds)
