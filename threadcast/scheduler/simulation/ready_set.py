"""The ops that are ready, in a policy's order; quick to change and to search."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any


class ReadyQueue(Sequence[int]):
    """Ready ops by ascending `rank`, or in the order of `add` without one.

    `add`, `remove` and `in` take microseconds at any length that occurs. Code that drives a policy makes a queue with
    the policy's `rank`, keeps it up to date, and passes it as `State.ready`.
    """

    def __init__(self, rank: Sequence[int] | None = None) -> None:
        self._rank = rank
        self._place: dict[int, int] = {}  # op -> its key in `_keys`
        self._keys: list[int] = []  # ascending
        self._op: dict[int, int] = {}  # key -> op
        self._arrivals = 0

    def add(self, op: int) -> None:
        """Add an op that is not in the queue."""
        if self._rank is None:
            key = self._arrivals
            self._arrivals += 1
            self._keys.append(key)
        else:
            key = self._rank[op]
            insort(self._keys, key)
        self._place[op] = key
        self._op[key] = op

    def remove(self, op: int) -> None:
        """Remove an op; KeyError if it is not in the queue."""
        key = self._place.pop(op)
        del self._keys[bisect_left(self._keys, key)]
        del self._op[key]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return map(self._op.__getitem__, self._keys)

    def __contains__(self, op: object) -> bool:
        return op in self._place

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._op[key] for key in self._keys[index]]
        return self._op[self._keys[index]]
