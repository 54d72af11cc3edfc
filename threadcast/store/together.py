"""What several threads store at once is stored in one transaction: small batches then take as long as a larger one.

A transaction's statements, its lock and its commit to the disk take the same time for one measurement as for hundreds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from threadcast.core.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    """What a thread wants to have stored, its size, and what came of it."""

    item: T
    size: int
    done: bool = False
    result: R | None = None
    error: Exception | None = None


class Together(Generic[T, R]):
    """Passes what threads bring at the same time to one call of `store`, which returns a result for each.

    One thread works for all that wait; while it does, others gather. `store` stores all or nothing: where one of
    several cannot be stored, each is tried alone, so that a wrong one does not keep others from being stored. At most
    `most` in size go together, except one that is larger; a thread waits for its turn for `wait_s` seconds.
    """

    def __init__(self, store: Callable[[Sequence[T]], Sequence[R]], *, most: int, wait_s: float) -> None:
        self._store, self._most, self._wait_s = store, most, wait_s
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: list[_Waiting[T, R]] = []

    def add(self, item: T, *, size: int) -> R:
        """What `store` returned for `item`, once it is stored; raises what `store` raised for it."""
        mine: _Waiting[T, R] = _Waiting(item, size)
        with self._lock:
            self._waiting.append(mine)
        if not self._turn.acquire(timeout=self._wait_s):
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise StoreError(f"other threads of this process stored for {self._wait_s:g} s; try again")
            self._turn.acquire()  # another thread is storing it just now
        try:
            while not mine.done:
                self._store_some()
        finally:
            self._turn.release()
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]

    def _store_some(self) -> None:
        """Store what has waited longest."""
        with self._lock:
            some = [self._waiting.pop(0)]
            size = some[0].size
            while self._waiting and size + self._waiting[0].size <= self._most:
                some.append(self._waiting.pop(0))
                size += some[-1].size
        try:
            self._store_all(some)
        finally:
            for one in some:
                if not one.done:  # this thread was interrupted, perhaps after its transaction had ended
                    one.done, one.error = True, StoreError("storing was interrupted; it may have been stored or not")

    def _store_all(self, some: Sequence[_Waiting[T, R]]) -> None:
        try:
            results = self._store([one.item for one in some])
        except Exception as error:  # noqa: BLE001 - every thread is told what became of its own
            if len(some) > 1 and not isinstance(error, StoreError):  # which says that nothing can be stored now
                for one in some:
                    self._store_all([one])
                return
            for one in some:
                one.error, one.done = error, True
            return
        for one, result in zip(some, results, strict=True):
            one.result, one.done = result, True
