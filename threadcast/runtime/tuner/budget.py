"""How much time learning may take from its caller: the promise that calls are never far behind eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import ref

FIRST_S, START_S, RISES_S = 1.5, 3.0, 20 / 3
"""Seconds that all calls of a process together may be behind eager PyTorch, before any share of the time: at first, and
at last. They rise by one for each so many seconds of eager PyTorch: a program of 10 s cannot gain back what it loses,
one of 30 s can, if all may be spent in its first 20."""
PART = 2 / 3
"""Part of what others have left that one program or kind of calls may spend, so that there is something for the next:
the first three may spend 1, 0.3 and 0.1 s at first, before any share. A convention."""
BESIDE = 1.5
"""Times as long as alone that a call in eager PyTorch takes at most because of what learns beside it: compilers made
calls 1.25 times as long, and a process that makes a plan is left one of two cores. A convention."""
AWAY = 10
"""Calls of others in a row after which one that learns is not expected to be called soon. A convention."""


class Budget:
    """Counts what calls took, and what they would have taken in eager PyTorch.

    All calls together take at most what eager PyTorch would have taken, `start_s` and the part `share` of it: whatever
    was gained may be spent on learning more. Each part of a budget (`part`) may spend `PART` of what all others have
    left of that, and what it has gained itself. So another one always has its turn, what it may spend grows with the
    time of all, and all may spend what one has gained. With a share of 1 any time may be spent.
    """

    def __init__(self, share: float = 1.0, *, of: Budget | None = None) -> None:
        self._of = of
        self._all: Budget = self if of is None else of._all
        self.share = share
        self.spent_s = self.eager_s = 0.0
        """Seconds that all calls so far took, and that they would have taken in eager PyTorch."""
        self.rests = False
        """Whether nothing is learned in the next call, which is timed for other reasons."""
        self._lock: Lock = Lock() if of is None else of._lock
        self._learner: ref[Budget] | None = None
        self._others = 0
        """The part that learns, and calls of others since its last one."""
        self._within = 0
        """How many contexts `without_limit` there are now."""

    def part(self) -> Budget:
        """Return the budget of one of several that learn, all of which this one counts."""
        return Budget(self.share, of=self)

    def turn(self) -> bool:
        """Take note that a call comes; return whether it may learn.

        One part at a time may, as long as it is called: what one compares or times beside another that runs now one
        way, now another tells little. Without a limit all may.
        """
        whole = self._all
        with self._lock:
            learner = None if whole._learner is None else whole._learner()
            whole._others = 0 if learner is self else whole._others + 1
            return learner is None or learner is self or whole._others > AWAY or self.unlimited

    def learns(self, learns: bool) -> None:
        """Take note whether the call that comes, which may learn, does, and is not the last one."""
        whole = self._all
        with self._lock:
            if learns:
                whole._learner, whole._others = ref(self), 0
            elif whole._learner is not None and whole._learner() is self:
                whole._learner = None

    @contextmanager
    def without_limit(self) -> Iterator[None]:
        """Within the context any time may be spent, and none counts; so it is while other threads are within theirs."""
        with self._lock:
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1

    @property
    def unlimited(self) -> bool:
        """Whether any time may be spent now."""
        return self._all.share >= 1 or self._counts_nothing

    @property
    def _counts_nothing(self) -> bool:
        return self._within > 0 or (self._of is not None and self._of._counts_nothing)

    @property
    def behind_s(self) -> float:
        """Seconds by which calls are behind eager PyTorch so far; below 0 where they are ahead."""
        return self.spent_s - self.eager_s

    @property
    def start_s(self) -> float:
        """Seconds by which calls may be behind eager PyTorch now, before any share of the time."""
        return min(max(FIRST_S, self.eager_s / RISES_S), START_S)

    @property
    def left_s(self) -> float:
        """Seconds that may be spent now."""
        if self.unlimited:
            return math.inf
        whole = self._all
        most_s = whole.start_s + whole.share * whole.eager_s - (whole.behind_s - self.behind_s)
        return (most_s if whole is self else min(most_s, PART * most_s)) - self.behind_s

    def allows(self, extra_s: float) -> bool:
        """Return whether `extra_s` more seconds may be spent now."""
        return extra_s <= self.left_s

    def charge(self, seconds: float) -> None:
        """Count seconds that calls lost otherwise, such as by looks at their arguments."""
        self.ran(seconds, eager_s=0.0)

    def ran(self, seconds: float, *, eager_s: float) -> None:
        """Record a call of `seconds` that would have taken `eager_s` in eager PyTorch."""
        if self._counts_nothing:
            return
        counted: Budget | None = self
        with self._lock:
            while counted is not None:
                counted.spent_s += seconds
                counted.eager_s += eager_s
                counted = counted._of

    def ran_eager(self, seconds: float, *, beside: bool = False) -> None:
        """Record a call that ran in eager PyTorch and lost nothing; or `beside` what makes a plan, which slows it."""
        self.ran(seconds, eager_s=seconds / BESIDE if beside else seconds)


class PartBudget(Budget):
    """What parts of calls, such as a program's graphs, may spend of the budget of `whole` calls, which counts these.

    Where whole calls are not timed, the parts count themselves (`counts`).
    """

    def __init__(self, whole: Budget, *, counts: bool = True) -> None:
        super().__init__(whole.share)
        self._whole, self.counts = whole, counts

    def part(self) -> PartBudget:
        """Return itself: what its own parts may spend is all decided for whole calls."""
        return self

    @property
    def unlimited(self) -> bool:
        """Whether any time may be spent now."""
        return self._whole.unlimited

    @property
    def left_s(self) -> float:
        """Seconds that may be spent now."""
        return self._whole.left_s

    def turn(self) -> bool:
        """Take note that a call comes; return whether it may learn: that is decided for whole calls."""
        return self._whole.turn()

    def learns(self, learns: bool) -> None:
        """Take note whether a call that comes learns. Whole calls that learn go on until all parts have."""
        if learns or self.counts:
            self._whole.learns(learns)

    def ran(self, seconds: float, *, eager_s: float) -> None:
        """Record a call of a part."""
        if self.counts:
            self._whole.ran(seconds, eager_s=eager_s)
