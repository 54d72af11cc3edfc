"""How fast a process gets on with each number of cores, learnt from the steps that it reports."""

from __future__ import annotations

SETTLE_S = 0.3
"""After a change of cores, during which steps tell of both numbers and are not counted."""
WINDOW_S, WINDOW_STEPS = 1.0, 3
"""Shortest time, and fewest steps, from which a rate is taken."""
OTHER_PHASE = 1.6
"""Ratio between a rate and what it was with as many cores, from which on the process is taken to do something else."""


class Progress:
    """Steps a second by number of cores.

    A new rate with the same cores is averaged with the old one; one that is far off forgets all others: the process
    has come into another phase.
    """

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}
        self._cores = 0
        self._since_s = 0.0
        self._steps: float | None = None

    def resized(self, cores: int, now_s: float) -> None:
        """From now on it has so many cores."""
        if cores != self._cores:
            self._cores, self._since_s, self._steps = cores, now_s + SETTLE_S, None

    def restart(self, now_s: float) -> None:
        """It has done nothing of late: that is not how fast it is."""
        self._since_s, self._steps = now_s + SETTLE_S, None

    def report(self, steps: float, now_s: float) -> None:
        """It has made so many steps since it began."""
        if now_s < self._since_s or not self._cores:
            return
        if self._steps is None or steps < self._steps:
            self._steps, self._since_s = steps, now_s
            return
        took_s, made = now_s - self._since_s, steps - self._steps
        if took_s < WINDOW_S or made < WINDOW_STEPS:
            return
        rate, before = made / took_s, self.rates.get(self._cores)
        self._steps, self._since_s = steps, now_s
        if before is None:
            self.rates[self._cores] = rate
        elif max(rate, before) > OTHER_PHASE * min(rate, before):
            self.rates = {self._cores: rate}
        else:
            self.rates[self._cores] = (rate + before) / 2
