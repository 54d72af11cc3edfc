"""A cache of the stored ops and machines that requests need again and again.

Reading them takes longer than an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from threadcast.core import Machine, Measurement, Op
from threadcast.prediction.lru_cache import LruCache
from threadcast.service.expiring_value import ExpiringValue
from threadcast.store import Store
from threadcast.store.machine_changes import MachineChanges

MOST_OPS = 20_000
"""Number of ops in memory; about 2 KB each."""

MOST_CHANGED = 256
"""Number of machines whose changes are in memory: any request may describe another machine."""

CHEAP_S, CHANGES_SHARE = 0.05, 0.05
"""CPU seconds that finding a machine's changes may take at every new measurement; and the share of a thread's time
that it takes at most where it takes longer."""


class _Found(NamedTuple):
    """The changes of a machine, the number of the newest measurement then, and the time from which on they are found
    again."""

    changes: MachineChanges
    last: int
    again_s: float


class StoredDocuments:
    """Machines, ops and measurements of a store, read once where they cannot change. Safe to use from threads.

    A stored op or machine never changes, and a machine is commonly stored with its first measurement. So machines are
    read again only when `last_measurement`, the number of the store's newest measurement, has grown.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.last_measurement = ExpiringValue(store.last_measurement)
        self._store = store
        self._lock = threading.Lock()
        self._ops: LruCache[str, Op] = LruCache(MOST_OPS)
        self._machines: dict[str, Machine] = {}
        self._machines_read_at = -1
        self._changes: LruCache[str, _Found] = LruCache(MOST_CHANGED)
        self._measured_ops: set[str] = set()
        self._measured_ops_read_at = 0

    def machines(self) -> dict[str, Machine]:
        """Every machine by fingerprint, in the order of first appearance."""
        last = self.last_measurement()
        if last != self._machines_read_at:
            machines = {machine.fingerprint: machine for machine in self._store.machines()}
            with self._lock:
                self._machines, self._machines_read_at = machines, last
            return machines
        return self._machines

    def measurements(self, *, machine: str, keys: Collection[str]) -> list[Measurement]:
        """As `Store.measurements`, but the store is not queried for ops that were never measured, as most new ops."""
        measured = self._measured(keys)
        return self._store.measurements(machine=machine, keys=measured) if measured else []

    def _measured(self, keys: Collection[str]) -> list[str]:
        """Those of the ops with these keys that were measured on any machine."""
        last = self.last_measurement()
        if last != self._measured_ops_read_at:
            newer = self._store.ops_measured_since(self._measured_ops_read_at)
            with self._lock:
                self._measured_ops |= newer
                self._measured_ops_read_at = max(last, self._measured_ops_read_at)
        return [key for key in keys if key in self._measured_ops]

    def changes(self, machine: str) -> MachineChanges:
        """As `Store.changes`, found again once there are new measurements; where that takes longer than `CHEAP_S`, not
        before `CHANGES_SHARE` of the time would go by with it."""
        last, now_s = self.last_measurement(), self._clock()
        found = self._changes.get(machine)
        if found is None or (found.last != last and now_s >= found.again_s):
            began_s = time.thread_time()  # what others do to the machine meanwhile does not count
            changes = self._store.changes(machine)
            took_s = time.thread_time() - began_s
            again_s = now_s + (took_s / CHANGES_SHARE if took_s > CHEAP_S else 0.0)
            found = _Found(changes, last, again_s)
            self._changes.put(machine, found)
        return found.changes

    def ops(self, keys: set[str]) -> dict[str, Op]:
        """Those of these ops that are stored, by key."""
        found = self._ops.get_many(keys)
        missing = keys - found.keys()
        for op in self._store.ops(keys=missing) if missing else ():
            found[op.key] = op
            self._ops.put(op.key, op)
        return found
