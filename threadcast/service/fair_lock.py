"""One turn at a time, in the order of asking, for threads that share an interpreter.

Eight threads that all want Python's interpreter take it from one another at every system call, and none gets far:
requests that take 0.2 ms are answered at half the rate at which one thread alone would answer them. In turns, each
request is worked at from beginning to end. Who waits for something else meanwhile must not hold up the rest: nobody
waits for a turn longer than he says, and then takes it over. So one that is slow costs one other a wait, not all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Who comes first is served first. Safe to use from threads, which is what it is for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: threading.Lock | None = None
        self._waiting: deque[threading.Lock] = deque()
        """Each locked until it is its thread's turn."""

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Have the turn while the block runs, or until somebody has waited for it for his `timeout_s`."""
        mine = self._begin(timeout_s)
        try:
            yield
        finally:
            self._end(mine)

    def _begin(self, timeout_s: float) -> threading.Lock:
        mine = threading.Lock()
        with self._lock:
            if self._holder is None:
                self._holder = mine
                return mine
            mine.acquire()
            self._waiting.append(mine)
        if not mine.acquire(timeout=timeout_s):
            with self._lock:
                if mine in self._waiting:  # else it came as we gave up
                    self._waiting.remove(mine)
                    self._holder = mine
        return mine

    def _end(self, mine: threading.Lock) -> None:
        with self._lock:
            if self._holder is mine:
                self._holder = self._waiting.popleft() if self._waiting else None
                if self._holder is not None:
                    self._holder.release()
