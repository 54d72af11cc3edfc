"""When to capture a graph anew that has gone out of date."""

from __future__ import annotations


class Patience:
    """Decides whether to capture anew after a change, or to wait until nothing has changed for some calls.

    A change within `SOON` calls of the last change is a quick one. The first `QUICK_ONES` quick changes in a row are
    captured at once. After that, each further quick change doubles the number of calls without a change to wait for, up
    to `LONGEST`.
    """

    SOON, QUICK_ONES, LONGEST = 100, 8, 1024

    def __init__(self) -> None:
        self._row = self._calm = self._wait = 0

    def after(self, *, changed: bool) -> bool:
        """Return whether the next call may be captured, if it needs to be. `changed`: whether a change was found."""
        if not changed:
            self._calm += 1
            return self._calm >= self._wait
        self._row = self._row + 1 if self._calm < self.SOON else 0
        self._calm = 0
        self._wait = 0 if self._row <= self.QUICK_ONES else min(2 ** (self._row - self.QUICK_ONES), self.LONGEST)
        return self._wait == 0
