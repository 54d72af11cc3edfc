"""Chooses widths by linear programming and rounding, then list-schedules: the method with the best proven ratio."""

from __future__ import annotations

import math

import numpy as np

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.allotment_lp import relax
from threadcast.scheduler.bounds.envelopes import Envelopes
from threadcast.scheduler.policies.allotted import Allotted
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels, rank_by_level
from threadcast.scheduler.problem.times import Floats, Integers, Times

RHO = 0.43
"""Part of the way from the faster to the slower width's time from which on an op gets the slower width; the value of
Jansen and Zhang 2006, section 4, for their ratio of 4.73."""


class LpRounding(Allotted):
    """List-schedules ops by level, at the rounded widths of the allotment LP, with at most `widest` cores each.

    An op whose LP time lies between two corners of its envelope gets the slower corner if its time is at least `rho` of
    the way from the faster to the slower one, else the faster corner. Ops wider than `widest` get their fastest width
    up to that, or their narrowest. `widest` None means the share of the cores that the papers prove best (`widest_of`).

    Sources: Lepere, Trystram and Woeginger 2002; Jansen and Zhang 2006. Differences: list scheduling is by level, in
    the papers in any order, and the LP is solved approximately (`allotment_lp.relax`). The proof needs times that fall
    and work that grows with the width, which curves here need not have.
    """

    name = "lp_rounding"

    def __init__(self, problem: Problem, *, rho: float = RHO, widest: int | None = None) -> None:
        cores = len(problem.machine)
        if not 0 <= rho <= 1:
            raise InvalidInput(f"rho={rho}: from 0 (the slower width always) to 1 (the slower one only where exact)")
        if widest is not None and not 1 <= widest <= cores:
            raise InvalidInput(f"widest={widest}: from 1 to the {cores} cores there are")
        rounded = _rounded(Envelopes.of(problem.times), relax(problem).seconds, rho)
        self.allotment = _at_most(problem.times, rounded, widest or widest_of(cores))
        level = levels(problem.graph, problem.times.at(self.allotment))
        super().__init__(problem, allotment=self.allotment, rank=rank_by_level(level))


def widest_of(cores: int) -> int:
    """Return the largest width in the proof of Jansen and Zhang 2006, section 4: about 0.27 of the cores."""
    return max(1, round((93 * cores - math.sqrt(4349 * cores**2 - 4300 * cores)) / 100))


def _rounded(envelopes: Envelopes, seconds: Floats, rho: float) -> Integers:
    """(n_ops,) positions in `Times.counts`."""
    row = np.arange(len(envelopes))
    faster = envelopes.column(seconds)
    slower = np.maximum(faster - 1, 0)
    faster_s, slower_s = envelopes.seconds[row, faster], envelopes.seconds[row, slower]
    takes_slower = (seconds > faster_s) & (seconds >= faster_s + rho * (slower_s - faster_s))
    return np.asarray(envelopes.position[row, np.where(takes_slower, slower, faster)])


def _at_most(times: Times, positions: Integers, widest: int) -> Integers:
    counts = np.asarray(times.counts)
    allowed = np.where(counts <= widest, times.seconds, np.inf)
    narrower = np.where(np.isfinite(allowed).any(axis=1), allowed.argmin(axis=1), times.within(widest))
    return np.asarray(np.where(counts[positions] > widest, narrower, positions), dtype=np.int64)
