"""Turns readings of how many cores are used, which vary, into a number of cores that stays as long as it may."""

from __future__ import annotations

import math

WINDOW_S = 2.0
"""Seconds for which readings have to agree before the number changes: a compiler's run, or a pause, is shorter."""
LITTLE = 0.3
"""Part of a core that counts for nothing. One thread that shares its core with another still uses a half."""


class SteadyCores:
    """`cores` rises to the fewest that were used in the last `WINDOW_S`, and falls to the most."""

    def __init__(self) -> None:
        self.cores = 0
        self._readings: list[tuple[float, float]] = []

    def observe(self, used: float, now_s: float) -> int:
        """Return the number of whole cores, after the reading that so many cores are used at `now_s`."""
        self._readings.append((now_s, used))
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - WINDOW_S:
            del self._readings[0]
        if self._readings[0][0] <= now_s - WINDOW_S:
            fewest, most = (math.ceil(max(f(one for _, one in self._readings) - LITTLE, 0.0)) for f in (min, max))
            self.cores = min(max(self.cores, fewest), most)
        return self.cores
