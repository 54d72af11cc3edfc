"""Work that a process wants to have done by a time, and how fast it has to get on for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from threadcast.core.errors import InvalidInput

SPARE = 0.05
"""Share by which progress has to be faster than a deadline needs: rates are those of the last seconds."""
LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Deadline:
    """`steps` from when it was stated are to be made by `by_s`, of the clock of whoever counts them.

    InvalidInput for what is no number of steps, or no time.
    """

    steps: float
    by_s: float
    _counted: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.steps) and math.isfinite(self.by_s)):
            raise InvalidInput(f"deadline: {self.steps!r} steps by {self.by_s!r} s must be finite numbers")

    @classmethod
    def within(cls, steps: float, seconds: float, now_s: float) -> Deadline:
        """So many steps in so many seconds from now."""
        if not (0 < steps < math.inf and 0 < seconds <= LONGEST_S):
            raise InvalidInput(f"deadline: {steps!r} steps in {seconds!r} s: both above 0, at most {LONGEST_S:g} s")
        return cls(steps, now_s + seconds)

    def after(self, count: float) -> Deadline:
        """What is left of it when `count` steps have been made since the process began."""
        made = 0.0 if self._counted is None else max(count - self._counted, 0.0)
        return replace(self, steps=max(self.steps - made, 0.0), _counted=count)

    def needs_per_s(self, now_s: float) -> float:
        """Steps a second with which it is met; infinite once it is too late."""
        if not self.steps:
            return 0.0
        return (1 + SPARE) * self.steps / (self.by_s - now_s) if now_s < self.by_s else math.inf
