"""The search's schedules on real cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from threadcast.core import Placement
from threadcast.scheduler.core_layout import CoreLayout, Laid
from threadcast.scheduler.policies.base import Problem
from threadcast.scheduler.policies.cpa import Cpa, Mcpa
from threadcast.scheduler.search.instance import Floats, Instance
from threadcast.scheduler.search.search import ANNEALED, KEPT, Search

FIRST, SECOND = 0.5, 0.7
"""Parts of the time after which the searches at the better and at the worse affinity end, where they differ; schedules
are changed on real cores in the rest."""


def shortest(
    problem: Problem,
    *,
    bound_s: float,
    seed: int,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Placement, ...]]:
    """Short schedules, the shortest first; `bound_s` is a lower bound on them.

    The search takes cores for equal and gives each op the time of its better affinity. On cache groups not all get
    it, so there what it finds is held against what it finds at the worse affinities, and the best is improved with
    its real cores in view.
    """
    layout, begun_s = CoreLayout(problem), clock()
    large = len(problem.graph) > ANNEALED

    def searched(seconds: Floats, part: float) -> list[Laid]:
        instance = Instance.of(problem, seconds)
        given = [] if large else [instance.choice(kind(problem).allotment) for kind in (Cpa, Mcpa)]
        until_s = begun_s + part * (deadline_s - begun_s)
        search = Search(instance, bound_s=bound_s, given=given, seed=seed, deadline_s=until_s, clock=clock)
        # On real cores a longer one can turn out shorter; on large graphs finding out takes longer than it is worth.
        found = search.run()[: 1 if large else None]
        return [layout.laid(one.start.tolist(), instance.positions(one.choice)) for one in found]

    slow, enough_s = layout.slow, bound_s * (1 + 1e-9)
    found = sorted(searched(problem.times.seconds, 1.0 if slow is None else FIRST), key=_length)
    if slow is not None and found[0][0] > enough_s:
        found = sorted([*found, *searched(slow, SECOND)], key=_length)[:KEPT]
    if slow is not None and not large:
        found[0] = layout.polished(found[0], seed=seed, enough_s=enough_s, deadline_s=deadline_s, clock=clock)
    for laid in found:
        yield layout.placements(laid)


def _length(laid: Laid) -> float:
    return laid[0]
