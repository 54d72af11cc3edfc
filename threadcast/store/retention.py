"""Which samples of an op in a case are kept when a store is to stay small: the newest, and of the others quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from threadcast.core.errors import InvalidInput

LEAST_SAMPLES = 8
"""Fewest samples that a limit leaves: half of them are the newest, and as many tell quartiles of the others."""

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of the samples of one op in one case with one state of the caches on one machine; None: all.

    At most `keep_samples`: the newer half of them are the newest samples, which are kept as they are; the others are
    quantiles of all older ones, evenly spaced. Measurements older than `keep_days` are deleted, except the newest one,
    so that no op becomes unknown. Kept samples keep their time and their counters.
    """

    keep_samples: int | None = None
    keep_days: float | None = None

    def __post_init__(self) -> None:
        if self.keep_samples is not None and self.keep_samples < LEAST_SAMPLES:
            raise InvalidInput(f"keep_samples={self.keep_samples!r} must be at least {LEAST_SAMPLES}")
        if self.keep_days is not None and not self.keep_days > 0:
            raise InvalidInput(f"keep_days={self.keep_days!r} must be more than 0")

    @property
    def is_everything(self) -> bool:
        """Whether nothing is ever deleted."""
        return self.keep_samples is None and self.keep_days is None

    def oldest_s(self, now_s: float) -> float | None:
        """The time before which measurements are deleted, in seconds since 1970; None where no time is given."""
        return None if self.keep_days is None else now_s - self.keep_days * DAY_S

    def kept(self, seconds: Sequence[NDArray[np.float64]], times_s: Sequence[float], now_s: float) -> list[list[int]]:
        """For each measurement the positions of the samples that are kept, rising.

        `seconds` are the samples of each measurement in the order in which they were stored, `times_s` when it was made
        (NaN: unknown, and then older than all others, and never too old).
        """
        order = sorted(range(len(seconds)), key=lambda i: -1.0 if isnan(times_s[i]) else times_s[i])
        oldest_s = self.oldest_s(now_s)
        if oldest_s is not None:
            order = [i for i in order[:-1] if not times_s[i] < oldest_s] + order[-1:]
        places = [(i, k) for i in order for k in range(len(seconds[i]))]
        if self.keep_samples is not None and len(places) > self.keep_samples:
            recent = self.keep_samples // 2
            older = places[:-recent]
            values = np.array([seconds[i][k] for i, k in older])
            chosen = np.argsort(values, kind="stable")[_evenly(len(older), self.keep_samples - recent)]
            places = [older[place] for place in chosen] + places[-recent:]
        found: list[list[int]] = [[] for _ in seconds]
        for i, k in places:
            found[i].append(k)
        return [sorted(positions) for positions in found]


def _evenly(count: int, wanted: int) -> NDArray[np.int64]:
    """`wanted` places among `count` in the middles of equal parts; all where there are no more."""
    wanted = min(count, wanted)
    return ((np.arange(wanted) + 0.5) * count / wanted).astype(np.int64)
