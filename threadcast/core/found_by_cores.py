"""A cache of what was found by cores, bounded by the core ids that it holds: callers of a service choose the cores."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")

MOST = 1_000_000
"""Most core ids in a cache, some 40 MB; then it is emptied."""

ENTRY = 8
"""What an entry takes beside its core ids, counted as so many of them: some 300 bytes of tuples and of the table."""


class FoundByCores(dict[Key, Found]):
    """A dictionary with core ids in its keys or values. Only `keep` adds to it, and empties it where it is full.

    Threads may share it: where two add at once, their ids may be counted a little wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held = 0

    def keep(self, key: Key, found: Found, *, ids: int) -> Found:
        """Keep what was found, and return it. `ids`: how many core ids the key and what was found hold."""
        if self._held + ENTRY + ids > MOST:
            self.clear()
            self._held = 0
        self._held += ENTRY + ids
        self[key] = found
        return found
