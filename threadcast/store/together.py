"""What several threads store at once is stored in one transaction: small batches then take as long as a larger one.

A transaction's statements, its lock and its commit to the disk take the same time for one measurement as for hundreds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from threadcast.core.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    """What a thread wants to have stored, its size, and what came of it.

    `news` comes when its thread shall go on: it leads, or its item is done; a second one does no harm. An interrupt
    within an Event or a Condition could leave their locks held, within a SimpleQueue it cannot.
    """

    item: T
    size: int
    done: bool = False
    result: R | None = None
    error: Exception | None = None
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)

    def tell(self, result: R | None, error: Exception | None = None) -> None:
        """Wake the thread up with what came of its item; what it was told before holds."""
        if not self.done:
            self.result, self.error, self.done = result, error, True
        self.news.put(None)


class Together(Generic[T, R]):
    """Passes what threads bring at the same time to one call of `store`, which returns a result for each.

    One of the waiting threads leads: it stores what has gathered, its own first, and each returns as soon as its own is
    done; then the one that has waited longest leads. `store` stores all or nothing: where one of several cannot be
    stored, each is tried alone, so that a wrong one does not keep others from being stored. At most `most` in size go
    together, except one that is larger; a thread waits for `wait_s` seconds until storing its item begins.
    """

    def __init__(self, store: Callable[[Sequence[T]], Sequence[R]], *, most: int, wait_s: float) -> None:
        self._store, self._most, self._wait_s = store, most, wait_s
        self._lock = threading.Lock()  # of all below
        self._waiting: list[_Waiting[T, R]] = []
        self._leader: _Waiting[T, R] | None = None  # the first of those that wait, until it takes them
        self._taken: list[_Waiting[T, R]] = []  # by the leader

    def add(self, item: T, *, size: int) -> R:
        """What `store` returned for `item`, once it is stored; raises what `store` raised for it.

        Where this thread is interrupted before storing the item begins, it is not stored.
        """
        mine: _Waiting[T, R] = _Waiting(item, size)
        try:
            with self._lock:
                self._waiting.append(mine)
                self._appoint()
            self._wait(mine)
            if self._leader is mine:
                self._lead()
        finally:
            try:
                self._leave(mine)
            finally:  # an interrupt may have come in the midst
                self._leave(mine)
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]

    def _appoint(self) -> None:
        """Let who has waited longest lead, where nobody does."""
        if self._leader is None and self._waiting:
            self._leader = self._waiting[0]
        if self._leader is not None and not self._taken:  # again, where who appointed it was interrupted
            self._leader.news.put(None)

    def _wait(self, mine: _Waiting[T, R]) -> None:
        """Wait until `mine` leads or is done."""
        with suppress(Empty):
            mine.news.get(timeout=self._wait_s)
            return
        with self._lock:
            if mine is not self._leader and mine in self._waiting:
                self._waiting.remove(mine)
                raise StoreError(f"other threads of this process stored for {self._wait_s:g} s; try again")
        mine.news.get()  # it leads since just now, or another thread is storing it: as long as the database takes

    def _lead(self) -> None:
        """Store what has waited longest."""
        with self._lock:
            sizes = accumulate(one.size for one in self._waiting)
            count = max(1, sum(size <= self._most for size in sizes))
            self._taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._store_all(self._taken)

    def _leave(self, mine: _Waiting[T, R]) -> None:
        """Take `mine` out, however its thread ends, and let another lead; a second call does no harm."""
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
            if self._leader is mine:
                for one in self._taken:  # not told yet, where this thread was interrupted
                    one.tell(None, StoreError("storing was interrupted; it may have been stored or not"))
                self._leader, self._taken = None, []
            self._appoint()

    def _store_all(self, some: Sequence[_Waiting[T, R]]) -> None:
        try:
            results = self._store([one.item for one in some])
        except Exception as error:  # noqa: BLE001 - every thread is told what became of its own
            if len(some) > 1 and not isinstance(error, StoreError):  # which says that nothing can be stored now
                for one in some:
                    self._store_all([one])
                return
            for one in some:
                one.tell(None, error)
            return
        for one, result in zip(some, results, strict=True):
            one.tell(result)
