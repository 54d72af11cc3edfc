"""A deadline: steps that a process wants to have made by a time, and the steps a second that this needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from threadcast.core.errors import InvalidInput

SPARE = 0.05
"""Share by which a process has to be faster than its deadline needs, because rates are only known of the past."""
LONGEST_S = 1e9
"""Most seconds that a deadline may be away."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A process is to make `steps` steps by the time `by_s`, counted from when its step counter stood at `since`.

    `by_s` is in seconds of the caller's clock. `since` is None until the counter's value is known. InvalidInput for
    numbers that are not finite.
    """

    steps: float
    by_s: float
    since: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.steps) and math.isfinite(self.by_s)):
            raise InvalidInput(f"deadline: {self.steps!r} steps by {self.by_s!r} s must be finite numbers")

    @classmethod
    def within(cls, steps: float, seconds: float, now_s: float, *, since: float | None = None) -> Deadline:
        """Return a deadline of `steps` steps in `seconds` from `now_s`; InvalidInput for numbers not above 0."""
        if not (0 < steps < math.inf and 0 < seconds <= LONGEST_S):
            raise InvalidInput(f"deadline: {steps!r} steps in {seconds!r} s: both above 0, at most {LONGEST_S:g} s")
        return cls(steps, now_s + seconds, since)

    def left(self, count: float | None) -> float:
        """Return the steps still to be made when the process's counter stands at `count`; all where it is not known."""
        if count is None or self.since is None:
            return self.steps
        return max(self.steps - max(count - self.since, 0.0), 0.0)

    def needs_per_s(self, count: float | None, now_s: float) -> float:
        """Return the steps a second, from `now_s` on, that meet the deadline; infinite once its time is over."""
        if not (left := self.left(count)):
            return 0.0
        return (1 + SPARE) * left / (self.by_s - now_s) if now_s < self.by_s else math.inf
