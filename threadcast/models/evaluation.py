"""Every model in one table: the same folds, the same measurements, only the samples that each asked for."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from threadcast.core import Case, CurveTable, Measurement
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.models import metrics, parallel
from threadcast.models.base import PerformanceModel
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.shared import SharedOps
from threadcast.models.splits import Fold, Split

ALL_FOLDS = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """How one model did, over one fold or all.

    `accuracy`, `r2` and `coverage_90` are over the points that the model was not given as samples; None where it
    was given them all. Regret is over ops, with all their recorded cases to choose from. `samples` is the mean number
    per op; `fit_s` the sum over folds; `predict_us` microseconds per curve when asked in batches. `unusable` counts
    the ops that the model could not be judged by; `problem` says why the first one, or the fit, failed.
    """

    model: str
    split: str
    fold: str
    samples: float
    accuracy: float | None
    r2: float | None
    coverage_90: float | None
    regret_mean: float | None
    regret_p95: float | None
    fit_s: float
    predict_us: float | None
    ops: int
    points: int
    unusable: int
    problem: str | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A table of models: `rows` over all folds, `by_fold` one for each fold of each model.

    `left_out` names the ops that no model was given, by key with the reason.
    """

    rows: tuple[Row, ...]
    by_fold: tuple[Row, ...]
    left_out: Mapping[str, str]


@dataclass(slots=True)
class _Outcome:
    """What one model did on one fold. The arrays of `points` are actual, predicted, low, high: (4, n), seconds."""

    points: list[Floats] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    fit_s: float = 0.0
    predict_s: float = 0.0
    notes: tuple[str, ...] = ()


def evaluate(
    measurements: Iterable[Measurement],
    models: Sequence[tuple[str, PerformanceModel]],
    *,
    split: Split,
    split_name: str,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge unfitted `models`, given with the names for their rows, on ops that they have not learned from.

    A copy of each model is fitted to all measurements of a fold's training ops. For each test op it then asks for
    samples and gets the recorded ones, nothing else, and forecasts all recorded cases. An op of which a proposed case
    was not recorded is unusable for that model. `jobs` processes work on models and folds side by side; `progress` is
    called with (done, total). A model that cannot be fitted gets a row that says so. Raises ModelError where the table
    cannot be learned from at all (`measured.usable`) or does not allow the split.
    """
    import joblib

    entries, left_out = usable(group(measurements))
    if not models:
        raise ModelError("no model was given to evaluate")
    folds = split(entries)
    tasks = [(name, model, fold) for fold in folds for name, model in models]
    shared = SharedOps(entries)
    outcomes = []
    calls = (joblib.delayed(_judge)(model, shared, fold) for _, model, fold in tasks)
    for outcome in parallel.run(calls, jobs=jobs):
        outcomes.append(outcome)
        if progress:
            progress(len(outcomes), len(tasks))
    by_fold = [
        _row(name, split_name, fold.name, [outcome]) for (name, _, fold), outcome in zip(tasks, outcomes, strict=True)
    ]
    rows = [_row(name, split_name, ALL_FOLDS, outcomes[i :: len(models)]) for i, (name, _) in enumerate(models)]
    return Evaluation(tuple(rows), tuple(by_fold), left_out)


def replay(model: PerformanceModel, entry: MeasuredOp) -> list[Measurement]:
    """The recorded measurements of `entry` that `model` asks for, in its order.

    ModelError where it asks for a case that was not recorded, or for one that it has.
    """
    observed: list[Measurement] = []
    given: set[Case] = set()
    while (case := model.propose(entry.op, tuple(observed), entry.machine)) is not None:
        if case in given:
            raise ModelError(f"{model.name} proposed {case} again, which it has")
        if case not in entry.by_case:
            raise ModelError(f"{entry.op.key} was not recorded at {case}, which {model.name} asks for")
        given.add(case)
        observed.append(entry.by_case[case])
    return observed


def _judge(model: PerformanceModel, shared: SharedOps, fold: Fold) -> _Outcome:
    outcome = _Outcome()
    entries, model = shared.get(), copy.deepcopy(model)
    started = time.perf_counter()
    try:
        model.fit([m for i in fold.train for m in entries[i].by_case.values()])
    except ModelError as error:
        outcome.unusable = {entries[i].op.key: str(error) for i in fold.test}
        return outcome
    outcome.fit_s = time.perf_counter() - started
    outcome.notes = tuple(getattr(model, "notes", ()))
    batches: dict[tuple[str, tuple[Case, ...]], list[tuple[MeasuredOp, list[Measurement]]]] = {}
    for entry in (entries[i] for i in fold.test):
        try:
            observed = replay(model, entry)
        except ModelError as error:
            outcome.unusable[entry.op.key] = str(error)
            continue
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append((entry, observed))
    for batch in batches.values():
        _forecast(model, batch, outcome)
    return outcome


def _forecast(model: PerformanceModel, batch: list[tuple[MeasuredOp, list[Measurement]]], outcome: _Outcome) -> None:
    """Forecast ops of the same machine and cases together; one by one where that fails, to find which one it is."""
    first = batch[0][0]
    cases = tuple(first.by_case)
    started = time.perf_counter()
    try:
        table = model.predict_many(
            [entry.op for entry, _ in batch], [observed for _, observed in batch], cases, machine=first.machine
        )
    except ModelError as error:
        if len(batch) == 1:
            outcome.unusable[first.op.key] = str(error)
            return
        for one in batch:
            _forecast(model, [one], outcome)
        return
    outcome.predict_s += time.perf_counter() - started
    for row, (entry, observed) in enumerate(batch):
        _score(entry, {m.case for m in observed}, table, row, outcome)


def _score(entry: MeasuredOp, given: set[Case], table: CurveTable, row: int, outcome: _Outcome) -> None:
    actual = np.array([measurement.seconds for measurement in entry.by_case.values()])
    curve = table[row]
    judged = [i for i, case in enumerate(curve.cases) if case not in given]
    outcome.points.append(np.stack([actual, curve.seconds, curve.low, curve.high])[:, judged])
    outcome.regrets.append(metrics.regret(actual, curve.cases.index(curve.best())))
    outcome.samples.append(len(given))


def _row(model: str, split: str, fold: str, outcomes: Sequence[_Outcome]) -> Row:
    points = np.concatenate([np.empty((4, 0)), *(p for outcome in outcomes for p in outcome.points)], axis=1)
    actual, predicted, low, high = points
    regrets = [r for outcome in outcomes for r in outcome.regrets]
    samples = [n for outcome in outcomes for n in outcome.samples]
    unusable = {key: why for outcome in outcomes for key, why in outcome.unusable.items()}
    return Row(
        model=model,
        split=split,
        fold=fold,
        samples=float(np.mean(samples)) if samples else 0.0,
        accuracy=metrics.accuracy(actual, predicted),
        r2=metrics.r2(actual, predicted),
        coverage_90=metrics.coverage(actual, low, high),
        regret_mean=float(np.mean(regrets)) if regrets else None,
        regret_p95=float(np.quantile(regrets, 0.95)) if regrets else None,
        fit_s=sum(outcome.fit_s for outcome in outcomes),
        predict_us=1e6 * sum(outcome.predict_s for outcome in outcomes) / len(regrets) if regrets else None,
        ops=len(regrets),
        points=len(actual),
        unusable=sum(len(outcome.unusable) for outcome in outcomes),
        problem=next(iter(unusable.values()), None),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )
