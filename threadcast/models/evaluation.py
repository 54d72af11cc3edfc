"""Comparing models: the same folds and the same measurements for all, and for each only the samples that it asks
for."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.errors import ModelError
from threadcast.models import parallel
from threadcast.models.base import PerformanceModel
from threadcast.models.judgement import OpScore, Outcome, Row, row_of, with_significance
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.shared import SharedOps
from threadcast.models.splits import Fold, Split
from threadcast.models.units import odd_units

ALL_FOLDS = "all"


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
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Compare unfitted `models`, given with the names of their rows, on ops that they have not learned from.

    A copy of each model is fitted to all measurements of a fold's training ops. For each test op it then proposes
    samples, gets the recorded ones and nothing else, and forecasts all recorded cases. Where a proposed case was not
    recorded, the model cannot be judged by that op. With `draw`, a seed, it gets one of each case's samples instead of
    all, the same one as every other model. `jobs` processes work on models and folds side by side; `progress` is called
    with (done, total). A model that cannot be fitted gets a row that says why. ModelError where the measurements cannot
    be learned from at all (`measured.usable`) or do not allow the split.
    """
    import joblib

    entries, left_out = usable(group(measurements))
    if not models:
        raise ModelError("no model was given to evaluate")
    folds = split(entries)
    tasks = [(name, model, fold) for fold in folds for name, model in models]
    shared = SharedOps(entries)
    outcomes: list[Outcome] = []
    calls = (joblib.delayed(_judge)(model, shared, fold, draw) for _, model, fold in tasks)
    for outcome in parallel.run(calls, jobs=jobs):
        outcomes.append(outcome)
        if progress:
            progress(len(outcomes), len(tasks))
    by_model = [outcomes[i :: len(models)] for i in range(len(models))]
    rows = [row_of(name, split_name, ALL_FOLDS, own) for (name, _), own in zip(models, by_model, strict=True)]
    by_fold = [
        row_of(name, split_name, fold.name, [outcome]) for (name, _, fold), outcome in zip(tasks, outcomes, strict=True)
    ]
    return Evaluation(with_significance(rows, by_model), tuple(by_fold), left_out, odd_units(entries))


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


def _judge(model: PerformanceModel, shared: SharedOps, fold: Fold, draw: int | None) -> Outcome:
    outcome = Outcome()
    entries, model = shared.get(), copy.deepcopy(model)
    started = time.perf_counter()
    try:
        model.fit([m for i in fold.train for m in entries[i].by_case.values()])
    except ModelError as error:
        outcome.unusable = dict.fromkeys(fold.test, str(error))
        return outcome
    outcome.fit_s = time.perf_counter() - started
    outcome.notes = tuple(getattr(model, "notes", ()))
    _ask(model, entries, fold.test, outcome, draw)
    return outcome


def judge_together(
    models: Sequence[PerformanceModel], entries: Sequence[MeasuredOp], *, split_name: str
) -> tuple[Row, ...]:
    """Compare fitted models on the same points of the same ops, one row for each.

    Each model gets all recorded measurements that any of them proposes, and forecasts all recorded cases. `unusable` of
    a row counts the ops that the model cannot forecast although it has everything that it asked for. An op that one
    model cannot forecast is left out of the scores of all.
    """
    outcomes = [Outcome() for _ in models]
    batches: dict[tuple[str, tuple[Case, ...]], list[_Asked]] = {}
    wanting: set[tuple[int, int]] = set()
    for at, entry in enumerate(entries):
        shown: dict[Case, Measurement] = {}
        for number, model in enumerate(models):
            try:
                found, missing = _asked_for(model, entry)
            except ModelError as error:
                outcomes[number].unusable[at] = str(error)
                continue
            shown |= {measured.case: measured for measured in found}
            if missing is not None:
                wanting.add((number, at))
        asked = _Asked(at, entry, list(shown.values()))
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append(asked)
    for model, outcome in zip(models, outcomes, strict=True):
        for batch in batches.values():
            _forecast(model, batch, outcome)
    failed = {at for outcome in outcomes for at in outcome.unusable}
    for number, outcome in enumerate(outcomes):
        outcome.scores = {at: score for at, score in outcome.scores.items() if at not in failed}
        outcome.unusable = {at: why for at, why in outcome.unusable.items() if (number, at) not in wanting}
    return tuple(
        row_of(model.name, split_name, ALL_FOLDS, [outcome]) for model, outcome in zip(models, outcomes, strict=True)
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


class _Asked(NamedTuple):
    at: int
    entry: MeasuredOp
    observed: list[Measurement]


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
        outcome.scores[at] = OpScore.of(entry, {m.case for m in observed}, table, row)
