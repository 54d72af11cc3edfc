"""Scores of models on ops that they have not learned from, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from threadcast.core.gains import PAIRS_AT_LEAST, Gain, gain_of
from threadcast.core.settings_table import STEPS
from threadcast.models import metrics
from threadcast.models.measured import MeasuredOp
from threadcast.models.op_score import OpScore

RESAMPLES = 2000
"""Bootstrap resamples of the ops, to decide whether two models differ (Efron and Tibshirani, An Introduction to the
Bootstrap, ch. 16)."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """Scores of one model, over one fold or all folds.

    `accuracy`, `r2`, `within_10` (the share of points off by at most 10 %) and `coverage_90` (the share of times within
    the 90 % interval) are over the points that the model was not given as samples; None where it was given all. Regret
    is over ops, with all their recorded cases to choose from; `regret_spread` is the standard error of its mean, over
    ops or over folds, whichever is larger; `regret_all_threads` is that of always choosing the case with most threads.
    `noise_floor` is the accuracy with which one half of the samples predicts the other; None where
    cases have one sample. `samples` is the mean number of sampled cases of an op. `fit_s` is the sum over folds in
    seconds; `predict_us` is microseconds per curve when many ops are forecast in one call. `unusable` counts the ops
    that the model could not be judged by; `problem` says why the first one, or the fit, failed.

    `cost` is what following the model costs: by how much the judged ops, run `steps` times at the chosen cases, and the
    `measuring_s` seconds that timing the model's samples takes, exceed the same steps at the best cases, as a share of
    these. Long ops weigh more in it than short ones.

    `speedup_over_all` is the median over ops of the time with most threads over that of the chosen case, with its
    interval; `speedup_with_model_time` adds to the latter the time of one forecast, `call_us` microseconds for one op
    in a call of its own, as if it were made anew before each run (as ADSALA, Xia and Barca 2026, does). Times of
    samples are in neither; None of fewer than 3 ops.
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
    steps: int = STEPS
    cost: float | None = None
    measuring_s: float | None = None
    speedup_over_all: Gain | None = None
    speedup_with_model_time: Gain | None = None
    call_us: float | None = None
    regret_spread: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class Outcome:
    """Results of one model in one fold, by position of the op: its score, or why the model cannot be judged by it.

    `fit_s` and `predict_s` are the seconds of fitting and of all forecasts together, `call_s` the median of a few
    forecasts of one op each; None where that was not timed.
    """

    scores: dict[int, OpScore] = field(default_factory=dict)
    unusable: dict[int, str] = field(default_factory=dict)
    fit_s: float = 0.0
    predict_s: float = 0.0
    call_s: float | None = None
    notes: tuple[str, ...] = ()


def row_of(
    model: str, split: str, fold: str, outcomes: Sequence[Outcome], *, floors: Sequence[float | None] = (),
    steps: int = STEPS,
) -> Row:  # fmt: skip
    """The outcomes of one model in one row; `steps` is how often a user runs each op.

    `floors`: the noise floor of each op (`noise_floors`); none is stated without them.
    """
    scores = [score for outcome in outcomes for score in outcome.scores.values()]
    points = np.concatenate([np.empty((4, 0)), *(score.points for score in scores)], axis=1)
    actual, predicted, low, high = points
    regrets = [score.regret for score in scores]
    known_floors = [floors[at] for outcome in outcomes for at in outcome.scores] if floors else []
    reasons = [reason for outcome in outcomes for reason in outcome.unusable.values()]
    calls = [outcome.call_s for outcome in outcomes if outcome.call_s is not None]
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
        noise_floor=_mean([floor for floor in known_floors if floor is not None]),
        fit_s=sum(outcome.fit_s for outcome in outcomes),
        predict_us=1e6 * sum(outcome.predict_s for outcome in outcomes) / len(regrets) if regrets else None,
        ops=len(regrets),
        points=len(actual),
        unusable=len(reasons),
        problem=next(iter(reasons), None),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
        steps=steps,
        cost=cost_of(scores, steps),
        measuring_s=sum(score.measuring_s for score in scores) if scores else None,
        speedup_over_all=_speedup([(score, 0.0) for score in scores]),
        speedup_with_model_time=_speedup(
            [(score, one.call_s) for one in outcomes if one.call_s is not None for score in one.scores.values()]
        ),
        call_us=None if not calls else 1e6 * float(np.mean(calls)),
        regret_spread=_spread([[score.regret for score in outcome.scores.values()] for outcome in outcomes]),
    )


def noise_floors(entries: Sequence[MeasuredOp]) -> list[float | None]:
    """For each op, the accuracy with which one half of its samples predicts the other; None where a case has one."""
    return [
        metrics.noise_floor([[sample.seconds for sample in m.samples] for m in entry.by_case.values()])
        for entry in entries
    ]


def cost_of(scores: Sequence[OpScore], steps: int) -> float | None:
    """What following a model costs over `steps` runs of each op, measuring included, as a share of the time of these
    runs at the best cases; None without scores."""
    if not scores:
        return None
    best_s = steps * sum(score.best_s for score in scores)
    return sum(lost_s(score, steps) for score in scores) / best_s


def lost_s(score: OpScore, steps: int) -> float:
    """Seconds by which following a model on one op takes longer than the best case, measuring included."""
    return steps * (score.chosen_s - score.best_s) + score.measuring_s


def ranking(rows: Sequence[Row]) -> list[int]:
    """Positions of the rows, the model to follow first: by the ops that could not judge it, then cost, then samples.

    Rows that no op could judge are left out.
    """
    judged = [i for i, row in enumerate(rows) if row.ops]
    return sorted(judged, key=lambda i: (rows[i].unusable, rows[i].cost or 0.0, rows[i].samples))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows by `ranking`, then those that no op could judge."""
    return [*(rows[i] for i in ranking(rows)), *(row for row in rows if not row.ops)]


def _speedup(scores: Sequence[tuple[OpScore, float]]) -> Gain | None:
    """Over all threads, with so many more seconds at the chosen case; None of too few ops."""
    if len(scores) < PAIRS_AT_LEAST:
        return None
    return gain_of([score.all_threads_s for score, _ in scores], [score.chosen_s + more_s for score, more_s in scores])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _spread(by_fold: Sequence[Sequence[float]]) -> float | None:
    """The standard error of the mean of all values, and at least that of the means of folds; None of a single value."""
    every = [value for of_fold in by_fold for value in of_fold]
    means = [float(np.mean(of_fold)) for of_fold in by_fold if of_fold]
    errors = [float(np.std(some, ddof=1)) / len(some) ** 0.5 for some in (every, means) if len(some) > 1]
    return max(errors, default=None)
