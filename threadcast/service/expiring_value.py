"""A value that is computed again when it is older than a few milliseconds.

For what other processes may change: the store's newest measurement, the moves of an alias. Asking for these before
every answer costs more than many an answer: it waits for the disk cache or the database, and lets other threads of the
interpreter go first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_AGE_S = 0.005
"""Seconds for which a value is believed. A service expires at once what it changes itself."""


class ExpiringValue(Generic[T]):
    """What `compute` returned at most `MAX_AGE_S` ago. Call it to get the value. Safe to use from threads."""

    def __init__(self, compute: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._compute, self._clock = compute, clock
        self._computed: tuple[float, T] | None = None

    def __call__(self) -> T:
        computed, now_s = self._computed, self._clock()
        if computed is None or now_s - computed[0] > MAX_AGE_S:
            computed = self._computed = (now_s, self._compute())
        return computed[1]

    def expire(self) -> None:
        """Compute the value again the next time that it is asked for."""
        self._computed = None
