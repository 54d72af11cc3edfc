"""What looks, trials and pairs of a comparison have lost that were broken off before they were complete."""

from __future__ import annotations

from threadcast.runtime.tuning.duel import Duel
from threadcast.runtime.tuning.plan_search import PlanSearch

Part = PlanSearch | Duel


class Attempts:
    """Counts what each attempt at the current look, trial or pair has lost.

    An attempt that is broken off has lost more than was expected of it, as the first step after a change of the memory
    format does. Where the next one may begin as soon as the expected loss is allowed, it would be broken off, too, and
    so on for ever. So the next attempt must be allowed what the last one lost besides: it gets further each time.
    """

    def __init__(self) -> None:
        self._part: Part | None = None
        self._lost_s = self._broken_off_s = 0.0

    def besides_s(self, part: Part) -> float:
        """Return the seconds that the next attempt may lose beyond what is expected of it."""
        return self._broken_off_s if part is self._part else 0.0

    def ran(self, part: Part, lost_s: float) -> None:
        """Record a step of the part, which is complete where the part is not begun any more."""
        if part is not self._part:
            self._part, self._lost_s, self._broken_off_s = part, 0.0, 0.0
        self._lost_s += lost_s
        if not part.begun:
            self._lost_s = self._broken_off_s = 0.0

    def broke_off(self) -> None:
        """Record that what had begun, if anything, begins once more."""
        self._broken_off_s, self._lost_s = max(self._broken_off_s, self._lost_s), 0.0
