"""CP-SAT after the search: on small graphs it raises the bound and improves the plan in what is left of the time."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from threadcast.core import Plan
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.search.cp_sat import CpSatResult, solve

MOST_WIDTHS = 600
"""Useful widths of all ops together up to which it is tried: 60 ops on 4 or 16 cores, 20 on 48. Beyond, CP-SAT found
nothing in a second."""
EFFORT_S = 1.0
"""What it takes at most on a slow core; mostly half of that (AMD EPYC)."""
SHARE, LEAST = 0.5, 0.1
"""Of the budget: the most effort, and what must be left for it."""
WORTH = 1e-5
"""Distance from the bound, over the bound, up to which a plan is left alone: what CP-SAT's rounding may leave."""


def closed(problem: Problem, plan: Plan, *, left_s: float, budget_s: float, seed: int) -> CpSatResult | None:
    """Return CP-SAT's bound and its plan from `plan` on; None where it is not worth the time or is not installed.

    `plan` has one op at a time on a core, `lower_bound_s` is the bound that is known. Equal arguments but for `left_s`
    give equal results if that suffices.
    """
    if plan.makespan_s <= plan.lower_bound_s * (1 + WORTH) or left_s < LEAST * budget_s:
        return None
    if _widths(problem) > MOST_WIDTHS or find_spec("ortools") is None:
        return None
    effort_s = min(EFFORT_S, SHARE * budget_s)
    return solve(problem, budget_s=left_s, effort_s=effort_s, seed=seed, hint=plan, closing=True)


def _widths(problem: Problem) -> int:
    """How many widths there are that are faster than all narrower ones of the same op."""
    seconds = problem.times.seconds
    narrower = np.minimum.accumulate(seconds, axis=1)[:, :-1]
    return int(np.isfinite(seconds[:, 0]).sum() + (seconds[:, 1:] < narrower).sum())
