"""When to capture a graph anew that has gone out of date, and when not to look for changes any more."""

from __future__ import annotations


class Patience:
    """Decides after each look for changes whether a call may be captured, and how many calls need no look.

    A change within `SOON` looks of the last change is a quick one. After the first of a row a call may be captured at
    once; after each further one twice as many looks without a change have to come first. From the change number
    `QUICK_ONES` of a row on, `rest` calls are left alone after it, `LEAST_REST` at first, then twice as many each time:
    a look that finds a change takes milliseconds, as it walks through all that code can read. What the first look after
    that finds may have changed long before, and does not count.
    """

    SOON, QUICK_ONES, LEAST_REST = 50, 6, 256
    _MOST_DOUBLINGS = 20

    def __init__(self) -> None:
        self._row = self._calm = 0
        self.rest = 0
        """Number of calls that need no look from now on; 0 where the next one does."""

    def after(self, *, changed: bool) -> bool:
        """Return whether the next call may be captured, if it needs to be. `changed`: whether a change was found."""
        if self.rest:
            self.rest = 0
            return False
        if changed:
            self._row = self._row + 1 if self._calm < self.SOON else 0
        self._calm = 0 if changed else self._calm + 1
        self._take_rest(changed and self._row >= self.QUICK_ONES)
        return self._row <= 1 or self._calm >= min(2 ** (self._row - 1), self.SOON)

    def exhaust(self) -> None:
        """Leave the next calls alone, as a capture has found what each call changes."""
        self._row, self._calm = max(self._row + 1, self.QUICK_ONES), 0
        self._take_rest(True)

    def _take_rest(self, rests: bool) -> None:
        self.rest = self.LEAST_REST * 2 ** min(self._row - self.QUICK_ONES, self._MOST_DOUBLINGS) if rests else 0
