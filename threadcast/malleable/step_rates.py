"""Learns how many steps a second a process makes with each number of cores, from the counts that it reports."""

from __future__ import annotations

SETTLE_S = 0.3
"""Seconds after a change of cores in which steps are not counted: some were partly made with the cores before."""
WINDOW_S, WINDOW_STEPS = 1.0, 3
"""Shortest time in seconds, and fewest steps, from which a rate is computed."""
OTHER_PHASE = 1.6
"""Ratio between a new rate and the earlier one, at the same number of cores, above which the process counts as being in
another phase of its work."""


class StepRates:
    """Measures the steps a second of one process; `by_cores` maps numbers of cores to them.

    A new rate with the same number of cores is averaged with the earlier one. If the two differ by more than
    `OTHER_PHASE`, all earlier rates are dropped: the process has come into another phase of its work.
    """

    def __init__(self) -> None:
        self.by_cores: dict[int, float] = {}
        self._cores = 0
        self._since_s = 0.0
        self._steps: float | None = None

    def resized(self, cores: int, now_s: float) -> None:
        """Record that the process has this number of cores from `now_s` on."""
        if cores != self._cores:
            self._cores, self._since_s, self._steps = cores, now_s + SETTLE_S, None

    def restart(self, now_s: float) -> None:
        """Begin a new window, because the process has waited: that time must not count."""
        self._since_s, self._steps = now_s + SETTLE_S, None

    def report(self, steps: float, now_s: float) -> None:
        """Record the process's step counter at the time `now_s`."""
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
