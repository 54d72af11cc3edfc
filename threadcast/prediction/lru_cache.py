"""A bounded cache that drops the value that was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from threadcast.core.fork_lock import ForkLock

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Holds at most `most` values by key, and drops the one that was read or written least recently.

    Safe to use from threads and in forked processes; `cachetools` would need a lock around every use.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = ForkLock()
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return the value of `key`; None where there is none, or no longer one."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """Return the values of those `keys` that have one, by key."""
        with self._lock:
            found = {key: self._values[key] for key in keys if key in self._values}
            for key in found:
                self._values.move_to_end(key)
            return found

    def put(self, key: Key, value: Value) -> None:
        """Store `value` under `key`, replacing an earlier value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Drop the values of all keys for which `unwanted` returns true."""
        with self._lock:
            for key in [key for key in self._values if unwanted(key)]:
                del self._values[key]
