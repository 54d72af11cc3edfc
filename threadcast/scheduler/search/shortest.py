"""The search's schedules on real cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from threadcast.core import Placement
from threadcast.scheduler.interference.class_slowdown import Apart
from threadcast.scheduler.kernels.instance import Floats, Instance
from threadcast.scheduler.policies.cpa import Cpa, Mcpa
from threadcast.scheduler.policies.lp_rounding import RHO, LpRounding
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.problem.times import Integers
from threadcast.scheduler.search.core_layout import CoreLayout, Laid
from threadcast.scheduler.search.search import ANNEALED, KEPT, Search

FIRST, SECOND, THIRD = 0.45, 0.6, 0.75
"""Parts of the time after which the first search ends, where cores or company matter, and the further ones at other
times of the ops; schedules are changed on real cores in the rest."""
COMPARED = 2
"""Schedules that are handed on with `apart`: their makespans are known, and simulating each takes its time."""
ROUNDINGS = (0.0, RHO, 1.0)
"""Ways to round the relaxation's widths for large graphs: with all of them, recurrent networks of 5,400 and 14,000 ops
on 16 to 128 cores took 1.18 of the lower bound, with RHO alone 1.19, with none 1.24."""


def shortest(
    problem: Problem,
    *,
    bound_s: float,
    seed: int,
    deadline_s: float,
    apart: Apart | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Placement, ...]]:
    """Short schedules, the shortest first; `bound_s` is a lower bound on them.

    The search takes cores for equal and gives each op the time of its better affinity. On cache groups not all get
    it, so there what it finds is held against what it finds at the worse affinities, and the best is improved with
    its real cores in view. So it is too with what ops on cores of their own cost each other by `apart`.
    """
    layout, begun_s = CoreLayout(problem, apart=apart), clock()
    large = len(problem.graph) > ANNEALED

    def searched(seconds: Floats, least_s: float, part: float) -> list[Laid]:
        instance = Instance.of(problem, seconds)
        given = [instance.choice(allotment) for allotment in _allotments(problem, large=large)]
        until_s = begun_s + part * (deadline_s - begun_s)
        search = Search(instance, bound_s=least_s, given=given, seed=seed, deadline_s=until_s, clock=clock)
        # On real cores a longer one can turn out shorter; on large graphs finding out takes longer than it is worth.
        found = search.run()[: 1 if large else None]
        return [layout.laid(one.start.tolist(), instance.positions(one.choice)) for one in found]

    others: list[Callable[[], Floats]] = []
    if not large and apart is not None:  # on large graphs the time is better spent on one search
        others = [lambda: layout.beside_others(found[0], times=2.0), lambda: layout.beside_others(found[0], times=1.0)]
    elif not large and layout.spread_matters:
        others = [lambda: layout.slow]
    enough_s = bound_s * (1 + 1e-9)
    found = sorted(searched(problem.times.seconds, bound_s, FIRST if others else 1.0), key=_length)
    for part, other in zip((SECOND, THIRD), others):
        if found[0][0] > enough_s:
            seconds = other()
            found = sorted([*found, *searched(seconds, _least_s(problem, seconds), part)], key=_length)[:KEPT]
    if others:
        found[0] = layout.polished(found[0], seed=seed, enough_s=enough_s, deadline_s=deadline_s, clock=clock)
    for laid in found[: None if apart is None else COMPARED]:
        yield layout.placements(laid)


def _allotments(problem: Problem, *, large: bool) -> Iterator[Integers]:
    """Those of policies, to start from: the relaxation's widths and, as there is time for them, CPA's."""
    if not large:
        yield from (kind(problem).allotment for kind in (Cpa, Mcpa, LpRounding))
        return
    for rho in ROUNDINGS:
        for widest in (None, len(problem.machine)):
            yield LpRounding(problem, rho=rho, widest=widest).allotment


def _least_s(problem: Problem, seconds: Floats) -> float:
    """The critical path or the area at these seconds, whatever is longer."""
    area_s = float((seconds * np.asarray(problem.times.counts)).min(axis=1).sum()) / len(problem.machine)
    return max(area_s, float(levels(problem.graph, seconds.min(axis=1)).max()))


def _length(laid: Laid) -> float:
    return laid[0]
