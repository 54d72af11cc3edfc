"""A value that is computed again when it is older than a few milliseconds.

It is for values that other processes may change: the store's newest measurement, the moves of an alias. Reading these
before every answer can cost more than the answer: the thread waits for the disk cache or the database, and other
threads of the interpreter get their turn first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_AGE_S = 0.005
"""Seconds for which a value is used. A service calls `expire` for values that it changes itself."""


class ExpiringValue(Generic[T]):
    """A value that `compute` returned at most `MAX_AGE_S` ago. Call this object to get it. Safe to use from threads."""

    def __init__(self, compute: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._compute, self._clock = compute, clock
        self._computed: tuple[float, T] | None = None

    def __call__(self) -> T:
        computed, now_s = self._computed, self._clock()
        if computed is None or now_s - computed[0] > MAX_AGE_S:
            computed = self._computed = (now_s, self._compute())
        return computed[1]

    def expire(self) -> None:
        """Have the value computed again at the next call."""
        self._computed = None
