"""What other processes may have changed, looked at every few milliseconds in place of before every answer.

Each look waits for the disk cache or the database, and lets the other threads of the interpreter go first: with eight
busy threads two looks a request cost more than the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

FRESH_S = 0.005
"""Seconds for which what was seen counts as so. A service sees what it does itself at once."""


class Outside(Generic[T]):
    """The value of `look`, at most `FRESH_S` old. Safe to use from threads."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._seen: tuple[float, T] | None = None

    def __call__(self) -> T:
        """The value."""
        seen = self._seen
        now_s = time.monotonic()
        if seen is None or now_s - seen[0] > FRESH_S:
            seen = self._seen = (now_s, self._look())
        return seen[1]

    def changed(self) -> None:
        """Look again the next time."""
        self._seen = None
