"""A lock that threads get in the order in which they asked for it.

Eight threads that all need Python's interpreter take it from one another at every system call, and requests of 0.2 ms
are answered at half the rate of a single thread. Under this lock each request is handled without a break. A holder that
waits for something else must not block the others: a thread waits for a timeout at most, and then takes the lock over.
So one slow request delays one other request by the timeout, and not all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLock:
    """A lock for which threads wait in a queue; a waiting thread takes it over after its timeout."""

    def __init__(self) -> None:
        self._state = threading.Lock()
        """Guards the two attributes below."""
        self._holder: threading.Lock | None = None
        """The ticket of the thread that has the lock."""
        self._waiting: deque[threading.Lock] = deque()
        """Tickets of waiting threads, first come first; a ticket is released when it becomes the holder."""

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Wait for the lock, `timeout_s` seconds at most, and hold it while the block runs.

        Once the timeout of another thread is over, that thread may run its own block before this one ends.
        """
        ticket = self._acquire(timeout_s)
        try:
            yield
        finally:
            self._release(ticket)

    def _acquire(self, timeout_s: float) -> threading.Lock:
        ticket = threading.Lock()
        with self._state:
            if self._holder is None:
                self._holder = ticket
                return ticket
            ticket.acquire()
            self._waiting.append(ticket)
        if not ticket.acquire(timeout=timeout_s):
            with self._state:
                if ticket in self._waiting:  # else it was handed the lock just now
                    self._waiting.remove(ticket)
                    self._holder = ticket
        return ticket

    def _release(self, ticket: threading.Lock) -> None:
        with self._state:
            if self._holder is ticket:  # else somebody took the lock over
                self._holder = self._waiting.popleft() if self._waiting else None
                if self._holder is not None:
                    self._holder.release()
