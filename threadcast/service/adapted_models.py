"""Models that take into account what is stored of a machine that they have not learned from."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from threadcast.core import Machine
from threadcast.models.base import PerformanceModel
from threadcast.prediction.lru_cache import LruCache
from threadcast.store import Store
from threadcast.store.holding import all_that_holds

MOST = 16
"""Number of adapted models in memory; what they share with the model itself counts once."""

MOST_READ = 4_000
"""Number of a machine's newest measurements that a model is adapted to: reading all of a large store takes time and
memory in the midst of a request. As many as `step_forecasts.RECENT`, which says what reading takes."""

GROWTH = 0.1
"""By what share the store must have grown before a model is adapted again: reading takes longer than an answer."""


class Adapted(NamedTuple):
    """A model, and the number of the store's newest measurement when it was adapted; 0 for one that never is."""

    model: PerformanceModel
    measured: int = 0


class AdaptedModels:
    """Adapts models to stored measurements (`PerformanceModel.adapted`), and remembers the result until the store has
    grown by `GROWTH`.

    Safe to use from threads. Those that ask for the same model at once wait for the first one; where there is an older
    adapted model, they get that.
    """

    def __init__(self, store: Store, last_measurement: Callable[[], int]) -> None:
        self._store, self._last_measurement = store, last_measurement
        self._adapted: LruCache[tuple[str, str], Adapted] = LruCache(MOST)
        self._adapting = tuple(Lock() for _ in range(MOST))
        """Held while a model is adapted, one by the hash of its key: a lock for each key would never be dropped."""

    def of(self, model: PerformanceModel, version: str, machine: Machine) -> Adapted:
        """The model ("name@number" is its `version`) for forecasts of this machine."""
        if not model.adapts_to(machine):
            return Adapted(model)
        key, last = (version, machine.fingerprint), self._last_measurement()
        adapting = self._adapting[hash(key) % MOST]
        found = self._adapted.get(key)
        if found is not None and (_suits(found, last) or adapting.locked()):
            return found
        with adapting:
            found = self._adapted.get(key)  # another thread may have been faster
            if found is None or not _suits(found, last):
                measured = self._store.measurements(machine=machine.fingerprint, last=MOST_READ)
                found = Adapted(model.adapted(all_that_holds(measured, self._store.changes)), last)
                self._adapted.put(key, found)
            return found


def _suits(adapted: Adapted, last: int) -> bool:
    """Whether the store, whose newest measurement is `last`, has not grown by `GROWTH` since."""
    return last < max(adapted.measured + 1, (1 + GROWTH) * adapted.measured)
