"""A cache of responses of `GET /v1/curves/{op}`, each of which is valid until its op is measured again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from threadcast.prediction.lru_cache import LruCache
from threadcast.service.answers import JSON
from threadcast.store import Store


class CurveId(NamedTuple):
    """Everything that determines a curve, beside the measurements."""

    machine: str
    """Fingerprint."""
    model: str
    """"name@number"."""
    op: str
    """Key."""
    measured: int = 0
    """What the model was adapted to (`AdaptedModels`)."""
    changes: int = 0
    """What is known of the machine's changes (`MachineChanges.stamp`)."""
    form: str = JSON
    """Media type."""


class CurveResponse(NamedTuple):
    """The body of a response, its entity tag and the number of points in it."""

    content: bytes
    etag: str
    points: int


class CurveResponseCache:
    """The `most` responses that were used last. Safe to use from threads.

    A response is dropped once any process has stored a measurement of its op: each `get` calls `last_measurement`,
    which returns the number of the newest measurement in `store`, and drops the responses of ops that were measured
    since the last `get`.
    """

    def __init__(self, store: Store, last_measurement: Callable[[], int], most: int) -> None:
        self._store, self._last_measurement = store, last_measurement
        self._lock = threading.Lock()
        self._responses: LruCache[CurveId, CurveResponse] = LruCache(most)
        self._valid_for = last_measurement()
        """Number of the newest measurement that the responses take into account."""

    def get(self, curve: CurveId) -> tuple[CurveResponse | None, int]:
        """The cached response or None, and the number of the newest measurement, which is an argument of `put`."""
        last = self._last_measurement()
        if last != self._valid_for:
            self._drop_outdated(last)
        return self._responses.get(curve), last

    def put(self, curve: CurveId, response: CurveResponse, last_measurement: int) -> None:
        """Store a response that was computed after `get` returned `last_measurement`.

        It is not stored if a newer measurement has been seen since.
        """
        with self._lock:
            if last_measurement == self._valid_for:
                self._responses.put(curve, response)

    def _drop_outdated(self, last: int) -> None:
        before = self._valid_for
        changed = self._store.ops_measured_since(before)
        with self._lock:
            if self._valid_for == before:  # else another thread has done it, up to `last` or further
                self._responses.drop(lambda curve: curve.op in changed)
                self._valid_for = last
