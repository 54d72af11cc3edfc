"""The interface from which schedulers get curves, and its implementation by a model in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.errors import FeatureError, ModelError
from threadcast.models.base import Measurements, PerformanceModel
from threadcast.prediction.gathering import Gathering
from threadcast.prediction.held_curves import MOST_POINTS, HeldCurves
from threadcast.store.holding import what_holds

_MEASURED, _EXTRAPOLATED = (list(Source).index(source) for source in (Source.MEASURED, Source.EXTRAPOLATED))


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
    measurements of other machines are ignored, and those that no longer hold (`store.holding`). `version` becomes
    `table.model`: the model's name in the registry ("name@version"; by default the model's own name). Curves are cached
    by `Op.forecast_key`, about `most_points` of them (ops times cases): beyond that, only those of the latest call
    stay; with 0, none. With a `gathering`, which predictors share, the model is called for several threads at once.
    Call `forget` when there are new measurements. Safe to use from threads.

    Ops of kinds that the model has not learned, and those for which it needs samples, are forecast by the model that
    `otherwise` returns when there is the first such op; the version is `completed` from then on. What is forecast of
    ops unlike all that was learned is extrapolated, and no forecast is shorter than a call (`least_s` of the model).
    `curves` raises ModelError where no model can predict, FeatureError for an op that lacks what describes its kind.
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
        otherwise: Callable[[], PerformanceModel] | None = None,
        completed: str = "",
    ) -> None:
        self.machine = machine
        self._most_points = most_points
        self.version = version or model.name
        self._otherwise, self._completed = otherwise, completed
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
            return self._predict(ops).at_cases(cases)
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

    def _predict(self, ops: Sequence[Op]) -> CurveTable:
        measured = self._measured([op.key for op in ops])
        observed: list[Sequence[Measurement]] = [()] * len(ops)
        if measured:
            observed = [measured.get(op.key, ()) for op in ops]
        known = [self._known(op, of_op) for op, of_op in zip(ops, observed, strict=True)]
        try:
            table = self._by_both(ops, observed, known)
        except FeatureError:
            raise
        except ModelError:
            if self._otherwise is None:
                raise
            able = self._able(ops, observed, [row for row, source in enumerate(known) if source])
            known = [source if row in able else None for row, source in enumerate(known)]
            table = self._by_both(ops, observed, known)
        return replace(_believed(table, observed, known, self._model.least_s), model=self.version)

    def _known(self, op: Op, observed: Sequence[Measurement]) -> Source | None:
        """As `PerformanceModel.knows`; None for a measured op that lacks what describes those that were learned."""
        try:
            found = self._model.knows(op)
        except FeatureError:
            if not observed:
                raise
            return None
        if found or self._otherwise or observed or op.inputs or op.outputs:
            return found
        raise ModelError(
            f"{op.key}: {self.version} has learned no op of kind {op.kind!r} without tensors: no forecast; measure it, "
            "or run `threadcast train` where others of its kind are measured"
        )

    def _able(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], rows: Sequence[int]) -> set[int]:
        """Those of the ops in `rows` that the model can forecast; mostly it can all measured ones."""
        able: set[int] = set()
        measured, others = ([row for row in rows if bool(observed[row]) is wanted] for wanted in (True, False))
        for part in (measured, *([row] for row in (*others, *measured))):
            if not able.issuperset(part):
                with suppress(ModelError):
                    self._forecast(self._model, [ops[row] for row in part], [observed[row] for row in part])
                    able.update(part)
        return able

    def _by_both(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], known: Sequence[Source | None]
    ) -> CurveTable:
        """The curves of the ops that the model has `known`, and of all others by the other model, if there is one."""
        own = [row for row, source in enumerate(known) if source]
        if self._otherwise is None or len(own) == len(ops):
            return self._forecast(self._model, ops, observed)
        others = [row for row, source in enumerate(known) if not source]
        table = CurveTable.of_parts(
            (rows, self._forecast(model, [ops[row] for row in rows], [observed[row] for row in rows]))
            for model, rows in ((self._model, own), (self._otherwise(), others))
            if rows
        )
        self.version = self._completed or self.version
        return table

    def _forecast(
        self, model: PerformanceModel, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]]
    ) -> CurveTable:
        cases = self.machine.cases()
        if self._gathering is None:
            return model.predict_many(ops, observed, cases, machine=self.machine)
        return self._gathering.predict_many(model, ops, observed, cases, self.machine)

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


def _believed(
    table: CurveTable, observed: Sequence[Sequence[Measurement]], known: Sequence[Source | None], least_s: float
) -> CurveTable:
    """The table with forecasts of at least `least_s`, or the shortest that was measured of the op, and marked as
    extrapolated where the op is not `known` as those that were learned."""
    measured = table.source == _MEASURED
    strange = np.array([source is not Source.LEARNED for source in known])
    if strange.any():
        table = replace(table, source=np.where(strange[:, None] & ~measured, np.int8(_EXTRAPOLATED), table.source))
    least = np.array([[min([least_s, *(found.seconds for found in of_op)])] for of_op in observed])
    if not ((table.seconds < least) & ~measured).any():
        return table
    arrays = {name: getattr(table, name) for name in ("seconds", "low", "high")}
    return replace(table, **{name: np.where(measured, a, np.maximum(a, least)) for name, a in arrays.items()})
