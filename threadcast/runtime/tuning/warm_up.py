"""What learning in the caller's own steps has cost so far, and how much more it may cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

START_S, LEAST_START_S = 1.5, 0.5
"""Seconds that learning may lose at once, before any share of the time, beside the capture of the first graph: less
where that takes long, but never less than the second number."""
WITH_CAPTURE_S = 1.7
"""Seconds that the capture of the first graph and learning may lose together, where the capture leaves so many."""
MOST_EAGER_STEPS, ENOUGH_S = 10, 1.0
"""Number and seconds of timed steps of eager PyTorch after which it is known well enough how long one takes."""
STEADY = 0.95
"""Before that it is known when the last two steps are no faster than this share of the fastest before them. The first
steps of a process took up to 2.5 times as long as later ones: memory is new, and libraries make their kernels."""
_RECENT = 25


def are_steady(eager_s: Sequence[float]) -> bool:
    """Return whether seconds of steps in eager PyTorch, the first step left out, tell how long later ones take."""
    if len(eager_s) >= MOST_EAGER_STEPS or (len(eager_s) > 1 and sum(eager_s) >= ENOUGH_S):
        return True
    found = list(eager_s)
    return len(found) > 2 and min(found[-2:]) >= STEADY * min(found[:-2])


class Allowance:
    """How many seconds learning may lose, for all kinds of calls of one model together.

    Besides the seconds of the first graph's capture, learning may lose a start or a share, whichever is more. The start
    is what the capture leaves of `WITH_CAPTURE_S`, but from `LEAST_START_S` to `START_S`; the share `share` is of all
    seconds that calls have taken so far. With a share of 1 learning may lose anything.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.seconds = 0.0
        """Seconds that all calls so far took."""
        self.lost_s = 0.0
        """Seconds that they took longer than they would have by the best way that was known then.

        Never below 0: what seems to be gained may only show that the machine was slower when the best way was timed.
        """
        self._captured_s: float | None = None
        """Seconds that the first call that was captured lost by it."""
        self._lock = Lock()
        self._within, self._share_before = 0, share
        """How many contexts `without_limit` there are now, and the share before the first of them."""

    @contextmanager
    def without_limit(self) -> Iterator[None]:
        """Within the context, learning may lose anything; so it may while other threads are within theirs."""
        with self._lock:
            if not self._within:
                self._share_before, self.share = self.share, 1.0
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if not self._within:
                    self.share = self._share_before

    def allows(self, extra_s: float) -> bool:
        """Return whether learning may lose `extra_s` more seconds now."""
        captured_s = self._captured_s or 0.0
        start_s = min(START_S, max(LEAST_START_S, WITH_CAPTURE_S - captured_s))
        return self.share >= 1 or self.lost_s + extra_s - captured_s <= max(start_s, self.share * self.seconds)

    @property
    def overspent(self) -> bool:
        """Whether learning has lost more seconds than it may."""
        return not self.allows(0.0)

    def charge(self, lost_s: float) -> None:
        """Count seconds as lost that processes beside the calls are expected to cost them, all in all."""
        self.lost_s += lost_s

    def ran_eager(self, seconds: float) -> None:
        """Record a call that ran in eager PyTorch and lost nothing."""
        self.seconds += seconds

    def ran(self, seconds: float, *, lost_s: float) -> None:
        """Record a call that took `seconds`, `lost_s` longer than it would have by the best way known."""
        self.seconds += seconds
        self.lost_s = max(0.0, self.lost_s + lost_s)
        if self._captured_s is None:
            self._captured_s = lost_s


class WarmUp:
    """Knows how long calls of one kind take in eager PyTorch, and counts what learning costs them in `allowance`.

    `eager_s` are seconds of the calls before, which ran in eager PyTorch and are in `allowance` already.
    """

    def __init__(self, allowance: Allowance | None = None, *, eager_s: Sequence[float] = ()) -> None:
        self._allowance = allowance or Allowance()
        self._eager_s: deque[float] = deque(eager_s[1:], maxlen=_RECENT)
        self._calls = len(eager_s)
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether enough steps in eager PyTorch were timed to learn anything else; true once it was true."""
        self._ready = self._ready or are_steady(self._eager_s)
        return self._ready

    @property
    def eager_s(self) -> float | None:
        """Seconds of a step in eager PyTorch, the lower quartile of recent ones; None until it is `ready`."""
        return sorted(self._eager_s)[(len(self._eager_s) - 1) // 4] if self.ready and self._eager_s else None

    @property
    def share(self) -> float:
        """The share of the time that learning may lose now."""
        return self._allowance.share

    @property
    def unlimited(self) -> bool:
        """Whether learning may lose any time now."""
        return self._allowance.share >= 1

    def allows(self, extra_s: float) -> bool:
        """Return whether learning may lose `extra_s` more seconds now."""
        return self._allowance.allows(extra_s)

    @property
    def overspent(self) -> bool:
        """Whether learning has lost more seconds than it may."""
        return self._allowance.overspent

    def charge(self, lost_s: float) -> None:
        """Count seconds as lost that processes beside the calls are expected to cost them, all in all."""
        self._allowance.charge(lost_s)

    def ran(self, seconds: float, *, lost_s: float) -> None:
        """Record a call that took `seconds`, `lost_s` longer than it would have by the best way known."""
        self._calls += 1
        self._allowance.ran(seconds, lost_s=lost_s)

    def ran_eager(self, seconds: float) -> None:
        """Record the seconds of a step in eager PyTorch, after `ran`; the first call, a slow one, does not count."""
        if self._calls > 1:
            self._eager_s.append(seconds)
