"""What came before, as far as memory is given for it."""

from __future__ import annotations

from collections.abc import Hashable


class Remembered:
    """A set of the last `most` items that were added to it; those added first are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[Hashable, None] = {}

    def __contains__(self, item: Hashable) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Hashable) -> None:
        """Add an item, if it is not there."""
        self._items[item] = None
        if len(self._items) > self._most:
            del self._items[next(iter(self._items))]
