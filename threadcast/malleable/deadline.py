"""Work that a process wants to have done by a time, and how fast it has to be for that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from threadcast.core.errors import InvalidInput

SPARE = 0.05
"""Share by which a process has to be faster than its deadline needs: rates are those of the last seconds."""
LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Deadline:
    """`steps` are to be made by the time `by_s`, after the `since`-th step of the process.

    `since` is a value of the process's own step counter, None as long as it is not known; `by_s` is of the clock of
    whoever uses this. InvalidInput for numbers that are not finite.
    """

    steps: float
    by_s: float
    since: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.steps) and math.isfinite(self.by_s)):
            raise InvalidInput(f"deadline: {self.steps!r} steps by {self.by_s!r} s must be finite numbers")

    @classmethod
    def within(cls, steps: float, seconds: float, now_s: float, *, since: float | None = None) -> Deadline:
        """So many steps in so many seconds from `now_s`; InvalidInput for numbers that are not above 0."""
        if not (0 < steps < math.inf and 0 < seconds <= LONGEST_S):
            raise InvalidInput(f"deadline: {steps!r} steps in {seconds!r} s: both above 0, at most {LONGEST_S:g} s")
        return cls(steps, now_s + seconds, since)

    def left(self, count: float | None) -> float:
        """Steps still to be made when the process's counter stands at `count`; all where that is not known."""
        if count is None or self.since is None:
            return self.steps
        return max(self.steps - max(count - self.since, 0.0), 0.0)

    def needs_per_s(self, count: float | None, now_s: float) -> float:
        """Steps a second from `now_s` on with which it is met; infinite once it is too late."""
        if not (left := self.left(count)):
            return 0.0
        return (1 + SPARE) * left / (self.by_s - now_s) if now_s < self.by_s else math.inf
