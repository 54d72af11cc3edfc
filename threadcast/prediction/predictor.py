"""The interface from which schedulers get curves, and its implementation by a model in this process."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.holding import what_holds
from threadcast.models.base import Measurements, PerformanceModel
from threadcast.prediction.gathering import Gathering
from threadcast.prediction.held_curves import MOST_POINTS, HeldCurves


@runtime_checkable
class Predictor(Protocol):
    """Predicts the curves of ops at the cases of one machine."""

    machine: Machine

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return a table with one row for each op and one column for each case (None: all cases of the machine).

        ModelError where no curve can be predicted.
        """
        ...


def different_ops(ops: Sequence[Op]) -> dict[Hashable, Op]:
    """The first of the ops with equal forecasts, by `Op.forecast_key` in order of appearance."""
    found: dict[Hashable, Op] = {}
    for op in ops:
        found.setdefault(op.forecast_key, op)
    return found


def all_differ(ops: Sequence[Op]) -> bool:
    """Whether each key is given once; then so is each op."""
    return len({op.key for op in ops}) == len(ops)


class LocalPredictor:
    """Predicts curves with a model in this process, from the measurements of each op.

    `observed`: measurements by op key, or a store in which each op is looked up when its curve is first asked for;
    measurements of other machines are ignored, and those that no longer hold (`core.holding`). `version` becomes
    `table.model`: the model's name in the registry ("name@version"; by default the model's own name). Curves are cached
    by `Op.forecast_key`, about `most_points` of them (ops times cases): beyond that, only those of the latest call
    stay; with 0, none. With a `gathering`, which predictors share, the model is called for several threads at once.
    Call `forget` when there are new measurements. Safe to use from threads. `curves` raises ModelError where the model
    cannot predict.
    """

    def __init__(
        self,
        model: PerformanceModel,
        machine: Machine,
        observed: Mapping[str, Sequence[Measurement]] | Measurements,
        *,
        version: str = "",
        most_points: int = MOST_POINTS,
        gathering: Gathering | None = None,
    ) -> None:
        self.machine = machine
        self._most_points = most_points
        self.version = version or model.name
        self._model, self._observed, self._gathering = model, observed, gathering
        self._none = HeldCurves(CurveTable.empty(machine.cases()), {})
        self._cache = [self._none]
        """The cached curves. `forget` puts another list in its place, so that what is predicted meanwhile gets lost."""

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return a table with one row for each op over `cases` (None: all of the machine's).

        InvalidInput for a case that the machine does not have, ModelError where the model cannot predict.
        """
        if not ops:
            return CurveTable.empty(self.machine.cases(), model=self.version).at_cases(cases)
        if not self._most_points:
            return self._uncached(ops).at_cases(cases)
        keys, cache = [op.forecast_key for op in ops], self._cache
        (held,) = cache
        if wanted := held.missing(keys):
            # Threads that predict at the same time may each drop what the other has added; it is predicted again.
            held = held.updated([keys[i] for i in wanted], self._predict([ops[i] for i in wanted]))
            if held.table.seconds.size > self._most_points:
                held = held.only(dict.fromkeys(keys))
            cache[0] = held
        return held.table.take([held.rows[key] for key in keys]).at_cases(cases)

    def forget(self) -> None:
        """Drop the cached curves, so that calls from now on predict from the measurements known by then.

        What other threads are just predicting is not cached.
        """
        self._cache = [self._none]

    def _uncached(self, ops: Sequence[Op]) -> CurveTable:
        if all_differ(ops):
            return self._predict(ops)
        different = different_ops(ops)
        table = self._predict(list(different.values()))
        rows = {key: row for row, key in enumerate(different)}
        return table.take([rows[op.forecast_key] for op in ops])

    def _predict(self, ops: Sequence[Op]) -> CurveTable:
        measured = self._measured([op.key for op in ops])
        observed: list[Sequence[Measurement]] = [()] * len(ops)
        if measured:
            observed = [measured.get(op.key, ()) for op in ops]
        cases = self.machine.cases()
        if self._gathering is None:
            table = self._model.predict_many(ops, observed, cases, machine=self.machine)
        else:
            table = self._gathering.predict_many(self._model, ops, observed, cases, self.machine)
        return replace(table, model=self.version)

    def _measured(self, keys: Sequence[str]) -> Mapping[str, Sequence[Measurement]]:
        """What holds now of these ops."""
        found: Iterable[Measurement]
        elsewhere = None
        if isinstance(self._observed, Mapping):
            found = (m for key in keys for m in self._observed.get(key, ()) if m.machine == self.machine)
        else:
            found = self._observed.measurements(machine=self.machine.fingerprint, keys=keys)
            elsewhere = self._observed.changes(self.machine.fingerprint)
        by_key: dict[str, list[Measurement]] = {}
        for measurement in found:
            by_key.setdefault(measurement.op.key, []).append(measurement)
        return {key: list(what_holds(of_op, elsewhere).values()) for key, of_op in by_key.items()}
