"""Scores of models on ops that they have not learned from, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from threadcast.core import Case, CurveTable
from threadcast.core.curve import Floats
from threadcast.models import metrics
from threadcast.models.measured import MeasuredOp

RESAMPLES = 2000
"""Bootstrap resamples of the ops, to decide whether two models differ (Efron and Tibshirani, An Introduction to the
Bootstrap, ch. 16)."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """Scores of one model, over one fold or all folds.

    `accuracy`, `r2`, `within_10` (the share of points off by at most 10 %) and `coverage_90` (the share of times within
    the 90 % interval) are over the points that the model was not given as samples; None where it was given all. Regret
    is over ops, with all their recorded cases to choose from; `regret_all_threads` is that of always choosing the case
    with most threads. `noise_floor` is the accuracy with which one half of the samples predicts the other; None where
    cases have one sample. `samples` is the mean number of sampled cases of an op. `fit_s` is the sum over folds in
    seconds; `predict_us` is microseconds per curve when many ops are forecast in one call. `as_good_as_best`: whether
    the accuracy may equal that of the most accurate row, by the ops that both have. `unusable` counts the ops that the
    model could not be judged by; `problem` says why the first one, or the fit, failed.
    """

    model: str
    split: str
    fold: str
    samples: float
    accuracy: float | None
    r2: float | None
    within_10: float | None
    coverage_90: float | None
    regret_mean: float | None
    regret_p95: float | None
    regret_all_threads: float | None
    noise_floor: float | None
    fit_s: float
    predict_us: float | None
    ops: int
    points: int
    unusable: int
    problem: str | None
    notes: tuple[str, ...] = ()
    as_good_as_best: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OpScore:
    """Scores of a model on one op. `points` (4, n): actual, predicted, low and high seconds at the n cases of which the
    model was not given measurements."""

    points: Floats
    regret: float
    regret_all_threads: float
    samples: int
    noise_floor: float | None

    @classmethod
    def of(cls, entry: MeasuredOp, given: set[Case], table: CurveTable, row: int) -> OpScore:
        """Compare row `row` of `table` with the measurements of `entry`.

        The model was given those of the cases `given`.
        """
        actual = np.array([measurement.seconds for measurement in entry.by_case.values()])
        curve = table[row]
        judged = [i for i, case in enumerate(curve.cases) if case not in given]
        most = max(range(len(curve.cases)), key=lambda i: curve.cases[i].threads)
        return cls(
            np.stack([actual, curve.seconds, curve.low, curve.high])[:, judged],
            metrics.regret(actual, curve.cases.index(curve.best())),
            metrics.regret(actual, most),
            len(given),
            metrics.noise_floor([[s.seconds for s in m.samples] for m in entry.by_case.values()]),
        )

    @property
    def error(self) -> float | None:
        """Mean relative error; None without points."""
        accuracy = metrics.accuracy(self.points[0], self.points[1])
        return None if accuracy is None else 1 - accuracy


@dataclass(slots=True)
class Outcome:
    """Results of one model in one fold, by position of the op: its score, or why the model cannot be judged by it."""

    scores: dict[int, OpScore] = field(default_factory=dict)
    unusable: dict[int, str] = field(default_factory=dict)
    fit_s: float = 0.0
    predict_s: float = 0.0
    notes: tuple[str, ...] = ()


def row_of(model: str, split: str, fold: str, outcomes: Sequence[Outcome]) -> Row:
    """The outcomes of one model in one row."""
    scores = [score for outcome in outcomes for score in outcome.scores.values()]
    points = np.concatenate([np.empty((4, 0)), *(score.points for score in scores)], axis=1)
    actual, predicted, low, high = points
    regrets = [score.regret for score in scores]
    floors = [score.noise_floor for score in scores if score.noise_floor is not None]
    reasons = [reason for outcome in outcomes for reason in outcome.unusable.values()]
    return Row(
        model=model,
        split=split,
        fold=fold,
        samples=_mean([score.samples for score in scores]) or 0.0,
        accuracy=metrics.accuracy(actual, predicted),
        r2=metrics.r2(actual, predicted),
        within_10=metrics.within(actual, predicted, 0.1),
        coverage_90=metrics.coverage(actual, low, high),
        regret_mean=_mean(regrets),
        regret_p95=float(np.quantile(regrets, 0.95)) if regrets else None,
        regret_all_threads=_mean([score.regret_all_threads for score in scores]),
        noise_floor=_mean(floors),
        fit_s=sum(outcome.fit_s for outcome in outcomes),
        predict_us=1e6 * sum(outcome.predict_s for outcome in outcomes) / len(regrets) if regrets else None,
        ops=len(regrets),
        points=len(actual),
        unusable=len(reasons),
        problem=next(iter(reasons), None),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )


def with_significance(rows: Sequence[Row], outcomes: Sequence[Sequence[Outcome]]) -> tuple[Row, ...]:
    """The rows with `as_good_as_best` filled in; `outcomes[i]` belong to row i."""
    errors = [_errors(of_row) for of_row in outcomes]
    judged = [i for i, row in enumerate(rows) if row.accuracy is not None]
    if not judged:
        return tuple(rows)
    best = max(judged, key=lambda i: rows[i].accuracy or 0.0)
    return tuple(
        replace(row, as_good_as_best=_may_be_equal(errors[i], errors[best])) if i in judged else row
        for i, row in enumerate(rows)
    )


def _errors(outcomes: Sequence[Outcome]) -> dict[tuple[int, int], float]:
    """Mean relative error by fold and op."""
    found = {(f, at): score.error for f, outcome in enumerate(outcomes) for at, score in outcome.scores.items()}
    return {key: error for key, error in found.items() if error is not None}


def _may_be_equal(ours: Mapping[Any, float], best: Mapping[Any, float]) -> bool:
    """Whether the mean difference may be 0: a paired bootstrap over the ops that both models have."""
    both = [key for key in ours if key in best]
    differences = np.array([ours[key] - best[key] for key in both])
    if not both or np.ptp(differences) == 0:
        return not both or bool(differences[0] == 0)
    drawn = np.random.default_rng(0).integers(0, len(both), (RESAMPLES, len(both)))
    low, high = np.quantile(differences[drawn].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return bool(low <= 0 <= high)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
