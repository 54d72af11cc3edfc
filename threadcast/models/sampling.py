"""The choice of a fixed number of cases to measure, which represent all cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Affinity, Case
from threadcast.core.arguments import check_whole

PAPER_SAMPLES = 4
"""The number of samples at which the paper's best regressor is most accurate (Liu et al. 2018, Table IV)."""


def suggested_samples(cases: int) -> int:
    """How many of `cases` to sample by default: the paper's 4, but at most a quarter, and at least one."""
    return min(PAPER_SAMPLES, max(1, cases // 4))


def evenly_spread(cases: Sequence[Case], count: int) -> tuple[Case, ...]:
    """`count` of `cases`, or all where there are no more, sorted by thread count.

    Half of them have cache sharing (the larger half, as these reach all cores), half have none. Each half goes from the
    smallest to the largest thread count in equal steps; a half of one case is the middle one. Source: Liu et al. 2018,
    III-B ("evenly sampling the search space ... with the consideration of cache sharing"), which does not give the
    points.
    """
    check_whole("samples", count)
    compact, spread = (sorted(c for c in cases if c.affinity is a) for a in (Affinity.COMPACT, Affinity.SPREAD))
    from_spread = min(max(count // 2, count - len(compact)), len(spread))
    chosen = _spread(compact, count - from_spread) + _spread(spread, from_spread)
    return tuple(sorted(chosen))


def _spread(cases: list[Case], count: int) -> list[Case]:
    if count >= len(cases):
        return cases
    if count == 1:
        return [cases[(len(cases) - 1) // 2]]
    return [cases[i] for i in np.linspace(0, len(cases) - 1, count).round().astype(int)]
