"""Turns readings of how many cores are used, which vary, into a number of cores that stays as long as it may."""

from __future__ import annotations

import math

WINDOW_S = 2.0
"""Seconds for which readings have to agree before the number rises: a compiler's run is shorter."""
FALLS_S = 10.0
"""The same before it falls: pauses between bursts are shorter, and each change costs time."""
LITTLE = 0.3
"""Part of a core that counts for nothing. One thread that shares its core with another still uses a half."""


class SteadyCores:
    """`cores` rises to the fewest that were used in the last `WINDOW_S`, and falls to the most in `FALLS_S`."""

    def __init__(self) -> None:
        self.cores = 0
        self._readings: list[tuple[float, float]] = []

    def observe(self, used: float, now_s: float) -> int:
        """Return the number of whole cores, after the reading that so many cores are used at `now_s`."""
        self._readings.append((now_s, used))
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - FALLS_S:
            del self._readings[0]
        if recent := self._last(WINDOW_S, now_s):
            self.cores = max(self.cores, _whole(min(recent)))
        if recent := self._last(FALLS_S, now_s):
            self.cores = min(self.cores, _whole(max(recent)))
        return self.cores

    def _last(self, span_s: float, now_s: float) -> list[float]:
        """The readings of so many seconds; none where the first one is more recent than that."""
        before = sum(at_s <= now_s - span_s for at_s, _ in self._readings)
        return [used for _, used in self._readings[before - 1 :]] if before else []


def _whole(used: float) -> int:
    return math.ceil(max(used - LITTLE, 0.0))
