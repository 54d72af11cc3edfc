"""Comparing models: the same folds and the same measurements for all, and for each only the samples that it asks
for."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.errors import ModelError
from threadcast.core.settings_table import STEPS
from threadcast.models import parallel
from threadcast.models.base import PerformanceModel
from threadcast.models.judgement import Outcome, Row, noise_floors, row_of, with_significance
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.op_score import OpScore, measuring_s
from threadcast.models.shared import SharedOps
from threadcast.models.shared_fit import fit_all, fit_key
from threadcast.models.splits import Fold, Split
from threadcast.models.units import odd_units

ALL_FOLDS = "all"

CALLS = 3
"""Number of forecasts of single ops that are timed in each fold; the median of three leaves out the first call, which
may load code."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all models: `rows` over all folds, `by_fold` one row for each fold of each model.

    `left_out`: ops that no model was given, by key with the reason. `odd_units`: sentences about times that seem to be
    in another unit than the rest.
    """

    rows: tuple[Row, ...]
    by_fold: tuple[Row, ...]
    left_out: Mapping[str, str]
    odd_units: tuple[str, ...] = ()


def evaluate(
    measurements: Iterable[Measurement],
    models: Sequence[tuple[str, PerformanceModel]],
    *,
    split: Split,
    split_name: str,
    jobs: int = 1,
    draw: int | None = None,
    steps: int = STEPS,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Compare unfitted `models`, given with the names of their rows, on ops that they have not learned from.

    A copy of each model is fitted to all measurements of a fold's training ops. For each test op it then proposes
    samples, gets the recorded ones and nothing else, and forecasts all recorded cases. Where a proposed case was not
    recorded, the model cannot be judged by that op. With `draw`, a seed, it gets one of each case's samples instead of
    all, the same one as every other model. `steps` is how often a user runs each op (`Row.cost`). `jobs` processes work
    on models and folds side by side; `progress` is called with (done, total). Models that learn the same
    (`shared_fit.fit_key`) are fitted once; each row has the time of that fit. A model that cannot be fitted gets a row
    that says why. ModelError where the measurements cannot be learned from at all (`measured.usable`) or do not allow
    the split.
    """
    import joblib

    entries, left_out = usable(group(measurements))
    if not models:
        raise ModelError("no model was given to evaluate")
    folds = split(entries)
    together = _groups([model for _, model in models])
    tasks = [(of_fold, positions) for positions in together for of_fold in range(len(folds))]
    shared = SharedOps(entries)
    found: dict[tuple[int, int], Outcome] = {}
    calls = (
        joblib.delayed(_judge)([models[i][1] for i in positions], shared, folds[of_fold], draw)
        for of_fold, positions in tasks
    )
    for number, outcomes in parallel.run_unordered(calls, jobs=jobs):
        of_fold, positions = tasks[number]
        found |= {(of_fold, i): outcome for i, outcome in zip(positions, outcomes, strict=True)}
        if progress:
            progress(len(found), len(models) * len(folds))
    floors = noise_floors(entries)
    by_model = [[found[of_fold, i] for of_fold in range(len(folds))] for i in range(len(models))]
    rows = [
        row_of(name, split_name, ALL_FOLDS, own, floors=floors, steps=steps)
        for (name, _), own in zip(models, by_model, strict=True)
    ]
    by_fold = [
        row_of(name, split_name, fold.name, [found[of_fold, i]], floors=floors, steps=steps)
        for of_fold, fold in enumerate(folds)
        for i, (name, _) in enumerate(models)
    ]
    return Evaluation(with_significance(rows, by_model), tuple(by_fold), left_out, odd_units(entries))


def _groups(models: Sequence[PerformanceModel]) -> list[tuple[int, ...]]:
    """Positions of the models that share a fit; the largest groups first, as they take longest."""
    by_key: dict[Hashable, list[int]] = {}
    for i, model in enumerate(models):
        key = fit_key(model)
        by_key.setdefault(i if key is None else key, []).append(i)
    return sorted((tuple(positions) for positions in by_key.values()), key=len, reverse=True)


def replay(model: PerformanceModel, entry: MeasuredOp) -> list[Measurement]:
    """The recorded measurements of `entry` that `model` proposes, in its order.

    ModelError where it proposes a case that was not recorded, or one that it has already.
    """
    observed, missing = _asked_for(model, entry)
    if missing is not None:
        raise ModelError(f"{entry.op.key} was not recorded at {missing}, which {model.name} asks for")
    return observed


def _asked_for(model: PerformanceModel, entry: MeasuredOp) -> tuple[list[Measurement], Case | None]:
    """The measurements that `model` proposes up to the first case that was not recorded, and that case."""
    observed: list[Measurement] = []
    given: set[Case] = set()
    while (case := model.propose(entry.op, tuple(observed), entry.machine)) is not None:
        if case in given:
            raise ModelError(f"{model.name} proposed {case} again, which it has")
        if case not in entry.by_case:
            return observed, case
        given.add(case)
        observed.append(entry.by_case[case])
    return observed, None


