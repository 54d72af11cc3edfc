"""Machines and ops that the store has, kept beside it: reading their documents anew takes longer than an answer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection

from threadcast.core import Machine, Measurement, Op
from threadcast.service.expiring_value import Outside
from threadcast.store import Store

MOST_OPS = 20_000
"""Ops kept; about 2 KB each."""


class Known:
    """Looks machines and ops up. A stored one never changes, so nothing kept grows old. Safe to use from threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last_measurement = Outside(store.last_measurement)
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._read_at = -1
        self._ops: OrderedDict[str, Op] = OrderedDict()
        self._measured: set[str] = set()
        self._measured_to = 0

    def machines(self) -> dict[str, Machine]:
        """Every machine by fingerprint, in the order of first appearance."""
        last = self.last_measurement()  # machines come with measurements only
        if last != self._read_at:
            found = {machine.fingerprint: machine for machine in self._store.machines()}
            with self._lock:
                self._machines, self._read_at = found, last
            return found
        return self._machines

    def measurements(self, *, machine: str, keys: Collection[str]) -> list[Measurement]:
        """As `Store.measurements`; nothing is read for ops of which nothing was ever measured, as most new ones."""
        last = self.last_measurement()
        if last != self._measured_to:
            newer = self._store.ops_measured_since(self._measured_to)
            with self._lock:
                self._measured |= newer
                self._measured_to = max(last, self._measured_to)
        wanted = [key for key in keys if key in self._measured]
        return self._store.measurements(machine=machine, keys=wanted) if wanted else []

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
