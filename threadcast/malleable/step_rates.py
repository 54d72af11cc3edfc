"""How many steps a second a process makes with each number of cores, learned from the counts that it reports."""

from __future__ import annotations

SETTLE_S = 0.3
"""After a change of cores: steps of this time were made with both numbers and are not counted."""
WINDOW_S, WINDOW_STEPS = 1.0, 3
"""Shortest time, and fewest steps, from which a rate is taken."""
OTHER_PHASE = 1.6
"""Ratio of a rate to the earlier one with as many cores from which on the process is taken to do something else."""


class StepRates:
    """Steps a second of one process, `by_cores`.

    A new rate with the same number of cores is averaged with the earlier one. One that is far from it drops all others:
    the process has come into another phase of its work.
    """

    def __init__(self) -> None:
        self.by_cores: dict[int, float] = {}
        self._cores = 0
        self._since_s = 0.0
        self._steps: float | None = None

    def resized(self, cores: int, now_s: float) -> None:
        """Note that the process has so many cores from now on."""
        if cores != self._cores:
            self._cores, self._since_s, self._steps = cores, now_s + SETTLE_S, None

    def restart(self, now_s: float) -> None:
        """Begin a new window: the process has waited, and the time that passed meanwhile does not count."""
        self._since_s, self._steps = now_s + SETTLE_S, None

    def report(self, steps: float, now_s: float) -> None:
        """Note the process's step counter at this time."""
        if now_s < self._since_s or not self._cores:
            return
        if self._steps is None or steps < self._steps:
            self._steps, self._since_s = steps, now_s
            return
        elapsed_s, count = now_s - self._since_s, steps - self._steps
        if elapsed_s < WINDOW_S or count < WINDOW_STEPS:
            return
        rate, before = count / elapsed_s, self.by_cores.get(self._cores)
        self._steps, self._since_s = steps, now_s
        if before is None:
            self.by_cores[self._cores] = rate
        elif max(rate, before) > OTHER_PHASE * min(rate, before):
            self.by_cores = {self._cores: rate}
        else:
            self.by_cores[self._cores] = (rate + before) / 2
