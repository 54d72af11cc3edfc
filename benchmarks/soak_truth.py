"""What the answers of a service under load must be: computed in the process that asks, by the versions that they name.

What is measured of `MACHINE` changes only by `Truth.moving`. So there are states of the store, one after the other, and
an answer is right if it is what a state gives that the service could have known when it answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from service_place import MACHINE

from threadcast.core import CurveTable, Measurement, Op, OpGraph, Plan
from threadcast.core.curve_table import ARRAYS
from threadcast.models.base import PerformanceModel
from threadcast.models.registry import ModelRegistry
from threadcast.prediction.lru_cache import LruCache
from threadcast.prediction.predictor import LocalPredictor
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.store import Store
from threadcast.store.machine_changes import MachineChanges

KNOWN_LATE_S = 15.0
"""Seconds for which a service may answer by an earlier state: where finding a machine's changes takes long, it does so
seldom (`StoredDocuments.changes`). Between a state's end and then either is right."""


@dataclass(frozen=True, slots=True)
class State:
    """What is stored of `MACHINE`: measurements up to `last`, and the changes that they tell of."""

    last: int
    """Number of the newest measurement of each op, among the op's own."""
    changes: MachineChanges
    from_s: float
    """When the first service could know it."""


class Truth:
    """Judges answers. Safe to use from threads."""

    def __init__(self, store: Store, registry: ModelRegistry, *, cases_measured: int) -> None:
        self._store, self._registry, self._step = store, registry, cases_measured
        self._models: dict[str, PerformanceModel] = {}
        self._lock = threading.Lock()
        self._free = threading.Condition()
        self._moving = False
        self._states = [State(cases_measured, store.changes(MACHINE.fingerprint), 0.0)]
        self._ends = [np.inf]
        """When the last service must have forgotten a state, without `KNOWN_LATE_S`."""
        self._curves: LruCache[tuple[str, str, int, int], CurveTable] = LruCache(10_000)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """The block stores one more measurement of each op in each case, in one transaction."""
        with self._free:
            self._moving = True
        began_s = time.monotonic()
        try:
            yield
            changes = self._store.changes(MACHINE.fingerprint)
            with self._lock:
                self._ends[-1] = time.monotonic()
                self._states.append(State(self._states[-1].last + self._step, changes, began_s))
                self._ends.append(np.inf)
        finally:
            with self._free:
                self._moving = False
                self._free.notify_all()

    def model(self, version: str) -> PerformanceModel:
        """The model of this version, loaded here."""
        with self._lock:
            if version not in self._models:
                self._models[version] = self._registry.load(version)
            return self._models[version]

    def judge_forecasts(self, table: CurveTable, ops: Sequence[Op]) -> str:
        """What is wrong with curves of ops that nobody has measured; empty if nothing is."""
        model = self.model(table.model)
        expected = model.predict_many(ops, [[] for _ in ops], MACHINE.cases(), machine=MACHINE)
        return "" if _equal(table, expected) else f"forecasts of {len(ops)} ops are not what {table.model} says"

    def judge_curve(self, table: CurveTable, op: Op, asked_s: float, answered_s: float) -> str:
        """What is wrong with the curve of a measured op, answered between two times of `time.monotonic`."""
        with self._free:
            self._free.wait_for(lambda: not self._moving)
        with self._lock:
            states = [
                (number, state)
                for number, (state, end_s) in enumerate(zip(self._states, self._ends, strict=True))
                if state.from_s <= answered_s and end_s + KNOWN_LATE_S >= asked_s
            ]
        for number, measured in reversed(states):
            for other, told in reversed(states):
                if _equal(table, self._curve(table.model, op, (number, measured), (other, told))):
                    return ""
        return f"{op.key} is not what {table.model} says of it by any of {len(states)} states"

    def _curve(self, version: str, op: Op, measured: tuple[int, State], told: tuple[int, State]) -> CurveTable:
        key = version, op.key, measured[0], told[0]
        found = self._curves.get(key)
        if found is None:
            view = _View(self._store, measured[1].last, told[1].changes)
            found = LocalPredictor(self.model(version), MACHINE, view, version=version).curves([op])
            self._curves.put(key, found)
        return found


@dataclass(frozen=True, slots=True)
class _View:
    """The store as it was in a state."""

    store: Store
    last: int
    told: MachineChanges

    def measurements(self, *, machine: str, keys: Collection[str]) -> list[Measurement]:
        """The measurements of one op."""
        return self.store.measurements(machine=machine, keys=keys)[: self.last]

    def changes(self, machine: str) -> MachineChanges:
        """The changes that were known."""
        return self.told


def judge_plan(document: dict[str, Any], graph: dict[str, Any]) -> str:
    """What is wrong with the plan of a graph that brings its curves; empty if nothing is."""
    plan = Plan.from_json(document)
    check_schedule(OpGraph.from_json(graph), plan)
    curves = {op["id"]: op["curve"] for op in graph["ops"]}
    for op in plan.ops:
        if not np.isclose(op.finish_s - op.start_s, curves[op.id][str(op.threads)], rtol=1e-9, atol=0):
            return f"op {op.id} is planned for {op.finish_s - op.start_s} s, and its curve says otherwise"
    return "" if document["gap"] >= -1e-9 else "a plan below its lower bound"


def _equal(table: CurveTable, expected: CurveTable) -> bool:
    return all(np.array_equal(getattr(table, name), getattr(expected, name)) for name in ARRAYS)
