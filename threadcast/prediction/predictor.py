"""Where a scheduler gets its curves: one interface, in process or over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.models.base import PerformanceModel
from threadcast.prediction.curve_cache import CurveCache, at_cases, empty_table


@runtime_checkable
class Predictor(Protocol):
    """Gives the curves of ops at the cases of one machine."""

    machine: Machine

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return one row an op over `cases` (None: all of the machine's); raises within its deadline or not at all."""
        ...


class Measurements(Protocol):
    """Where a predictor reads what was measured: a store, or a cache over one."""

    def measurements(self, *, machine: str, keys: Collection[str]) -> Iterable[Measurement]:
        """Return what was measured of the ops with these keys on the machine with this fingerprint."""
        ...


class LocalPredictor:
    """Answers with a model in this process, from what was measured of each op.

    `observed` maps op keys to measurements, or is a store (any `Measurements`), which is then read for each op that is
    asked for the first time; measurements of other machines are left out. `version` is how the registry calls the model
    ("name@version"; without it the model's name) and becomes `table.model`. Curves are kept by op key: call
    `forget` when more has been measured. Safe to use from threads. ModelError when the model cannot tell.
    """

    def __init__(
        self,
        model: PerformanceModel,
        machine: Machine,
        observed: Mapping[str, Sequence[Measurement]] | Measurements,
        *,
        version: str = "",
    ) -> None:
        self.machine = machine
        self.version = version or model.name
        self._model, self._observed = model, observed
        self._cache = CurveCache(machine.cases())

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return one row an op over `cases` (None: all of the machine's); InvalidInput for a case it does not have."""
        keys = [op.key for op in ops]
        wanted = self._cache.missing(keys)
        if wanted:
            self._cache.add([keys[i] for i in wanted], self._predict([ops[i] for i in wanted]))
        table = self._cache.get(keys)
        if table is None:  # `forget` came between
            table = self._predict(ops)
        return at_cases(table if ops else empty_table(self.machine.cases(), model=self.version), cases)

    def forget(self) -> None:
        """Ask the model anew for every op, with what has been measured by then."""
        self._cache.clear()

    def _predict(self, ops: Sequence[Op]) -> CurveTable:
        seen = self._measured([op.key for op in ops])
        observed = [seen.get(op.key, []) for op in ops]
        table = self._model.predict_many(ops, observed, self.machine.cases(), machine=self.machine)
        return replace(table, model=self.version)

    def _measured(self, keys: Sequence[str]) -> Mapping[str, Sequence[Measurement]]:
        found: Iterable[Measurement]
        if isinstance(self._observed, Mapping):
            found = (m for key in keys for m in self._observed.get(key, ()) if m.machine == self.machine)
        else:
            found = self._observed.measurements(machine=self.machine.fingerprint, keys=keys)
        by_key: dict[str, list[Measurement]] = {}
        for measurement in found:
            by_key.setdefault(measurement.op.key, []).append(measurement)
        return by_key
