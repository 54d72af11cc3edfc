"""When calls of one candidate tell how long they take: the first ones of the baseline, and those of what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LOOK, LEAST_LOOK, LOOK_S, MOST_WAIT = 15, 5, 1.0, 1_000
"""Number of calls in a row whose median is judged: fewer where they take this many seconds together. At most so many
calls are not looked at in between: comparisons that busy machines cause cost no more than a hundredth of the time."""
MOST_EAGER, ENOUGH_S, STEADY = 10, 1.0, 0.95
"""Calls and seconds of the baseline after which it is known how long one takes. Before that it is known when the last
two are no faster than this share of the fastest before them: the first calls of a process take up to 2.5 times as long
as later ones, as memory is new and libraries make their kernels."""


def are_steady(seconds: Sequence[float]) -> bool:
    """Return whether seconds of calls of the baseline, the first one left out, tell how long later ones take."""
    if len(seconds) >= MOST_EAGER or (len(seconds) > 1 and sum(seconds) >= ENOUGH_S):
        return True
    return len(seconds) > 2 and min(seconds[-2:]) >= STEADY * min(seconds[:-2])


class Watch:
    """The calls of what was kept, while it runs alone: their median after `LOOK` calls, and then ever more seldom."""

    def __init__(self) -> None:
        self.looked = self.kept = False
        """Whether it is known how long calls take alone, or cannot be now; and whether that was reported."""
        self._seconds: list[float] = []
        self._distance = 0
        self.wait = 0
        """How many of the next calls are not looked at."""

    def passed(self, calls: int) -> None:
        """Take note of calls that were not timed."""
        self.wait = max(0, self.wait - calls)

    def observe(self, seconds: float) -> float | None:
        """Record the seconds of a call; return the median of those looked at, once they are enough."""
        if self.wait > 0:
            self.wait -= 1
            return None
        self._seconds.append(seconds)
        count = len(self._seconds)
        if count < LOOK and (count < LEAST_LOOK or sum(self._seconds) < LOOK_S):
            return None
        alone_s = median(self._seconds)
        self._seconds.clear()
        self.wait = self._distance = min(MOST_WAIT, max(count, 2 * self._distance))
        return alone_s

    def soon(self) -> None:
        """Look at the next calls again: what follows from the last look could not be done."""
        self.wait = self._distance = 0

    def clear(self) -> None:
        """Begin the present look anew: something else than calls alone has run."""
        self._seconds.clear()
