"""Judging models in one fold: each gets the samples that it proposes of the test ops, and forecasts all their cases."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.judgement import Outcome
from threadcast.models.measured import MeasuredOp
from threadcast.models.op_score import OpScore
from threadcast.models.splits import Fold

CALLS = 3
"""Number of forecasts of single ops that are timed in each fold; the median of three leaves out the first call, which
may load code."""


def judge_fold(
    models: Sequence[PerformanceModel], entries: Sequence[MeasuredOp], fold: Fold, *, draw: int | None = None
) -> list[Outcome]:
    """The outcome of each of these models in one fold; they are one model, or have one `fit_key`: the
    one with most samples is fitted for all."""
    outcomes = [Outcome() for _ in models]
    started = time.perf_counter()
    try:
        most = max(models, key=lambda model: getattr(model, "samples", 0))
        fitted = copy.deepcopy(most).fit([m for i in fold.train for m in entries[i].by_case.values()])
    except ModelError as error:
        for outcome in outcomes:
            outcome.unusable = dict.fromkeys(fold.test, str(error))
        return outcomes
    fit_s = time.perf_counter() - started
    for model, outcome in zip(models, outcomes, strict=True):
        model = model.as_fitted(fitted) if len(models) > 1 else fitted
        outcome.fit_s, outcome.notes = fit_s, tuple(model.notes)
        _ask(model, entries, fold.test, outcome, draw)
    return outcomes


def replay(model: PerformanceModel, entry: MeasuredOp) -> list[Measurement]:
    """The recorded measurements of `entry` that `model` proposes, in its order.

    ModelError where it proposes a case that was not recorded, or one that it has already.
    """
    observed, missing = asked_for(model, entry)
    if missing is not None:
        raise ModelError(f"{entry.op.key} was not recorded at {missing}, which {model.name} asks for")
    return observed


def asked_for(model: PerformanceModel, entry: MeasuredOp) -> tuple[list[Measurement], Case | None]:
    """The measurements that `model` proposes up to the first case that was not recorded, and that case."""
    observed: list[Measurement] = []
    given: set[Case] = set()
    recorded = tuple(entry.by_case)
    while (case := model.propose_among(entry.op, tuple(observed), entry.machine, recorded)) is not None:
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


def _ask(
    model: PerformanceModel, entries: Sequence[MeasuredOp], test: Sequence[int], outcome: Outcome, draw: int | None
) -> None:
    batches: dict[tuple[str, tuple[Case, ...]], list[Asked]] = {}
    for i in test:
        entry = entries[i]
        shown = entry if draw is None else one_sample(entry, np.random.default_rng([draw, i]))
        try:
            observed = replay(model, shown)
        except ModelError as error:
            outcome.unusable[i] = str(error)
            continue
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append(Asked(i, entry, observed))
    for batch in batches.values():
        forecast(model, batch, outcome)
    outcome.call_s = _call_s(model, [asked for batch in batches.values() for asked in batch])


class Asked(NamedTuple):
    """An op at position `at` of all, its recorded measurements, and those of them that the model gets."""

    at: int
    entry: MeasuredOp
    observed: list[Measurement]


def _call_s(model: PerformanceModel, asked: Sequence[Asked]) -> float | None:
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


def forecast(model: PerformanceModel, batch: list[Asked], outcome: Outcome) -> None:
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
            forecast(model, [one], outcome)
        return
    outcome.predict_s += time.perf_counter() - started
    for row, (at, entry, observed) in enumerate(batch):
        outcome.scores[at] = OpScore.of(entry, observed, table, row)
