"""Learns the regressors for the cases of one machine, and the bounds of their residuals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Case
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.models import feature_selection
from threadcast.models.case_regression import CaseRegression, Recipe, Sampled, Scaler, features_of, reference_of
from threadcast.models.feature_selection import Normaliser
from threadcast.models.intervals import residual_bounds
from threadcast.models.measured import MeasuredOp
from threadcast.models.regressors.contract import Numbers
from threadcast.models.sampling import evenly_spread

MIN_OPS = 6
"""Ops that a case must have been measured for: three folds of two."""

MIN_MEASURED = 0.5
"""A sampled case must have been measured for this share of the ops of the best-measured case."""

MIN_PROBED = 0.75
"""A case must have been measured for this share of the ops for residuals to be computed there, so that each fold has
some."""

RESIDUAL_CASES, FOLDS = 8, 3
"""Residuals are computed at so many cases, evenly spread, in so many folds: a quarter more work on 68 cases, not 3x. On
half of MKL's sgemm and sdot curves at 1 to 96 threads the interval so found held 86 to 95 % of the other half's times
for 11 of the 15 regressors; passive-aggressive (74 %) is the worst."""


def learn(entries: Sequence[MeasuredOp], recipe: Recipe) -> tuple[CaseRegression, tuple[str, ...]]:
    """Regressors for the cases of the one machine that `entries` are from, and notes on what was left out.

    ModelError where fewer than `MIN_OPS` ops have all sampled cases.
    """
    samples, rows = _choose_samples(entries, recipe)
    cases = tuple(case for case in _all_cases(rows) if sum(case in row.by_case for row in rows) >= MIN_OPS)
    times = np.array([[_seconds(row, case) for case in cases] for row in rows])  # (n_ops, n_cases), NaN: not measured
    sampled = [[row.by_case[case] for case in samples] for row in rows]
    logs, reference = np.log(times), reference_of(sampled)
    ratios = logs - reference[:, None]
    spread_cases = [cases.index(case) for case in evenly_spread(cases, RESIDUAL_CASES)]
    normaliser, counters = _choose_counters(sampled, ratios[:, spread_cases], recipe)

    table = features_of(sampled, counters, normaliser, recipe.scale)
    scaler = Scaler.of(table)
    inputs, targets = scaler.scaled(table), logs if recipe.scale == "log" else times
    centre, spread = np.nanmean(targets, axis=0), np.nanstd(targets, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scores = (targets - centre) / spread
    fitted = _fit_cases(recipe, inputs, scores, range(len(cases)))
    unknown = np.zeros(len(cases))
    learned = CaseRegression(
        recipe, cases, samples, counters, normaliser, scaler, tuple(numbers for numbers, _ in fitted),
        centre, spread, unknown, unknown, np.nanmin(ratios, axis=0), np.nanmax(ratios, axis=0),
    )  # fmt: skip
    low, high = _residual_bounds(learned, inputs, scores, logs, reference)
    notes = []
    if len(rows) < len(entries):
        notes.append(f"{len(entries) - len(rows)} of {len(entries)} ops left out: not all sampled cases were measured")
    unsettled = sum(not settled for _, settled in fitted)
    if unsettled:
        notes.append(f"{unsettled} of {len(cases)} regressors stopped before they converged")
    return replace(learned, low=low, high=high), tuple(notes)


def _choose_samples(entries: Sequence[MeasuredOp], recipe: Recipe) -> tuple[tuple[Case, ...], list[MeasuredOp]]:
    counts = {case: sum(case in entry.by_case for entry in entries) for case in _all_cases(entries)}
    often = [case for case, count in counts.items() if count >= MIN_MEASURED * max(counts.values())]
    samples = evenly_spread(often, recipe.samples)
    rows = [entry for entry in entries if all(case in entry.by_case for case in samples)]
    if len(rows) < MIN_OPS:
        raise ModelError(
            f"{recipe.regressor.name} learns from at least {MIN_OPS} ops that were measured at "
            f"{', '.join(map(str, samples))}; {entries[0].machine.fingerprint} has {len(rows)}; "
            "measure more with `threadcast profile`"
        )
    return samples, rows


def _choose_counters(sampled: Sampled, targets: Floats, recipe: Recipe) -> tuple[Normaliser, tuple[str, ...]]:
    flat = [measurement for listed in sampled for measurement in listed]
    normaliser = feature_selection.normaliser_of(flat)
    names = feature_selection.candidates(flat, normaliser)
    counts = [[[feature_selection.normalised(m, n, normaliser) for n in names] for m in listed] for listed in sampled]
    means = np.array(counts, dtype=np.float64).mean(axis=1)  # (n_ops, n_names), NaN where one was not read
    return normaliser, feature_selection.select(means, names, targets, seed=recipe.seed)


def _fit_cases(recipe: Recipe, inputs: Floats, scores: Floats, columns: Iterable[int]) -> list[tuple[Numbers, bool]]:
    """What a regressor learns for each of these columns of `scores`, learned from the rows that have a value there."""
    known, fitted = ~np.isnan(scores), recipe.regressor.fitted
    return [fitted(inputs[known[:, c]], scores[known[:, c], c], seed=recipe.seed) for c in columns]


def _residual_bounds(
    learned: CaseRegression, inputs: Floats, scores: Floats, logs: Floats, reference: Floats
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of out-of-fold residuals, (n_cases,); each case gets those of the nearest probed case.

    Probed cases are those measured for most ops and not sampled: at a sampled case the answer is a feature.
    """
    often = np.count_nonzero(~np.isnan(scores), axis=0) >= MIN_PROBED * len(scores)
    others = [case for case, enough in zip(learned.cases, often) if enough and case not in learned.samples]
    probes = [learned.cases.index(case) for case in evenly_spread(others or learned.samples, RESIDUAL_CASES)]
    fold = np.random.default_rng(learned.recipe.seed).permutation(len(inputs)) % FOLDS
    residuals = np.full((len(inputs), len(probes)), np.nan)
    for left_out in range(FOLDS):
        train, test = fold != left_out, fold == left_out
        fitted = _fit_cases(learned.recipe, inputs[train], scores[train], probes)
        forecasters = [learned.recipe.regressor.forecaster(numbers) for numbers, _ in fitted]
        found = np.stack([forecast(inputs[test]) for forecast in forecasters], axis=1)
        times = found * learned.spread[probes] + learned.centre[probes]
        residuals[test] = logs[test][:, probes] - learned.to_log(times, reference[test], probes)
    bounds = [residual_bounds(column[~np.isnan(column)]) for column in residuals.T]
    probed = [learned.cases[p] for p in probes]
    low, high = np.array([bounds[_nearest(case, probed)] for case in learned.cases]).T
    return low, high


def _nearest(case: Case, probed: Sequence[Case]) -> int:
    def distance(i: int) -> tuple[bool, int]:
        return probed[i].affinity is not case.affinity, abs(probed[i].threads - case.threads)

    return min(range(len(probed)), key=distance)


def _seconds(entry: MeasuredOp, case: Case) -> float:
    return entry.by_case[case].seconds if case in entry.by_case else np.nan


def _all_cases(entries: Sequence[MeasuredOp]) -> list[Case]:
    return sorted({case for entry in entries for case in entry.by_case})
