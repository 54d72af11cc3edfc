"""A lock that is free in a process that was just forked."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """A lock for `with` that is free in a forked child, even if a thread of the parent held it during the fork.

    Therefore the data that it guards must be consistent at every moment: exchange a single attribute, for example.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Free the lock, whichever thread holds it; only for a child process."""
        self._lock = threading.Lock()


_ALL: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_ALL):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
