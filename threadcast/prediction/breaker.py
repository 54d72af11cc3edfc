"""A circuit breaker: after several failures the service is not asked for a while; then one caller tries it first."""

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
"""Most seconds that the breaker stays open the first time, doubled each further time, and the limit of this doubling.
The actual time is random, from half of that to all of it."""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of a breaker. `failures` in a row; `opened`: how often it has opened since the last success.

    The breaker is open until `open_until_s`. After that, until `probe_until_s`, one caller tries whether the service
    works again. Both are in seconds of the breaker's clock.
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

        The breaker opens for `retry_after_s` seconds if the service asked for that, and after LIMIT failures for
        `open_s` seconds. If it is open already, the failure counts, but `open_s` does not keep it open longer.
        """
        failures, opened, until_s = self.failures + 1, self.opened, self.open_until_s
        if retry_after_s is not None:
            until_s = max(until_s, now_s + retry_after_s)
        if failures >= LIMIT and now_s >= self.open_until_s:
            opened, until_s = opened + 1, max(until_s, now_s + open_s)
        return BreakerState(failures, opened, until_s)


class Breaker:
    """Guards one service: call `enter` before each request, and `succeeded` or `failed` after it.

    Safe to use from threads. A trial request that never reports (its thread has died, or belongs to the process that
    forked this one) is forgotten at its deadline.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, random: Random | None = None) -> None:
        self._clock, self._random = clock, random or Random()
        self._lock, self._state = ForkLock(), BreakerState()

    @property
    def phase(self) -> Literal["closed", "open", "half-open"]:
        """The current phase: "closed" (every caller may ask), "open" (none may) or "half-open" (one may try)."""
        return self._state.phase(self._clock())

    def enter(self, until_s: float) -> None:
        """Return if the service may be asked; else raise NotAsked. `until_s`: the request's deadline by the clock."""
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
        """Record a request that succeeded; the breaker closes."""
        with self._lock:
            self._state = BreakerState()

    def failed(self, *, retry_after_s: float | None = None) -> None:
        """Record a failed request; the breaker may open. `retry_after_s`: seconds that the service asked to wait."""
        with self._lock:
            most_s = min(FIRST_OPEN_S * 2.0 ** min(self._state.opened, 16), LONGEST_OPEN_S)
            open_s = self._random.uniform(most_s / 2, most_s)
            self._state = self._state.failed(self._clock(), retry_after_s=retry_after_s, open_s=open_s)
