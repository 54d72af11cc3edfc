"""Whether the steps of a contender that runs alone have become slower than they were at first."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

DRIFT_STEPS = 50
"""Number of steps whose median is compared with the seconds that a step took at first."""
DRIFT_LIMIT = 1.25
"""Ratio to the seconds that a step took at first, above which the contenders are compared again."""


class Pace(NamedTuple):
    """What `DRIFT_STEPS` steps have shown."""

    step_s: float
    first_s: float | None
    """Seconds that a step took at first; None where these steps were the first ones."""

    @property
    def slower(self) -> bool:
        """Whether steps take longer than at first, beyond `DRIFT_LIMIT`."""
        return self.first_s is not None and self.step_s > DRIFT_LIMIT * self.first_s


class Drift:
    """Watches the times of steps. `first_s` are the seconds that a step took at first; None: the first ones tell."""

    def __init__(self, first_s: float | None = None) -> None:
        self._first_s = first_s
        self._recent_s: list[float] = []

    def observe(self, seconds: float, *, all_cores: bool) -> Pace | None:
        """Record a step; return the pace after each `DRIFT_STEPS` steps in a row that had all cores, else None."""
        if not all_cores:
            self._recent_s.clear()
            return None
        self._recent_s.append(seconds)
        if len(self._recent_s) < DRIFT_STEPS:
            return None
        pace = Pace(median(self._recent_s), self._first_s)
        self._recent_s.clear()
        if self._first_s is None:
            self._first_s = pace.step_s
        return pace
