"""Machines and ops that the store has, kept beside it: reading their documents anew takes longer than an answer."""

from __future__ import annotations

import threading
from collections import OrderedDict

from threadcast.core import Machine, Op
from threadcast.store import Store

MOST_OPS = 20_000
"""Ops kept; about 2 KB each."""


class Known:
    """Looks machines and ops up. A stored one never changes, so nothing kept grows old. Safe to use from threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._read_at = -1
        self._ops: OrderedDict[str, Op] = OrderedDict()

    def machines(self) -> dict[str, Machine]:
        """Every machine by fingerprint, in the order of first appearance."""
        last = self._store.last_measurement()  # machines come with measurements only
        if last != self._read_at:
            found = {machine.fingerprint: machine for machine in self._store.machines()}
            with self._lock:
                self._machines, self._read_at = found, last
            return found
        return self._machines

    def ops(self, keys: set[str]) -> dict[str, Op]:
        """Those of these ops that the store knows, by key."""
        with self._lock:
            found = {key: self._ops[key] for key in keys if key in self._ops}
        missing = keys - found.keys()
        if missing:
            read = {op.key: op for op in self._store.ops(keys=missing)}
            found |= read
            with self._lock:
                self._ops.update(read)
                while len(self._ops) > MOST_OPS:
                    self._ops.popitem(last=False)
        return found
