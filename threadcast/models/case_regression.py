"""Regressors for the cases of one machine: their inputs, how they learn, and their residuals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from threadcast.core import Case, Measurement
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.models import feature_selection, parallel, regressors
from threadcast.models.artefacts import read_skops, reading, skops_bytes
from threadcast.models.feature_selection import Normaliser
from threadcast.models.intervals import residual_bounds
from threadcast.models.measured import MeasuredOp
from threadcast.models.sampling import evenly_spread

Scale = Literal["log", "linear"]
Sampled = Sequence[Sequence[Measurement]]
"""For each op, its measurements at the sampled cases, in the order of these cases."""

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

RATIO_MARGIN = np.log(2.0)
"""Forecasts stay within a factor of two of the ratios to the sampled times that occurred in training; only forecasts of
a regressor that diverges or goes below zero are affected."""

LEAST_S = 1e-12
"""Seconds that replace a linear forecast that is not positive, before it is clipped."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to learn: the regressor, the number of sampled cases, the scale of time."""

    regressor: str
    samples: int = 4
    scale: Scale = "log"
    seed: int = 0

    def __post_init__(self) -> None:
        regressors.check_name(self.regressor)
        evenly_spread((), self.samples)
        if self.scale not in get_args(Scale):
            raise InvalidInput(f"scale={self.scale!r} must be one of {', '.join(get_args(Scale))}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"seed={self.seed!r} must be a whole number of at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class CaseRegression:
    """The regressors that were learned on one machine. The arrays are (n_cases,) float64, in the order of `cases`.


    `centre` and `spread` standardise the targets; `low` and `high` bound the residuals in log time; `least` and `most`
    are the extreme log ratios to the geometric mean of the sampled times.
    """

    recipe: Recipe
    cases: tuple[Case, ...]
    samples: tuple[Case, ...]
    counters: tuple[str, ...]
    normaliser: Normaliser
    scaler: Any
    regressors: tuple[Any, ...]
    centre: Floats
    spread: Floats
    low: Floats
    high: Floats
    least: Floats
    most: Floats

    def forecast(self, sampled: Sampled) -> tuple[Floats, Floats, Floats]:
        """Forecast seconds and the lower and upper bounds of their intervals at `cases`, each (n_ops, n_cases)."""
        inputs = self.scaler.transform(_features(sampled, self.counters, self.normaliser, self.recipe.scale))
        scores = np.stack([regressor.predict(inputs) for regressor in self.regressors], axis=1)
        logs = self._to_log(scores * self.spread + self.centre, _reference(sampled), slice(None))
        return np.exp(logs), np.exp(logs + self.low), np.exp(logs + self.high)

    def _to_log(self, times: Floats, reference: Floats, columns: slice | list[int]) -> Floats:
        """Log seconds of scaled targets (n_ops, n_columns), clipped to the ratios of training."""
        logs = times if self.recipe.scale == "log" else np.log(np.maximum(times, LEAST_S))
        ratio = logs - reference[:, None]
        return (
            np.clip(ratio, self.least[columns] - RATIO_MARGIN, self.most[columns] + RATIO_MARGIN) + reference[:, None]
        )

    def to_files(self, prefix: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A JSON document, and files whose names start with `prefix`."""
        document = {
            "recipe": asdict(self.recipe),
            "counters": self.counters,
            "normaliser": self.normaliser,
            **{name: [[case.threads, case.affinity] for case in getattr(self, name)] for name in ("cases", "samples")},
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
        }
        files = regressors.to_files(self.recipe.regressor, f"{prefix}.regressors", self.regressors)
        return document, {f"{prefix}.scaler.skops": skops_bytes(self.scaler), **files}

    @classmethod
    def from_files(cls, document: Any, prefix: str, files: Mapping[str, bytes]) -> CaseRegression:
        """Load what `to_files` returned; ArtefactError on anything else."""
        with reading(prefix):
            recipe = Recipe(**document["recipe"])
            cases, samples = (tuple(Case(n, a) for n, a in document[name]) for name in ("cases", "samples"))
            counters = tuple(map(str, document["counters"]))
            arrays = [np.array(document[name], dtype=np.float64) for name in _ARRAYS]
            scaler = read_skops(files, f"{prefix}.scaler.skops")
            features = len(samples) * (1 + len(counters))
            fitting = type(scaler) is type(_scaler()) and scaler.n_features_in_ == features
            if not fitting or any(a.shape != (len(cases),) or not np.all(np.isfinite(a)) for a in arrays):
                raise ArtefactError(f"{prefix}: the parts do not fit each other")
            if document["normaliser"] not in get_args(Normaliser):
                raise ArtefactError(f"{prefix}: normaliser {document['normaliser']!r} is unknown")
            fitted = regressors.from_files(
                recipe.regressor, f"{prefix}.regressors", files, count=len(cases), features=features
            )
        return cls(recipe, cases, samples, counters, document["normaliser"], scaler, tuple(fitted), *arrays)


_ARRAYS = ("centre", "spread", "low", "high", "least", "most")


def learn(entries: Sequence[MeasuredOp], recipe: Recipe, *, jobs: int = 1) -> tuple[CaseRegression, tuple[str, ...]]:
    """Regressors for the cases of the one machine that `entries` are from, and notes on what was left out.

    `jobs` processes fit side by side. ModelError where fewer than `MIN_OPS` ops have all sampled cases.
    """
    samples, rows = _choose_samples(entries, recipe)
    cases = tuple(case for case in _all_cases(rows) if sum(case in row.by_case for row in rows) >= MIN_OPS)
    times = np.array([[_seconds(row, case) for case in cases] for row in rows])  # (n_ops, n_cases), NaN: not measured
    sampled = [[row.by_case[case] for case in samples] for row in rows]
    ratios = np.log(times) - _reference(sampled)[:, None]
    told = [cases.index(case) for case in evenly_spread(cases, RESIDUAL_CASES)]
    normaliser, counters = _choose_counters(sampled, ratios[:, told], recipe)

    table = _features(sampled, counters, normaliser, recipe.scale)
    scaler = _scaler().fit(table)
    inputs, targets = scaler.transform(table), np.log(times) if recipe.scale == "log" else times
    centre, spread = np.nanmean(targets, axis=0), np.nanstd(targets, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scores = (targets - centre) / spread
    fitted = _fit_cases(recipe, inputs, scores, range(len(cases)), jobs)
    unknown = np.zeros(len(cases))
    learned = CaseRegression(
        recipe, cases, samples, counters, normaliser, scaler, tuple(regressor for regressor, _ in fitted),
        centre, spread, unknown.copy(), unknown.copy(), np.nanmin(ratios, axis=0), np.nanmax(ratios, axis=0),
    )  # fmt: skip
    _take_residuals(learned, inputs, scores, np.log(times), _reference(sampled), jobs)
    notes = []
    if len(rows) < len(entries):
        notes.append(f"{len(entries) - len(rows)} of {len(entries)} ops left out: not all sampled cases were measured")
    unsettled = sum(not settled for _, settled in fitted)
    if unsettled:
        notes.append(f"{unsettled} of {len(cases)} regressors stopped before they converged")
    return learned, tuple(notes)


def _choose_samples(entries: Sequence[MeasuredOp], recipe: Recipe) -> tuple[tuple[Case, ...], list[MeasuredOp]]:
    counts = {case: sum(case in entry.by_case for entry in entries) for case in _all_cases(entries)}
    often = [case for case, count in counts.items() if count >= MIN_MEASURED * max(counts.values())]
    samples = evenly_spread(often, recipe.samples)
    rows = [entry for entry in entries if all(case in entry.by_case for case in samples)]
    if len(rows) < MIN_OPS:
        raise ModelError(
            f"{recipe.regressor} learns from at least {MIN_OPS} ops that were measured at "
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


def _features(sampled: Sampled, counters: Sequence[str], normaliser: Normaliser, scale: Scale) -> Floats:
    """(n_ops, n_samples * (1 + n_counters)): at each sampled case the time, then its counters."""
    rows = [
        [v for m in listed for v in (m.seconds, *(feature_selection.normalised(m, c, normaliser) for c in counters))]
        for listed in sampled
    ]
    table = np.array(rows, dtype=np.float64)
    if scale == "log":
        table[:, :: 1 + len(counters)] = np.log(table[:, :: 1 + len(counters)])
    return table


def _scaler() -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())


def _fit_cases(
    recipe: Recipe, inputs: Floats, scores: Floats, columns: Iterable[int], jobs: int
) -> list[tuple[Any, bool]]:
    """One fitted regressor for each of these columns of `scores`, learned from the rows that have a value there."""
    import joblib

    known = ~np.isnan(scores)
    tasks = (
        joblib.delayed(regressors.fit)(recipe.regressor, inputs[known[:, c]], scores[known[:, c], c], seed=recipe.seed)
        for c in columns
    )
    return list(parallel.run(tasks, jobs=jobs))


def _take_residuals(
    learned: CaseRegression, inputs: Floats, scores: Floats, logs: Floats, reference: Floats, jobs: int
) -> None:
    """Fill `low` and `high` with bounds of out-of-fold residuals; each case gets those of the nearest probed case.

    Probed cases are those measured for most ops and not sampled: at a sampled case the answer is a feature.
    """
    often = np.count_nonzero(~np.isnan(scores), axis=0) >= MIN_PROBED * len(scores)
    others = [case for case, enough in zip(learned.cases, often) if enough and case not in learned.samples]
    probes = [learned.cases.index(case) for case in evenly_spread(others or learned.samples, RESIDUAL_CASES)]
    fold = np.random.default_rng(learned.recipe.seed).permutation(len(inputs)) % FOLDS
    residuals = np.full((len(inputs), len(probes)), np.nan)
    for left_out in range(FOLDS):
        train, test = fold != left_out, fold == left_out
        fitted = _fit_cases(learned.recipe, inputs[train], scores[train], probes, jobs)
        found = np.stack([regressor.predict(inputs[test]) for regressor, _ in fitted], axis=1)
        times = found * learned.spread[probes] + learned.centre[probes]
        residuals[test] = logs[test][:, probes] - learned._to_log(times, reference[test], probes)
    bounds = [residual_bounds(column[~np.isnan(column)]) for column in residuals.T]
    for i, case in enumerate(learned.cases):
        learned.low[i], learned.high[i] = bounds[_nearest(case, [learned.cases[p] for p in probes])]


def _nearest(case: Case, probed: Sequence[Case]) -> int:
    def distance(i: int) -> tuple[bool, int]:
        return probed[i].affinity is not case.affinity, abs(probed[i].threads - case.threads)

    return min(range(len(probed)), key=distance)


def _reference(sampled: Sampled) -> Floats:
    """Log of the geometric mean of the sampled times, (n_ops,)."""
    logs: Floats = np.log([[m.seconds for m in listed] for listed in sampled])
    return np.asarray(logs.mean(axis=1))


def _seconds(entry: MeasuredOp, case: Case) -> float:
    return entry.by_case[case].seconds if case in entry.by_case else np.nan


def _all_cases(entries: Sequence[MeasuredOp]) -> list[Case]:
    return sorted({case for entry in entries for case in entry.by_case})