def one_sample(entry: MeasuredOp, random: np.random.Generator) -> MeasuredOp:
    """`entry` with one sample of each case, drawn at random: as if only one batch had been timed."""
    drawn = {
        case: replace(measured, samples=(measured.samples[random.integers(len(measured.samples))],))
        for case, measured in entry.by_case.items()
    }
    return replace(entry, by_case=drawn)


def _judge(models: Sequence[PerformanceModel], shared: SharedOps, fold: Fold, draw: int | None) -> list[Outcome]:
    """The outcome of each of these models, which share one fit, in one fold."""
    outcomes = [Outcome() for _ in models]
    entries = shared.get()
    started = time.perf_counter()
    try:
        fitted = fit_all(models, [m for i in fold.train for m in entries[i].by_case.values()])
    except ModelError as error:
        for outcome in outcomes:
            outcome.unusable = dict.fromkeys(fold.test, str(error))
        return outcomes
    fit_s = time.perf_counter() - started
    for model, outcome in zip(fitted, outcomes, strict=True):
        outcome.fit_s, outcome.notes = fit_s, tuple(getattr(model, "notes", ()))
        _ask(model, entries, fold.test, outcome, draw)
    return outcomes


def judge_together(
    models: Sequence[PerformanceModel], entries: Sequence[MeasuredOp], *, split_name: str, steps: int = STEPS
) -> tuple[Row, ...]:
    """Compare fitted models on the same points of the same ops, one row for each.

    Each model gets all recorded measurements that any of them proposes, and forecasts all recorded cases. `unusable` of
    a row counts the ops that the model cannot forecast although it has everything that it asked for. An op that one
    model cannot forecast is left out of the scores of all. The cost of a row counts the measuring of the samples that
    the model itself proposes, over `steps` runs of each op.
    """
    outcomes = [Outcome() for _ in models]
    batches: dict[tuple[str, tuple[Case, ...]], list[_Asked]] = {}
    wanting: set[tuple[int, int]] = set()
    own_s: dict[tuple[int, int], float] = {}
    for at, entry in enumerate(entries):
        shown: dict[Case, Measurement] = {}
        for number, model in enumerate(models):
            try:
                found, missing = _asked_for(model, entry)
            except ModelError as error:
                outcomes[number].unusable[at] = str(error)
                continue
            shown |= {measured.case: measured for measured in found}
            own_s[number, at] = measuring_s(found)
            if missing is not None:
                wanting.add((number, at))
        asked = _Asked(at, entry, list(shown.values()))
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append(asked)
    for model, outcome in zip(models, outcomes, strict=True):
        for batch in batches.values():
            _forecast(model, batch, outcome)
    floors = noise_floors(entries)
    failed = {at for outcome in outcomes for at in outcome.unusable}
    for number, outcome in enumerate(outcomes):
        outcome.scores = {
            at: replace(score, measuring_s=own_s[number, at])
            for at, score in outcome.scores.items()
            if at not in failed
        }
        outcome.unusable = {at: why for at, why in outcome.unusable.items() if (number, at) not in wanting}
    return tuple(
        row_of(model.name, split_name, ALL_FOLDS, [outcome], floors=floors, steps=steps)
        for model, outcome in zip(models, outcomes, strict=True)
    )


def _ask(
    model: PerformanceModel, entries: Sequence[MeasuredOp], test: Sequence[int], outcome: Outcome, draw: int | None
) -> None:
    batches: dict[tuple[str, tuple[Case, ...]], list[_Asked]] = {}
    for i in test:
        entry = entries[i]
        shown = entry if draw is None else one_sample(entry, np.random.default_rng([draw, i]))
        try:
            observed = replay(model, shown)
        except ModelError as error:
            outcome.unusable[i] = str(error)
            continue
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append(_Asked(i, entry, observed))
    for batch in batches.values():
        _forecast(model, batch, outcome)
    outcome.call_s = _call_s(model, [asked for batch in batches.values() for asked in batch])


class _Asked(NamedTuple):
    at: int
    entry: MeasuredOp
    observed: list[Measurement]


def _call_s(model: PerformanceModel, asked: Sequence[_Asked]) -> float | None:
    """Median seconds of forecasting one op in a call of its own, over `CALLS` of the ops; None where none succeeds."""
    took: list[float] = []
    for _, entry, observed in asked[:CALLS]:
        cases = tuple(entry.by_case)
        started = time.perf_counter()
        try:
            model.predict(entry.op, observed, cases, machine=entry.machine)
        except ModelError:
            continue
        took.append(time.perf_counter() - started)
    return median(took) if took else None


def _forecast(model: PerformanceModel, batch: list[_Asked], outcome: Outcome) -> None:
    """Forecast ops of the same machine and cases together; one by one where that fails, to find the op that fails."""
    first = batch[0].entry
    cases = tuple(first.by_case)
    started = time.perf_counter()
    try:
        table = model.predict_many(
            [asked.entry.op for asked in batch], [asked.observed for asked in batch], cases, machine=first.machine
        )
    except ModelError as error:
        if len(batch) == 1:
            outcome.unusable[batch[0].at] = str(error)
            return
        for one in batch:
            _forecast(model, [one], outcome)
        return
    outcome.predict_s += time.perf_counter() - started
    for row, (at, entry, observed) in enumerate(batch):
        outcome.scores[at] = OpScore.of(entry, observed, table, row)
