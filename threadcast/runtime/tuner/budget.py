"""How much time learning may take from its caller: the promise that calls are never far behind eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

START_S = 3.0
"""Seconds that all calls together may be behind eager PyTorch, before any share of the time."""


class Budget:
    """Counts what calls took, and what they would have taken in eager PyTorch; all calls of one model share it.

    At any call the first sum is at most the second, `START_S` and the part `share` of the second: whatever was gained
    may be spent on learning more. With a share of 1 any time may be spent.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.spent_s = self.eager_s = 0.0
        """Seconds that all calls so far took, and that they would have taken in eager PyTorch."""
        self.rests = False
        """Whether nothing is learned in the next call, which is timed for other reasons."""
        self._lock = Lock()
        self._within, self._before = 0, (share, 0.0, 0.0)
        """How many contexts `without_limit` there are now; share and sums before the first of them."""

    @contextmanager
    def without_limit(self) -> Iterator[None]:
        """Within the context any time may be spent, and none counts; so it is while other threads are within theirs."""
        with self._lock:
            if not self._within:
                self._before, self.share = (self.share, self.spent_s, self.eager_s), 1.0
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if not self._within:
                    self.share, self.spent_s, self.eager_s = self._before

    @property
    def unlimited(self) -> bool:
        """Whether any time may be spent now."""
        return self.share >= 1

    @property
    def behind_s(self) -> float:
        """Seconds by which calls are behind eager PyTorch so far; below 0 where they are ahead."""
        return self.spent_s - self.eager_s

    @property
    def left_s(self) -> float:
        """Seconds that may be spent now."""
        return math.inf if self.unlimited else START_S + self.share * self.eager_s - self.behind_s

    def allows(self, extra_s: float) -> bool:
        """Return whether `extra_s` more seconds may be spent now."""
        return extra_s <= self.left_s

    def charge(self, seconds: float) -> None:
        """Count seconds that calls lost otherwise, such as by looks at their arguments."""
        self.spent_s += seconds

    def ran(self, seconds: float, *, eager_s: float) -> None:
        """Record a call of `seconds` that would have taken `eager_s` in eager PyTorch."""
        self.spent_s += seconds
        self.eager_s += eager_s

    def ran_eager(self, seconds: float) -> None:
        """Record a call that ran in eager PyTorch and lost nothing."""
        self.ran(seconds, eager_s=seconds)


class PartBudget(Budget):
    """What parts of calls may spend of the budget of `whole` calls, by which these are counted.

    Where whole calls are not timed, the parts count themselves (`counts`).
    """

    def __init__(self, whole: Budget) -> None:
        super().__init__(whole.share)
        self._whole, self.counts = whole, True

    @property
    def unlimited(self) -> bool:
        """Whether any time may be spent now."""
        return self._whole.unlimited

    @property
    def left_s(self) -> float:
        """Seconds that may be spent now."""
        return self._whole.left_s

    def charge(self, seconds: float) -> None:
        """Count seconds that calls lost otherwise."""
        if self.counts:
            self._whole.charge(seconds)

    def ran(self, seconds: float, *, eager_s: float) -> None:
        """Record a call of a part."""
        if self.counts:
            self._whole.ran(seconds, eager_s=eager_s)
