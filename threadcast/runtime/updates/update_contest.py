"""Finds from times how an optimizer's steps are made fastest. It uses no clock and no tensor."""

from __future__ import annotations

import math

from threadcast.runtime.tuner.events import Next, Offered, Prepare, Ran, Ready, Run
from threadcast.runtime.tuner.tournament import Tournament

LOOP = 0
"""The optimizer's own loop, in place of a number of threads for the fused kernels."""
LEAST_S = 50e-6
"""Seconds of a step by the loop below which it stays: looking at a step takes some of them."""


class UpdateContest:
    """Compares the loop with fused kernels on `threads` threads, all that the process uses, and on half as many each.

    Kernels divide each parameter among all of their threads, and many parameters are small.
    """

    def __init__(self, threads: int) -> None:
        self.kept: int | None = None
        """What is the fastest: a number of threads, or `LOOP`; None until that is known."""
        self.gain: float | None = None
        """Ratio of the loop's time to that of fused kernels; None where that was not compared."""
        self._tournament = Tournament(LOOP)
        while threads >= 1:
            self._tournament.handle(Offered(threads, cost_s=0.0, ready=True, near=True))
            threads //= 2

    def next_way(self) -> int:
        """Return how the next step is made: by fused kernels on so many threads, or by the `LOOP`."""
        if self.kept is not None:
            return self.kept
        while isinstance(run := self._tournament.handle(Next(math.inf))[-1], Prepare):
            self._tournament.handle(Ready(run.key))
        assert isinstance(run, Run)
        assert isinstance(run.key, int)
        if self._tournament.settled:
            self._keep(self._tournament.best)
        return run.key

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Record a step that `next_way` named: when it started by the caller's clock, and the seconds it took."""
        if self.kept is None:
            self._tournament.handle(Ran(started_s, seconds, seconds))
            loop_s = self._tournament.baseline_s
            if loop_s is not None and loop_s < LEAST_S:
                self._keep(LOOP)

    def break_off(self) -> None:
        """Take note that other steps have run in between."""
        self._tournament.handle(Next(math.inf, disturbed=True))

    def _keep(self, best: object) -> None:
        assert isinstance(best, int)
        self.kept = best
        gain = self._tournament.entrants[best].gain
        self.gain = None if best == LOOP else gain
