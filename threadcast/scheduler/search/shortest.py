"""Finds short schedules on real cores."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from threadcast.core import Placement
from threadcast.scheduler.kernels.instance import Floats, Instance
from threadcast.scheduler.policies.cpa import Cpa, Mcpa
from threadcast.scheduler.policies.lp_rounding import RHO, LpRounding
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.problem.times import Integers
from threadcast.scheduler.search.core_layout import CoreLayout, CoreSequence
from threadcast.scheduler.search.search import ANNEALED_OPS, RETURNED, Search

FIRST_ENDS, SECOND_ENDS = 0.45, 0.6
"""Parts of the time at which the two searches end if affinities matter. In the rest of the time the best schedule is
annealed on real cores."""
CPA_OPS = 2_000
"""Most ops for which CPA's allotments are made: for 3,000 ops on 128 cores they took 1.5 s of the 2 s of a search."""
ROUNDINGS = (0.0, RHO, 1.0)
"""Ways to round the relaxation's widths for large graphs: with all of them, recurrent networks of 5,400 and 14,000 ops
on 16 to 128 cores took 1.18 of the lower bound, with RHO alone 1.19, with none 1.24."""


def shortest(problem: Problem, *, bound_s: float, seed: int, deadline_s: float) -> Iterator[tuple[Placement, ...]]:
    """Yield short schedules on real cores, the shortest first; `bound_s` is a lower bound on them.

    `Search` treats all cores as equal and uses each op's time at its better affinity. With cache groups, not all ops
    get that affinity. So a second search uses the times at the worse affinity, and the best schedule is annealed on
    real cores.
    """
    layout, begun_s = CoreLayout(problem), time.monotonic()
    large = len(problem.graph) > ANNEALED_OPS
    allotments = list(_allotments(problem))

    def searched(seconds: Floats, least_s: float, part: float) -> list[CoreSequence]:
        instance = Instance.of(problem, seconds)
        given = [instance.choice(allotment) for allotment in allotments]
        until_s = begun_s + part * (deadline_s - begun_s)
        search = Search(instance, bound_s=least_s, given=given, seed=seed, deadline_s=until_s)
        # On real cores a longer one can turn out shorter; on large graphs finding out takes longer than it is worth.
        found = search.run()[: 1 if large else None]
        return [layout.sequence(one.start.tolist(), instance.positions(one.choice)) for one in found]

    again = not large and layout.affinity_matters  # on large graphs the time is better spent on one search
    enough_s = bound_s * (1 + 1e-9)
    found = searched(problem.times.seconds, bound_s, FIRST_ENDS if again else 1.0)
    if again and min(map(_makespan_s, found)) > enough_s:
        found += searched(layout.slower_s, _least_s(problem, layout.slower_s), SECOND_ENDS)
    found = sorted(found, key=_makespan_s)[:RETURNED]
    if again:
        found[0] = layout.annealed(found[0], seed=seed, enough_s=enough_s, deadline_s=deadline_s, clock=time.monotonic)
    for sequence in found:
        yield layout.placements(sequence)


def _allotments(problem: Problem) -> Iterator[Integers]:
    """Allotments of policies, to start from: the relaxation's widths and, as there is time for them, CPA's."""
    if len(problem.graph) <= CPA_OPS:
        yield from (kind(problem).allotment for kind in (Cpa, Mcpa, LpRounding))
        return
    for rho in ROUNDINGS:
        for widest in (None, len(problem.machine)):
            yield LpRounding(problem, rho=rho, widest=widest).allotment


def _least_s(problem: Problem, seconds: Floats) -> float:
    """The longer of critical path and area at these seconds, (n_ops, n_counts)."""
    area_s = float((seconds * np.asarray(problem.times.counts)).min(axis=1).sum()) / len(problem.machine)
    return max(area_s, float(levels(problem.graph, seconds.min(axis=1)).max()))


def _makespan_s(sequence: CoreSequence) -> float:
    return sequence.makespan_s
