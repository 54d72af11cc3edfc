"""Finds out which kinds of calls are too short to gain anything, before their graph is captured."""

from __future__ import annotations

from collections.abc import Hashable

TIMED = 3
"""Calls of a kind that are timed before it is decided; the first does not count, as it fills caches."""
LONG = 50
"""A first call that takes so many times as long as the shortest step worth planning is not too short."""


class ShortCalls:
    """Times the first calls of each kind in eager PyTorch. `least_s` are the fewest seconds of a call worth planning;
    with 0 nothing is timed."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._seconds: dict[Hashable, list[float]] = {}

    def wants(self, kind: Hashable) -> bool:
        """Return whether one more call of this kind has to be timed."""
        seconds = self._seconds.get(kind, ())
        return self._least_s > 0 and len(seconds) < TIMED and not (seconds and seconds[0] >= LONG * self._least_s)

    def ran(self, kind: Hashable, seconds: float) -> None:
        """Record the seconds of a call of this kind in eager PyTorch."""
        self._seconds.setdefault(kind, []).append(seconds)

    def why_left_alone(self, kind: Hashable) -> str | None:
        """Return why calls of this kind are not worth planning; None where they may be."""
        seconds = min(self._seconds.get(kind, [])[1:], default=self._least_s)
        if seconds >= self._least_s:
            return None
        return f"a call takes {seconds * 1e6:.0f} us, too short to gain (engine.least_step_us)"

    def take(self, kind: Hashable) -> list[float]:
        """Return the seconds of the calls of this kind that were timed, and forget them."""
        return self._seconds.pop(kind, [])
