"""Models that take into account what is stored of a machine that they have not learned from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from threadcast.core import Machine
from threadcast.core.holding import all_that_holds
from threadcast.models.base import PerformanceModel
from threadcast.prediction.lru_cache import LruCache
from threadcast.store import Store

MOST = 16
"""Number of adapted models in memory; what they share with the model itself counts once."""

GROWTH = 0.1
"""By what share the store must have grown before a model is adapted again: reading takes longer than an answer."""


class Adapted(NamedTuple):
    """A model, and the number of the store's newest measurement when it was adapted; 0 for one that never is."""

    model: PerformanceModel
    measured: int = 0


class AdaptedModels:
    """Adapts models to stored measurements (`PerformanceModel.adapted`), and remembers the result until the store has
    grown by `GROWTH`. Safe to use from threads."""

    def __init__(self, store: Store, last_measurement: Callable[[], int]) -> None:
        self._store, self._last_measurement = store, last_measurement
        self._adapted: LruCache[tuple[str, str], Adapted] = LruCache(MOST)

    def of(self, model: PerformanceModel, version: str, machine: Machine) -> Adapted:
        """The model ("name@number" is its `version`) for forecasts of this machine."""
        if not model.adapts_to(machine):
            return Adapted(model)
        key, last = (version, machine.fingerprint), self._last_measurement()
        found = self._adapted.get(key)
        if found is None or last >= max(found.measured + 1, (1 + GROWTH) * found.measured):
            measured = self._store.measurements(machine=machine.fingerprint)
            found = Adapted(model.adapted(all_that_holds(measured, self._store.changes)), last)
            self._adapted.put(key, found)
        return found
