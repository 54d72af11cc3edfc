"""What a tournament knows of one candidate, the comparison of two of them, and when calls tell how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from threadcast.runtime.tuner.events import Key, Offered, Run, Staged
from threadcast.runtime.tuner.guard import ALONE, BY_TURNS, Guard, Side

LOOK, LEAST_LOOK, LOOK_S, MOST_WAIT = 15, 5, 1.0, 1_000
"""Number of calls in a row whose median is judged: fewer where they take this many seconds together. At most so many
calls are not looked at in between: comparisons that busy machines cause cost no more than a hundredth of the time."""
MOST_EAGER, ENOUGH_S, STEADY = 10, 1.0, 0.95
"""Calls and seconds of the baseline after which it is known how long one takes. Before that it is known when the last
two are no faster than this share of the fastest before them: the first calls of a process take up to 2.5 times as long
as later ones, as memory is new and libraries make their kernels."""


class Status(Enum):
    """What is known of a candidate."""

    OFFERED = "offered"
    STAGED = "is prepared"
    READY = "is ready"
    LOST = "was slower"
    OUT = "never runs again"


@dataclass(slots=True)
class Entrant:
    """A candidate in the tournament."""

    offered: Offered
    status: Status = Status.OFFERED
    stage: Staged | None = None
    step_s: float | None = None
    """Seconds of its calls, as the last comparison or preparation found; None where they are not known."""
    gain: float | None = None
    """Ratio of the baseline's seconds to its own, by comparisons."""
    first_s: float = 0.0
    """What its first call is expected to take more than others; 0 once it was compared."""
    lost_s: float = 0.0
    """What the present attempt at a part of its preparation has lost so far."""
    open: bool = False
    """Whether it can run the next call; what has lost or does not run has to be prepared once more."""
    beside: bool = False
    """Whether something computed beside calls of its last comparison."""
    losses: int = 0
    """Comparisons that it has lost."""
    reason: str = ""
    """Why it never runs again; empty where it may."""

    @property
    def key(self) -> Key:
        """What identifies it."""
        return self.offered.key


class Turns:
    """Two candidates that are compared: `new` must be shown to be faster than `base` to be kept."""

    def __init__(self, best: Key, other: Key, *, baseline: Key, alone: bool) -> None:
        self.best, self.other = best, other
        self.base, self.new = (other, best) if other == baseline else (best, other)
        self.guard = Guard(rows=ALONE if alone else BY_TURNS)

    def next(self) -> Run:
        """Return what runs the next call, in turns."""
        return Run(self.base if self.guard.next_runner() == "default" else self.new)

    @property
    def cost_s(self) -> float | None:
        """Seconds by which the next pair is expected to take longer than the best alone; None: nothing is known."""
        best: Side = "default" if self.base == self.best else "plan"
        other: Side = "plan" if best == "default" else "default"
        best_s, other_s = self.guard.step_s(best), self.guard.step_s(other)
        if best_s is None or other_s is None:
            return None
        if best_s >= other_s:
            return 0.0
        return self.guard.pair_s(other) * (1 - best_s / other_s)


def are_steady(seconds: Sequence[float]) -> bool:
    """Return whether seconds of calls of the baseline, the first one left out, tell how long later ones take."""
    if len(seconds) >= MOST_EAGER or (len(seconds) > 1 and sum(seconds) >= ENOUGH_S):
        return True
    return len(seconds) > 2 and min(seconds[-2:]) >= STEADY * min(seconds[:-2])


class Watch:
    """The calls of what was kept, while it runs alone: their median after `LOOK` calls, and then ever more seldom."""

    def __init__(self) -> None:
        self.looked = self.waived = False
        """Whether it is known how long calls take alone, and whether it could not be found out."""
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

    def later(self) -> None:
        """Watch what runs now instead, not before as many calls as since the last look."""
        self._seconds.clear()
        self.wait = self._distance

    def clear(self) -> None:
        """Begin the present look anew: something else than calls alone has run."""
        self._seconds.clear()
