"""A circuit breaker: after several failures a service is not asked for a while, then by one caller first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from threadcast.core.errors import NotAsked
from threadcast.prediction.fork_lock import ForkLock

LIMIT = 3
"""Failures in a row after which the breaker opens."""

FIRST_OPEN_S, LONGEST_OPEN_S = 1.0, 60.0
"""Seconds that it stays open the first time, doubled each further time, and their limit; at random half to all."""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Failures in a row, times that the breaker opened since the last success, and the ends of two waits.

    It is open until `open_until_s`; until `probe_until_s` one caller tries whether the service works again. Both in
    seconds of the breaker's clock.
    """

    failures: int = 0
    opened: int = 0
    open_until_s: float = 0.0
    probe_until_s: float = 0.0

    def phase(self, now_s: float) -> Literal["closed", "open", "half-open"]:
        """Return "closed" where every caller may ask, "open" where none may, "half-open" where one may."""
        if now_s < self.open_until_s:
            return "open"
        return "half-open" if self.failures >= LIMIT else "closed"

    def failed(self, now_s: float, *, retry_after_s: float | None, open_s: float) -> BreakerState:
        """Return the state after a failed request.

        The breaker opens for `retry_after_s` if the service asked for that, and after LIMIT failures for `open_s`. The
        failure of a request that began before it opened counts, but does not keep it open longer.
        """
        failures, opened, until_s = self.failures + 1, self.opened, self.open_until_s
        if retry_after_s is not None:
            until_s = max(until_s, now_s + retry_after_s)
        if failures >= LIMIT and now_s >= self.open_until_s:
            opened, until_s = opened + 1, max(until_s, now_s + open_s)
        return BreakerState(failures, opened, until_s)


class Breaker:
    """Guards one service. Call `enter` before each request and then `succeeded` or `failed`. Safe to use from threads.

    A probe that never reports, since its thread or the process that forked this one has it, is forgotten at its
    deadline.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, random: Random | None = None) -> None:
        self._clock, self._random = clock, random or Random()
        self._lock, self._state = ForkLock(), BreakerState()

    @property
    def phase(self) -> Literal["closed", "open", "half-open"]:
        """Return the current state."""
        return self._state.phase(self._clock())

    def enter(self, until_s: float) -> None:
        """Return where the service may be asked until `until_s`; NotAsked where it may not."""
        with self._lock:
            now_s, state = self._clock(), self._state
            phase = state.phase(now_s)
            if phase == "half-open" and now_s >= state.probe_until_s:
                self._state = replace(state, probe_until_s=until_s)
                return
        if phase == "open":
            raise NotAsked(
                f"the service is not asked for {state.open_until_s - now_s:.1f} s more, after {state.failures} "
                f"failure{'s' if state.failures > 1 else ''} in a row"
            )
        if phase == "half-open":
            raise NotAsked("the service has failed, and somebody else is trying it now")

    def succeeded(self) -> None:
        """Close the breaker, after a request that succeeded."""
        with self._lock:
            self._state = BreakerState()

    def failed(self, *, retry_after_s: float | None = None) -> None:
        """Count a failed request; the breaker may open."""
        with self._lock:
            most_s = min(FIRST_OPEN_S * 2.0 ** min(self._state.opened, 16), LONGEST_OPEN_S)
            open_s = self._random.uniform(most_s / 2, most_s)
            self._state = self._state.failed(self._clock(), retry_after_s=retry_after_s, open_s=open_s)
