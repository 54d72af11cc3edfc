"""Finds from times how an optimizer's steps are made fastest. It uses no clock and no tensor."""

from __future__ import annotations

from threadcast.runtime.tuner.guard import Guard

LOOP = 0
"""The optimizer's own loop, in place of a number of threads for the fused kernels."""
LEAST_S = 50e-6
"""Seconds of a step by the loop below which it stays: looking at a step takes some of them. A convention."""
_FIRST = 5
"""Steps by the loop that are timed at first: the fastest of them counts. A convention."""


class UpdateContest:
    """Compares the loop with fused kernels on `threads` threads, all that the process uses, and on fewer.

    First the number of threads is halved for as long as that is faster: kernels divide each parameter among all of
    them, and many are small. Then the loop is compared with that.
    """

    def __init__(self, threads: int) -> None:
        self.kept: int | None = None
        """What is the fastest: a number of threads, or `LOOP`; None until that is known."""
        self.gain: float | None = None
        """Ratio of the loop's time to that of fused kernels; None where that was not compared."""
        self._threads = threads
        self._first_s: list[float] = []
        self._guard: Guard | None = None
        self._halves = threads > 1

    def next_way(self) -> int:
        """Return how the next step is made: by fused kernels on so many threads, or by the `LOOP`."""
        if self.kept is not None:
            return self.kept
        if self._guard is None:
            return LOOP
        tried = self._guard.next_runner() == "plan"
        if self._halves:
            return self._threads // 2 if tried else self._threads
        return self._threads if tried else LOOP

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Record a step that `next_way` named: when it started by the caller's clock, and the seconds it took."""
        if self.kept is not None:
            return
        if self._guard is None:
            self._first_s.append(seconds)
            if len(self._first_s) == _FIRST:
                self._guard = Guard(at_once=False)
                self.kept = LOOP if min(self._first_s) < LEAST_S else None
            return
        self._guard.observe(started_s=started_s, seconds=seconds)
        verdict = self._guard.verdict
        if verdict is None:
            return
        wins = verdict.kept == "plan"
        if self._halves:
            self._threads //= 2 if wins else 1
            self._halves = wins and self._threads > 1
            self._guard = Guard(at_once=False)
        else:
            self.kept, self.gain = self._threads if wins else LOOP, verdict.gain

    def break_off(self) -> None:
        """Take note that other steps have run in between."""
        if self._guard is not None:
            self._guard.break_off()
