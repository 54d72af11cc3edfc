"""Curves that were answered before, as the bytes that went out, until more is measured of their ops."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from threadcast.store import Store

Name = tuple[str, str, str]
"""Of a curve: the machine's fingerprint, the model's "name@number", the op's key."""


class KeptCurve(NamedTuple):
    """An answer, its tag and how many points it has."""

    content: bytes
    etag: str
    points: int


class KeptCurves:
    """At most `most` curves, those asked for last. Safe to use from threads.

    What any process stores of an op drops the op's curves here: each `get` asks `last_measurement` how far the store's
    measurements have come.
    """

    def __init__(self, store: Store, last_measurement: Callable[[], int], most: int) -> None:
        self._store, self._last_measurement, self._most = store, last_measurement, most
        self._lock = threading.Lock()
        self._curves: OrderedDict[Name, KeptCurve] = OrderedDict()
        self._seen = last_measurement()

    def get(self, name: Name) -> tuple[KeptCurve | None, int]:
        """The curve of this name if it is kept, and how far the measurements have come: for `put`."""
        last = self._last_measurement()
        if last != self._seen:
            self._forget(last)
        with self._lock:
            found = self._curves.get(name)
            if found is not None:
                self._curves.move_to_end(name)
        return found, last

    def put(self, name: Name, curve: KeptCurve, seen: int) -> None:
        """Keep a curve that was predicted after `get` gave `seen`; not when more has been stored since."""
        with self._lock:
            if seen == self._seen:
                self._curves[name] = curve
                if len(self._curves) > self._most:
                    self._curves.popitem(last=False)

    def _forget(self, last: int) -> None:
        with self._lock:
            before = self._seen
        changed = self._store.ops_measured_since(before)
        with self._lock:
            if self._seen != before:  # another thread was here meanwhile and saw at least as much
                return
            for name in [name for name in self._curves if name[2] in changed]:
                del self._curves[name]
            self._seen = last
